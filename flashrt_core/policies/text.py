"""What policies share of text: its encoding's file, the instruction, the windows of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import InputError, OptionError
from ..files import LFS_POINTER, LFS_REMEDY
from .base import ProcessorOptions

Array = np.ndarray[Any, Any]


class EncodingFile:
    """The file of a text encoding.

    Args:
        path: as an option or a checkpoint has it; None for the one that ships.
        shipped: where that lies.
        kind: what such a file is, for messages.

    Attributes:
        name: the file, or "tiny".
    """

    def __init__(self, path: Path | None, shipped: Traversable, kind: str) -> None:
        self.name = "tiny" if path is None else str(path)
        self._place = shipped if path is None else path
        self._kind = kind

    def read(self) -> tuple[bytes, str]:
        """Its bytes and their SHA-256; OptionError where it is missing, or a pointer to it."""
        try:
            content = self._place.read_bytes()
        except OSError as error:
            raise self.unusable(f"{self.name!r} ({error.strerror or error})") from error
        if content.startswith(LFS_POINTER):
            raise self.unusable(f"{self.name!r}, a git-lfs pointer to it", LFS_REMEDY)
        return content, sha256(content).hexdigest()

    def unusable(self, got: str, remedy: str | None = None) -> OptionError:
        """The error to raise where the file turns out to be another."""
        return OptionError("option 'tokenizer'", expected=self._kind, got=got, remedy=remedy)


class Encoding(Protocol):
    """What is asked of a tokenizer here: its name, and a number that its ids are below."""

    name: str

    @property
    def vocab(self) -> int: ...


def require_rows(tokenizer: Encoding, rows: int) -> None:
    """OptionError on an encoding with more ids than the embedding table has rows."""
    if tokenizer.vocab > rows:
        raise OptionError(
            f"tokenizer {tokenizer.name!r}",
            expected=f"at most {rows} ids, rows of the embedding table",
            got=tokenizer.vocab,
        )


class Encoded(Protocol):
    """What a checkpoint says of its text encoding: the file, and whether its own is needed."""

    @property
    def tokenizer(self) -> Path | None: ...

    @property
    def trained(self) -> bool: ...


def encoding_path(
    options: ProcessorOptions, found: Encoded, origin: str, kind: str, remedy: str
) -> Path | None:
    """The option's file or the checkpoint's; None for the one that ships.

    Args:
        options, found, origin: what options and the checkpoint say, and whose format it has.
        kind, remedy: what is missing, and where it can be had, for the message.

    Raises:
        OptionError: neither, for trained weights.
    """
    path = options.tokenizer or found.tokenizer
    if path is None and found.trained:
        raise OptionError(
            "option 'tokenizer'",
            expected=kind,
            got=f"none, for an {origin} checkpoint",
            remedy=f"{remedy}; the checkpoint's folder is looked into too",
        )
    return path


def require_unicode(text: str) -> None:
    """InputError on text that no encoding takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            "prompt",
            expected="valid Unicode text",
            got=f"a lone surrogate at character {error.start}",
        ) from error


def instruction(text: str, clean: Callable[[str], str]) -> str:
    """``text`` as ``clean`` leaves it; InputError where that is nothing, or no text at all."""
    if not isinstance(text, str):
        raise InputError("prompt", expected="text", got=type(text).__name__)
    words = clean(text)
    if not words.strip():
        raise InputError("prompt", expected="an instruction", got=f"{text!r}, which is empty")
    return words


def require_room(count: int, most: int, room: str = "") -> None:
    """InputError on a prompt of more tokens than the largest bucket takes.

    ``room``: what else it has to hold, for the message.
    """
    if count > most:
        raise InputError(
            "prompt",
            expected=f"at most {most} tokens{room}",
            got=count,
            remedy="shorten the text or configure a larger prompt bucket (prompt_buckets)",
        )


def read_only(*windows: Array) -> tuple[Array, ...]:
    """The same, which nobody may write: they are handed out again."""
    for window in windows:
        window.setflags(write=False)
    return windows


def prompt_windows(
    encode: Callable[..., Sequence[int]], room: int
) -> Callable[..., tuple[Array, Array]]:
    """A function of what ``encode`` takes: token ids in their window of ``room``, and their count.

    Ids are followed by zeros; both arrays are int32 and read-only. The last 16 are kept: most
    decisions have the prompt of the last one, and a robot at rest its state.
    """

    @lru_cache(maxsize=16)
    def windows(*what: Any) -> tuple[Array, Array]:
        ids = encode(*what)
        tokens = np.zeros(room, np.int32)
        tokens[: len(ids)] = ids
        tokens, length = read_only(tokens, np.array([len(ids)], np.int32))
        return tokens, length

    return windows
