"""Missing inputs while the node executes: a masked camera stops nobody, one that stops does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("rclpy")

from .controllers import Controllers
from .harness import Robot, wait_until

pytestmark = [pytest.mark.ros, pytest.mark.timed]


def test_a_robot_goes_on_with_a_masked_camera_and_stops_where_that_is_asked_for(
    start: Callable[..., Robot],
) -> None:
    robot = start(
        rate_hz=10.0,
        horizon=8,
        action__dt_s=0.05,
        output__rate_hz=50.0,
        output__trajectory__topic="trajectory",
        cameras=["front", "side"],
        camera__front__on_missing="stop",
        # What is sent may come late on a busy machine; what is not sent is missed all the same.
        camera__front__max_age_s=1.0,
        joints__max_age_s=1.0,
        camera__side__topic="side",
        camera__side__slot="left_wrist_0_rgb",
        camera__side__on_missing="hold",
        camera__side__max_age_s=0.3,
    )
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front", "side", "joints")
    robot.wait_value("execution", "state", "running")
    heard.wait_heard("trajectories", 2)
    robot.feed("front", "joints")
    masked = int(robot.fresh_part("decisions")["masked"])
    wait_until(lambda: int(robot.fresh_part("decisions")["masked"]) > masked + 10, 20.0, "masked")
    part = robot.fresh_part("execution")
    assert (part["state"], part["safe.stale"]) == ("running", "0")
    robot.feed("joints")
    robot.wait_value("execution", "state", "safe")
    wait_until(lambda: int(robot.fresh_part("decisions")["stopped"]) > 3, 20.0, "stopped")
    assert int(robot.fresh_part("execution")["safe.stale"]) == 1
    robot.feed("front", "side", "joints")
    robot.wait_value("execution", "state", "running")
