"""What a decision gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import NumericsError

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
    """

    index: int
    actions: Array
    raw: Array
    stage_ms: dict[str, float]
    stamp_ns: int


def check_finite(raw: Array, session: str) -> None:
    """NumericsError where an action is NaN or infinite."""
    if not np.isfinite(raw).all():
        row, column = np.argwhere(~np.isfinite(raw))[0]
        raise NumericsError(
            f"actions of session {session!r}",
            expected="finite values",
            got=f"{raw[row, column]} at row {row}, dimension {column}",
            remedy="check the weights and the precision plan",
        )
