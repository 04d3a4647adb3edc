"""Between two chunks of a policy that decides where a chunk ends: no fault, up to a deadline."""

from __future__ import annotations

from typing import Any

import pytest

from flashrt_ros.execution.machine import RUNNING, SAFE

from .test_machine import COMMANDS, MS, TRAJECTORY, Robot

VELOCITIES: dict[str, Any] = COMMANDS | {"action.names": ["a", "b"], "action.kind": "velocity"}


@pytest.mark.parametrize(
    ("parameters", "sent"),
    [
        (COMMANDS, [("command", [2.0, -2.0])]),
        (VELOCITIES, [("command", [0.0, 0.0])]),
        (COMMANDS | {"safe.action": "stop"}, []),
        (TRAJECTORY, []),  # it ends at its last point
    ],
)
def test_a_gap_is_no_fault_and_what_the_safe_action_would_do_is_done(
    parameters: dict[str, Any], sent: list[Any]
) -> None:
    robot = Robot(parameters)
    robot.machine.gap_ns = 100 * MS
    robot.take(0, [1.0, 2.0])
    robot.tick(30)
    for at_ms in (40, 90, 139):
        assert robot.tick(at_ms) == sent
        assert robot.machine.state == RUNNING and robot.said == [] and robot.safe() == {}
    robot.take(139, [3.0], begin_ms=139)
    robot.tick(145)
    assert robot.machine.state == RUNNING and robot.said == []
    robot.tick(258)
    assert robot.machine.state == RUNNING
    robot.tick(260)  # the chunk ended at 159
    assert robot.machine.state == SAFE and robot.safe() == {"exhausted": 1}
    assert robot.machine.cause is not None
    assert robot.machine.cause.text.endswith("no chunk is there within 0.1 s")


def test_a_fault_in_a_gap_is_one() -> None:
    robot = Robot(COMMANDS)
    robot.machine.gap_ns = 100 * MS
    robot.take(0, [1.0])
    robot.tick(10)
    robot.machine.fail("failed", "by design")
    robot.tick(30)
    assert robot.machine.state == SAFE and robot.safe() == {"failed": 1}
