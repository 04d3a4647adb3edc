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
from flashrt_ros.inputs import AHEAD_NS


def on_jumps(node: Any, callback: Callable[[TimeJump], None]) -> Callable[[], None]:
    """Have ``callback`` told of jumps back and changes of the clock; what ends that."""
    jump = JumpThreshold(
        min_forward=None, min_backward=Duration(nanoseconds=-AHEAD_NS), on_clock_change=True
    )
    handle = node.get_clock().create_jump_callback(jump, post_callback=callback)
    unregister: Callable[[], None] = handle.unregister
    return unregister


def forget(decider: Decider, engine: Engine[Session]) -> None:
    """On the inference thread: how old what is retained is, is no longer known, nor, where
    decisions build on each other, when the rows of a chunk end.
    """
    forget_stamps(engine)
    if decider.episode is not None:
        decider.begin_anew()


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
