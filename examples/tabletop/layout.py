"""What a seed chooses: which blocks stand where, how the arm starts, the light, the instruction.

Left and right are those of the front camera's picture; it faces the arm, so left is -y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

COLOURS = ("red", "green", "blue", "yellow")
SIDES = {"left": -1.0, "right": 1.0}  # sign of y
INSTRUCTIONS = tuple(
    f"push the {colour} block to the {side}" for colour in COLOURS for side in SIDES
)

BLOCK = 0.045  # edge, metres
REGION = ((0.31, 0.49), (-0.14, 0.14))  # x and y of the blocks' centres, metres
APART = 0.09  # least distance of two centres, metres
# No other centre in the named block's lane: so far sideways, behind and ahead of it, metres.
LANE_SIDE, LANE_BEHIND, LANE_AHEAD = 0.072, 0.14, 0.175


@dataclass(frozen=True)
class Layout:
    """One start.

    Attributes:
        colour, side: of the instruction.
        blocks: colour -> (x, y, yaw) in metres and radians, of those on the table.
        tool: [3] where the closed fingertips start, metres.
        gripper: opening of each finger at the start, metres.
        light: direction [3] of the lamp and its brightness, 1 for the usual one.
    """

    colour: str
    side: str
    blocks: dict[str, tuple[float, float, float]]
    tool: Array
    gripper: float
    light: tuple[Array, float]

    @property
    def instruction(self) -> str:
        """What the robot is asked to do."""
        return f"push the {self.colour} block to the {self.side}"


def make_layout(seed: int) -> Layout:
    """The start of ``seed``; the same on every machine."""
    rng = np.random.default_rng([seed, 20])
    names = [COLOURS[i] for i in rng.permutation(len(COLOURS))[: rng.integers(2, 5)]]
    side = ("left", "right")[rng.integers(2)]
    low, high = np.array(REGION).T
    while True:
        spots = rng.uniform(low, high, (len(names), 2))
        if _fits(spots, SIDES[side]):
            break
    yaws = rng.uniform(-0.25, 0.25, len(names))
    tilt = rng.uniform(-0.25, 0.25, 2)
    return Layout(
        colour=names[0],
        side=side,
        blocks={
            name: (float(x), float(y), float(yaw))
            for name, (x, y), yaw in zip(names, spots, yaws, strict=True)
        },
        tool=np.array([0.37, 0.0, 0.17]) + rng.uniform(-1, 1, 3) * (0.05, 0.08, 0.03),
        gripper=float(rng.uniform(0.0, 0.015)),
        light=(np.array([-0.3 + tilt[0], 0.2 + tilt[1], -1.0]), float(rng.uniform(0.85, 1.15))),
    )


def _fits(spots: Array, direction: float) -> bool:
    """Whether blocks are apart, and the first, which is the named one, has a free lane."""
    for index, spot in enumerate(spots):
        if np.any(np.linalg.norm(spots[:index] - spot, axis=1) < APART):
            return False
    sideways = np.abs(spots[1:, 0] - spots[0, 0])
    ahead = (spots[1:, 1] - spots[0, 1]) * direction
    in_lane = (sideways < LANE_SIDE) & (ahead > -LANE_BEHIND) & (ahead < LANE_AHEAD)
    return not bool(np.any(in_lane))
