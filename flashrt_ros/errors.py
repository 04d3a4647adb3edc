"""Errors that only a node can make. Their codes continue those of flashrt_core.errors."""

from __future__ import annotations

from flashrt_core.errors import FlashRTError

INTERNAL = 99  # error_code of an unexpected exception


class WrongStateError(FlashRTError):
    """The request is not possible in this lifecycle state."""

    code = 80


class BusyError(FlashRTError):
    """As many requests as fit are waiting already."""

    code = 81


class RequestTimeoutError(FlashRTError):
    """What was waited for did not happen in time."""

    code = 82


class StaleInputError(FlashRTError):
    """An input has no sample that a decision may use, or those of several do not fit together.

    ``inputs`` are the names of all inputs in that state; ``skewed`` says that each has a sample,
    but that they are too far apart in time.
    """

    code = 83
    inputs: tuple[str, ...] = ()
    skewed: bool = False


class ClockJumpError(StaleInputError):
    """The node's clock jumped while a decision was made: it is neither published nor executed."""
