"""Whole numbers of Python, NumPy or whoever else makes some."""

from __future__ import annotations

from operator import index
from typing import Any

from .errors import FlashRTError


def whole_number(what: str, value: Any, error: type[FlashRTError]) -> int:
    """``value`` as a plain int; of floats, texts and truth values none is made.

    Args:
        what: the thing that ``value`` is, for the message.
        value: what was given.
        error: what to raise where it is no whole number.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)
    except TypeError:
        got = f"{value!r} ({type(value).__name__})"
        raise error(what, expected="a whole number", got=got) from None
