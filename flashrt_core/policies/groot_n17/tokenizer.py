"""Byte-level BPE, read from a ``tokenizer.json``: the text encoding of Qwen's models.

Source: the file's format as Hugging Face's tokenizers write it. Read are vocabulary, merges and
added tokens; how text is split before merging is Qwen's and lies in this file.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..text import EncodingFile, require_unicode

_SHORT = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def _alphabet() -> dict[int, str]:
    """Byte -> the letter that stands for it in a vocabulary: itself where it prints."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


#: Byte -> what stands for it in a vocabulary.
LETTERS = _alphabet()


class Tokenizer:
    """Text to token ids.

    Args:
        path: a ``tokenizer.json``; None for the one that ships (1024 pieces), which fits random
            weights only: a trained network knows its own tokenizer.

    Attributes:
        name: the file, or "tiny".
        digest: SHA-256 of the file.
        vocab: ids are below it.

    Raises:
        OptionError: the file is missing, or is no byte-level BPE.
    """

    def __init__(self, path: Path | None = None) -> None:
        shipped = files(__package__).joinpath("tiny_tokenizer.json")
        kind = "a tokenizer.json of a byte-level BPE with Qwen's chat tokens"
        self._file = EncodingFile(path, shipped, kind)
        self.name = self._file.name
        raw, self.digest = self._file.read()
        try:
            content = json.loads(raw)
            model = content["model"]
            if model["type"] != "BPE":
                raise ValueError(f"a model of type {model['type']!r}")
            self._ids: dict[str, int] = {str(k): int(v) for k, v in model["vocab"].items()}
            self._ranks = {_pair(merge): rank for rank, merge in enumerate(model["merges"])}
            self._added = {
                str(each["content"]): int(each["id"]) for each in content["added_tokens"]
            }
            lacking = [letter for letter in LETTERS.values() if letter not in self._ids]
            if lacking:
                raise ValueError(f"a vocabulary without {len(lacking)} of the 256 bytes")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._file.unusable(f"{self.name!r}: {type(error).__name__}: {error}") from error
        self.vocab = 1 + max([*self._ids.values(), *self._added.values()])
        self._merged = lru_cache(maxsize=4096)(self._merge)

    def special(self, piece: str) -> int:
        """Id of an added token; OptionError when there is none of that name."""
        if piece not in self._added:
            raise self._file.unusable(f"{self.name!r} without the token {piece!r}")
        return self._added[piece]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, none of them an added token's; InputError on invalid Unicode."""
        require_unicode(text)
        pieces = split(unicodedata.normalize("NFC", text))
        return [token for piece in pieces for token in self._merged(piece)]

    def _merge(self, piece: str) -> tuple[int, ...]:
        """Ids of a piece: neighbours become one, the earliest learned pair first."""
        parts = [LETTERS[byte] for byte in piece.encode()]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            joined, at = [], 0
            while at < len(parts):
                if at + 1 < len(parts) and (parts[at], parts[at + 1]) == best:
                    joined.append(parts[at] + parts[at + 1])
                    at += 2
                else:
                    joined.append(parts[at])
                    at += 1
            parts = joined
        return tuple(self._ids[part] for part in parts)


def _pair(merge: Any) -> tuple[str, str]:
    """A merge, written as one text or as two."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return str(first), str(second)


_KINDS: Mapping[str, str] = {"L": "letter", "N": "number"}


def _kind(character: str) -> str:
    if character.isspace() and character not in "\x1c\x1d\x1e\x1f":
        return "space"
    return _KINDS.get(unicodedata.category(character)[0], "other")


def split(text: str) -> Iterator[str]:
    """The pieces that are merged on their own, as Qwen's pattern cuts them.

    Short forms behind an apostrophe; letters with one other character before them; single numbers;
    marks with a space before and line ends behind; white space up to a line end; white space, whose
    last character is left to what follows.
    """
    at, kinds = 0, [_kind(character) for character in text]

    def run(start: int, kind: str) -> int:
        while start < len(text) and kinds[start] == kind:
            start += 1
        return start

    while at < len(text):
        end = _piece(text, kinds, at, run)
        yield text[at:end]
        at = end


def _piece(text: str, kinds: list[str], at: int, run: Any) -> int:
    """Where the piece that starts at ``at`` ends."""
    lowered = text[at : at + 3].lower()
    short = next((form for form in _SHORT if lowered.startswith(form)), "")
    if short:
        return at + len(short)
    kind, line = kinds[at], text[at] in "\r\n"
    if kind == "letter":
        return int(run(at, "letter"))
    following = kinds[at + 1] if at + 1 < len(text) else ""
    if kind != "number" and not line and following == "letter":
        return int(run(at + 1, "letter"))
    if kind == "number":
        return at + 1
    marks = at + 1 if text[at] == " " and following == "other" else at
    if kinds[marks] == "other":
        end = int(run(marks, "other"))
        while end < len(text) and text[end] in "\r\n":
            end += 1
        return end
    end = int(run(at, "space"))
    breaks = [place for place in range(at, end) if text[place] in "\r\n"]
    if breaks:
        return breaks[-1] + 1
    return end if end == len(text) or end - at == 1 else end - 1
