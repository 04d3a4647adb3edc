"""Nanoseconds to and from the time and duration messages, and to words."""

from __future__ import annotations

from typing import Any

from builtin_interfaces.msg import Duration, Time

SECOND = 1_000_000_000


def to_ns(message: Any) -> int:
    """Nanoseconds of a Time or Duration message."""
    return int(message.sec) * SECOND + int(message.nanosec)


def time_message(ns: int) -> Any:
    """Time message of ``ns`` nanoseconds."""
    sec, nanosec = divmod(ns, SECOND)
    return Time(sec=sec, nanosec=nanosec)


def duration_message(ns: int) -> Any:
    """Duration message of ``ns`` nanoseconds; negative ones have sec < 0 and nanosec >= 0."""
    sec, nanosec = divmod(ns, SECOND)
    return Duration(sec=sec, nanosec=nanosec)


def in_seconds(ns: int) -> str:
    """``1.234 s``."""
    return f"{ns / SECOND:.3f} s"
