"""Whole numbers of Python, NumPy or whoever else makes some."""

from __future__ import annotations

from operator import index
from typing import Any

from .errors import FlashRTError


def whole_number(
    what: str, value: Any, error: type[FlashRTError], within: range | None = None
) -> int:
    """``value`` as a plain int; of floats, texts and truth values none is made.

    Args:
        what: the thing that ``value`` is, for the message.
        value: what was given.
        error: what to raise where it is no whole number, or out of range.
        within: what it may be; None: any.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        got = f"{value!r} ({type(value).__name__})"
        raise error(what, expected="a whole number", got=got) from None
    if within is not None and number not in within:
        raise error(what, expected=f"a number of {within[0]}..{within[-1]}", got=number)
    return number
