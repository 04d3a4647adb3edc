"""Jumps of the node's clock: who is told, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.clock import ClockChange, JumpThreshold, TimeJump
from rclpy.duration import Duration

from flashrt_core.engine import Engine
from flashrt_core.session import Session
from flashrt_core.snapshots import forget_stamps
from flashrt_ros.decider import Decider
from flashrt_ros.eras import Eras
from flashrt_ros.inputs import AHEAD_NS


def on_jumps(node: Any, eras: Eras, callback: Callable[[TimeJump], None]) -> Callable[[], None]:
    """Have ``callback`` told of jumps back and changes of the clock; what ends that.

    An era ends before the clock shows another time, and once more when it does: what begins between
    may have looked at either.
    """

    def jumped(found: TimeJump) -> None:
        eras.end()
        callback(found)

    jump = JumpThreshold(
        min_forward=None, min_backward=Duration(nanoseconds=-AHEAD_NS), on_clock_change=True
    )
    clock = node.get_clock()
    handle = clock.create_jump_callback(jump, pre_callback=eras.end, post_callback=jumped)
    unregister: Callable[[], None] = handle.unregister
    return unregister


def forget(decider: Decider, engine: Engine[Session]) -> None:
    """On the inference thread: how old what is retained is, is no longer known, nor, where
    decisions build on each other, when the rows of a chunk end.
    """
    forget_stamps(engine)
    for name in tuple(decider.episodes):
        decider.begin_anew(name)


def told(jump: TimeJump, paced: bool) -> str:
    """The line for the log; ``paced``: whether a timer paces decisions."""
    changes = {
        ClockChange.ROS_TIME_ACTIVATED: "changed to /clock (use_sim_time was set)",
        ClockChange.ROS_TIME_DEACTIVATED: "changed to system time (use_sim_time was unset)",
    }
    change = changes.get(jump.clock_change)
    what = change or f"jumped by {jump.delta.nanoseconds * 1e-9:.3f} s"
    pace = "; decisions are paced as before until the next activation"
    return f"the node's clock {what}; samples so far are forgotten" + (
        pace if change and paced else ""
    )
