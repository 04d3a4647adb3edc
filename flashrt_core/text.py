"""Text that people write: whether there is anything to read in it."""

from __future__ import annotations

import unicodedata

from .errors import FlashRTError, InputError

# Letters and symbols by their category, but drawn as nothing: fillers of Hangul, a blank Braille.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")


def is_visible(text: str) -> bool:
    """Whether some character is a letter, digit, punctuation mark or symbol."""
    return any(unicodedata.category(c)[0] in "LNPS" and c not in _BLANK for c in text)


def check_instruction(text: str) -> None:
    """InputError on what no robot can be told: no text, nothing to read, control characters other
    than newline and tab. How long it may be is the policy's to say.
    """
    check_text("prompt", text, error=InputError, controls="\n\t", example="an instruction")


def check_text(
    what: str, text: str, *, error: type[FlashRTError], controls: str = "", example: str = ""
) -> None:
    """Refuse text that shows nothing, control characters, and what is no Unicode.

    Args:
        what: the thing that ``text`` is, for the message.
        text: what was given.
        error: what to raise.
        controls: control characters that are allowed.
        example: what ``text`` should be, for the message.
    """
    if isinstance(text, str) and text.isascii() and text.isprintable() and text.strip():
        return  # the common case, without a look at each character
    if not isinstance(text, str):
        raise error(what, expected="text", got=f"{text!r} ({type(text).__name__})")
    if not is_visible(text):
        raise error(
            what,
            expected=f"{example or 'text'} with at least one visible character",
            got=f"{text!r}, which is empty" if not text.strip() else ascii(text),
        )
    if any(unicodedata.category(c) == "Cs" for c in text):  # no file and no message takes it
        raise error(what, expected="Unicode text", got=ascii(text))
    bad = [c for c in text if unicodedata.category(c) == "Cc" and c not in controls]
    if bad:
        raise error(
            what,
            expected="no control characters" + (" but newline and tab" if controls else ""),
            got=f"U+{ord(bad[0]):04X} at character {text.index(bad[0])}",
            remedy="take it out",
        )
