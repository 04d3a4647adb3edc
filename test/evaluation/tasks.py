"""The made-up task of these tests, and somebody who can do it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_core.evaluation.command import plan_for
from flashrt_core.evaluation.task import FoundTask, find_task
from flashrt_core.load import LoadOptions
from flashrt_core.policies.base import Observation

FOLDER = Path(__file__).parent / "point_arm"


def point_arm() -> FoundTask:
    return find_task(str(FOLDER))


def plan(**changes: Any) -> LoadOptions:
    return plan_for(point_arm(), LoadOptions(**changes))


class Draughtsman:
    """Draws the square by what it is told of the episode; shakes by the noise it is given."""

    name, fingerprint, noise_shape, stride = "draughtsman", "", (10, 2), 0

    def __init__(self, shake: float = 0.0) -> None:
        self.shake = shake
        self.seen: list[tuple[Observation, np.ndarray]] = []

    def begin(self, instruction: str) -> None:
        self.instruction = instruction

    def look(self, images: Mapping[str, np.ndarray]) -> None:
        raise AssertionError("it does not look back")

    def decide(
        self, observation: Observation, noise: Any, executed: np.ndarray | None = None
    ) -> np.ndarray:
        assert noise is not None and observation.state is not None
        self.seen.append((observation, noise))
        turns = (observation.stamp_ns // 100_000_000 + np.arange(10)) // 5 % 4
        sign = 1.0 if "left" in self.instruction else -1.0
        square = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * [sign, 1.0] * 0.4
        return (square[turns] + self.shake * noise).astype(np.float32)

    def close(self) -> None:
        self.instruction = ""
