"""A point on two slides that is to draw a square: a task for tests, without any simulator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flashrt_core.policies.base import Observation

STEP_S, LIMIT_S, SIZE = 0.005, 3.0, 24
CORNERS = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])


class Drawing:
    """The point follows its target with a lag; the corners are to be passed in order.

    ``success`` is all of them, ``score`` how many, how near the next one is, and the time left.
    """

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        left = bool(draw.integers(2))
        self.instruction = f"draw a square to the {'left' if left else 'right'}"
        self.corners = CORNERS * draw.uniform(0.35, 0.5) * (1.0 if left else [-1.0, 1.0])
        self.at = draw.uniform(-0.1, 0.1, 2)
        self.steps = self.passed = 0

    @property
    def time_s(self) -> float:
        return self.steps * STEP_S

    @property
    def success(self) -> bool:
        return self.passed == len(self.corners)

    @property
    def score(self) -> float:
        if self.success:
            return self.passed + LIMIT_S - self.time_s
        return self.passed - float(np.linalg.norm(self.corners[self.passed] - self.at)) / 10

    @property
    def done(self) -> bool:
        return self.success or self.steps * STEP_S >= LIMIT_S

    def observation(self) -> Observation:
        return Observation(
            {"base_0_rgb": self.picture(SIZE, SIZE)},
            self.at.astype(np.float32),
            round(self.time_s * 1e9),
        )

    def advance(self, target: np.ndarray, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.at = self.at + (np.asarray(target) - self.at) * 0.2
            self.steps += 1
            if not self.success and np.abs(self.corners[self.passed] - self.at).max() < 0.15:
                self.passed += 1

    def save(self) -> np.ndarray:
        return np.array([*self.at, self.steps, self.passed])

    def restore(self, state: np.ndarray) -> None:
        self.at, self.steps, self.passed = state[:2].copy(), int(state[2]), int(state[3])

    def picture(self, width: int, height: int) -> np.ndarray:
        pixels = np.full((height, width, 3), 60, np.uint8)
        for place, colour in ((self.corners, (200, 60, 60)), (self.at[None], (240, 240, 240))):
            for x, y in place:
                column, row = (int((1 + v) / 2 * (n - 1)) for v, n in ((x, width), (-y, height)))
                rows = slice(max(row - 1, 0), row + 2)
                pixels[rows, max(column - 1, 0) : column + 2] = colour
        return pixels

    def close(self) -> None:
        self.steps = 1 << 40  # what is closed is over


class PointArm:
    """See :class:`Drawing`."""

    name = "point_arm"
    dt_s = 0.1
    views: Mapping[str, str] = {"base_0_rgb": "front"}
    joint_names = ("slide_x", "slide_y")
    instructions = ("draw a square to the left", "draw a square to the right")

    def start(self, seed: int) -> Drawing:
        return Drawing(seed)


TASK = PointArm()
PLAN = {"checkpoint": "random:3", "preset": "tiny", "steps": 2, "threads": 1}
