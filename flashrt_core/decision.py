"""What a decision gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .capsule.state import NO_STAMPS
from .errors import InputError, NumericsError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Decision:
    """The result of one action stage.

    Attributes:
        index: number of the decision in its session; with the seed it determines the noise.
        actions: [horizon, action_dim] float32, robot units; where decisions build on each other,
            the rows that are to be executed before the next one, perhaps fewer.
        raw: [horizon, padded action dim] float32, as the network gave it.
        stage_ms: milliseconds of each stage that ran.
        stamp_ns: stamp of the observation the retained context was made from.
        stamps_ns: those of its parts, as the observation told them; empty where it told none.
    """

    index: int
    actions: Array
    raw: Array
    stage_ms: dict[str, float]
    stamp_ns: int
    stamps_ns: Mapping[str, int] = field(default_factory=lambda: NO_STAMPS)


def missing(session: str, expected: str, got: str, remedy: str) -> InputError:
    """The error about something that has to come before a decision."""
    return InputError(f"session {session!r}", expected=expected, got=got, remedy=remedy)


def check_finite(raw: Array, session: str, refuse: Callable[[], None]) -> None:
    """NumericsError where an action is NaN or infinite, behind a call of ``refuse``."""
    if not np.isfinite(raw).all():
        refuse()
        row, column = np.argwhere(~np.isfinite(raw))[0]
        raise NumericsError(
            f"actions of session {session!r}",
            expected="finite values",
            got=f"{raw[row, column]} at row {row}, dimension {column}",
            remedy="check the weights and the precision plan",
        )
