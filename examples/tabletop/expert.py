"""The expert: where to move next, from any state, without memory.

It knows what a camera shows (where the tool and the block are) and nothing of the past, so that a
policy which sees the same can learn it: rise where the table is not free, go above the spot behind
the block, down, and along.
"""

from __future__ import annotations

import numpy as np

from .episode import TabletopEpisode
from .layout import SIDES, Array
from .robot import ARM, DT_S, HORIZON
from .scene import Kinematics

TRAVEL, LOW = 0.10, 0.012  # heights of the fingertips, metres
BEHIND = 0.07  # of the block's centre, where the tool comes down, metres
CONTACT = 0.0295  # of the block's centre, where a finger touches it, metres
LANE = (-0.095, -0.02, 0.020)  # where to push: from, to and to both sides of the centre, metres
EDGE = 0.32  # pushing ends so far to a side, metres
_SPEED, _RISE, _PUSH, _CLOSE = 0.18, 0.18, 0.08, 0.04  # m/s
_FREE, _CONE = 0.012, 0.05  # radii around the spot behind: of coming down, of starting to, metres
# The joints follow their targets by so much later; a plan begins that far ahead.
_LEAD_S, _STEP_S = 0.04, 0.02


class Expert:
    """Plans for the episodes of one scene."""

    def __init__(self, episode: TabletopEpisode) -> None:
        self._kinematics = Kinematics(episode.scene)

    def plan(self, episode: TabletopEpisode) -> Array:
        """Joint targets of the next second: [10, 7] float64, radians and metres.

        Row ``i`` is due ``i * 0.1`` s from now. The block is taken to go with the tool that touches
        it.
        """
        direction = SIDES[episode.layout.side]
        block = episode.scene.block(episode.data, episode.layout.colour)[:2]
        joints = episode.scene.joints(episode.data)
        arm, gripper = joints[:ARM], float(joints[ARM])
        rows = []
        lead, between = round(_LEAD_S / _STEP_S), round(DT_S / _STEP_S)
        for step in range(lead + between * (HORIZON - 1) + 1):
            if step >= lead and (step - lead) % between == 0:
                rows.append(np.append(arm, gripper))
            tool, off = self._kinematics.tool(arm)
            block = _carried(block, tool, direction)
            turn = np.clip(-off, -1.5 * _STEP_S, 1.5 * _STEP_S)
            arm = self._kinematics.step(arm, velocity(tool, block, direction) * _STEP_S, turn)
            gripper = max(gripper - _CLOSE * _STEP_S, 0.0)
        return np.array(rows)

    def shifted(self, arm: Array, move: Array, turn: Array) -> Array:
        """Joints [6] with the tool moved by ``move`` [3] metres and turned by ``turn`` [3] radians,
        to first order.
        """
        self._kinematics.tool(arm)
        return self._kinematics.step(arm, move, turn)


def velocity(tool: Array, block: Array, direction: float) -> Array:
    """How the fingertips should move now: [3] m/s.

    Args:
        tool: [3] of the fingertips, metres.
        block: [2] centre of the named block, metres.
        direction: sign of y to push to.
    """
    along, across = (tool[1] - block[1]) * direction, tool[0] - block[0]
    height = tool[2]
    begin, end, side = LANE
    if height < LOW + 0.012 and begin < along < end and abs(across) < side:
        speed = _PUSH if tool[1] * direction < EDGE else 0.0
        return np.array([-2.5 * across, speed * direction, _vertical(LOW - height)])
    gap = np.array([-across, -(along + BEHIND) * direction])  # to the spot behind the block
    distance = float(np.linalg.norm(gap))
    wanted = LOW + (TRAVEL - LOW) * np.clip((distance - _FREE) / (_CONE - _FREE), 0.0, 1.0)
    # Too low to pass over blocks: rise first, and go the faster the freer the way.
    free = np.clip(1.0 - (wanted - height - 0.01) / 0.03, 0.0, 1.0)
    speed = min(4.0 * distance, _SPEED) * free
    sideways = gap / max(distance, 1e-6) * speed
    return np.array([sideways[0], sideways[1], _vertical(wanted - height)])


def _vertical(gap: float) -> float:
    return float(np.clip(5.0 * gap, -_RISE, _RISE))


def _carried(block: Array, tool: Array, direction: float) -> Array:
    """The block where the tool has pushed it."""
    along, across = (tool[1] - block[1]) * direction, tool[0] - block[0]
    pushed = along + CONTACT
    if tool[2] < 0.04 and abs(across) < 0.04 and 0.0 < pushed < CONTACT:
        return np.array([block[0], block[1] + pushed * direction])
    return block
