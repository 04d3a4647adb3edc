"""The state of execution: what goes out, and when the safe action is taken instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from flashrt_ros.execution.chunk import Chunk
from flashrt_ros.execution.machine import IDLE, OFF, RUNNING, SAFE, Cause, Facts, Machine
from flashrt_ros.parameters import build_config

MS = 1_000_000
NOW = 1_760_000_000_123_456_789
MINIMAL: dict[str, Any] = {
    "cameras": ["front"],
    "camera.front.topic": "image",
    "joints.names": ["a", "b"],
    "execution.interpolation": "hold",
}
COMMANDS = MINIMAL | {"output.commands.topic": "commands"}
TRAJECTORY = MINIMAL | {"output.trajectory.topic": "trajectory"}
AT = Facts(measured=np.array([0.5, -0.5]))


class Robot:
    """A machine, what it sent, and what it said."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.said: list[str] = []
        config = build_config(parameters).execution
        self.machine = Machine(config, self, self._on_safe, lambda: self.said.append("running"))
        self.machine.start()

    def command(self, now_ns: int, values: np.ndarray) -> None:
        assert np.isfinite(values).all()
        self.sent.append(("command", values.tolist()))

    def trajectory(self, now_ns: int, points: Sequence[tuple[int, np.ndarray]]) -> None:
        assert all(np.isfinite(p).all() for _, p in points)
        self.sent.append(("trajectory", [((t - now_ns) // MS, p.tolist()) for t, p in points]))

    def stop(self, now_ns: int, position: np.ndarray) -> None:
        assert np.isfinite(position).all()
        self.sent.append(("stop", position.tolist()))

    def _on_safe(self, cause: Cause, done: str) -> None:
        self.said.append(f"{cause.name}: {done}")

    def take(
        self, at_ms: float, values: list[float], begin_ms: float = 0.0, facts: Facts = AT
    ) -> None:
        """A chunk of 20 ms rows (value, -value) whose row 0 is due at ``begin_ms``."""
        rows = np.array([[v, -v] for v in values])
        self.machine.take(
            Chunk(NOW + int(begin_ms * MS), 20 * MS, rows), NOW + int(at_ms * MS), facts
        )

    def tick(self, at_ms: float, facts: Facts = AT) -> list[tuple[Any, ...]]:
        """What one control period sends."""
        self.sent.clear()
        self.machine.tick(NOW + int(at_ms * MS), facts)
        return list(self.sent)

    def safe(self) -> dict[str, int]:
        return dict(self.machine.counters.safe)


def test_nothing_is_sent_and_nothing_reported_before_the_first_chunk() -> None:
    robot = Robot(COMMANDS)
    blind = Facts(stale="input 'front' has received nothing")
    assert robot.tick(0, blind) == [] and robot.tick(10) == []
    robot.machine.fail("failed", "no")
    assert robot.tick(20) == []
    assert robot.machine.state == IDLE and robot.said == []


def test_commands_are_the_rows_that_are_due_and_then_the_last_one_is_held() -> None:
    robot = Robot(COMMANDS)
    robot.take(25, [1.0, 2.0, 3.0])
    assert robot.sent == [], "commands leave at ticks"
    assert robot.tick(30) == [("command", [2.0, -2.0])]
    assert robot.tick(40) == [("command", [3.0, -3.0])]
    assert robot.tick(59) == [("command", [3.0, -3.0])]
    assert robot.machine.state == RUNNING and robot.said == []
    assert robot.tick(60) == [("command", [3.0, -3.0])], "held"
    assert robot.machine.state == SAFE
    assert robot.tick(70) == [("command", [3.0, -3.0])]
    assert robot.said == ["exhausted: the last command is held"], "said once"
    assert robot.safe() == {"exhausted": 1}
    robot.take(75, [4.0] * 5, begin_ms=70)
    assert robot.tick(80) == [("command", [4.0, -4.0])]
    assert robot.said[1:] == ["running"]
    counters = robot.machine.counters
    assert (counters.chunks, counters.skipped_rows, counters.late_chunks) == (2, 1, 0)
    assert counters.commands == 6


@pytest.mark.parametrize(
    ("facts", "failure", "cause"),
    [
        (Facts(stale="joints are 1 s old"), None, "stale"),
        (Facts(controller="nobody on commands"), None, "controller"),
        (AT, "failed", "failed"),
        (AT, "stale", "stale"),
    ],
)
def test_a_fault_takes_the_safe_action_at_the_next_tick_whatever_is_scheduled(
    facts: Facts, failure: str | None, cause: str
) -> None:
    robot = Robot(COMMANDS | {"safe.action": "stop"})
    robot.take(0, [1.0] * 50)
    assert robot.tick(10)
    if failure:
        robot.machine.fail(failure, "by design")
    assert robot.tick(20, facts) == [] and robot.tick(30, facts) == []
    assert robot.said == [f"{cause}: publishing is stopped"]
    assert robot.tick(40) == [], "the old chunk is not gone on with"
    robot.take(50, [2.0] * 50, begin_ms=40)
    assert robot.tick(60) == [("command", [2.0, -2.0])]
    assert robot.said[1:] == ["running"] and robot.safe() == {cause: 1}


def test_causes_that_are_not_asked_for_wait_until_the_schedule_runs_out() -> None:
    robot = Robot(COMMANDS | {"safe.causes": []})
    robot.take(0, [1.0, 2.0])
    robot.machine.fail("failed", "by design")
    assert robot.tick(30, Facts(stale="old")) == [("command", [2.0, -2.0])]
    robot.tick(40)
    assert robot.said == ["exhausted: the last command is held"]


def test_a_chunk_made_before_a_fault_is_over_is_not_executed() -> None:
    robot = Robot(COMMANDS | {"safe.action": "stop"})
    robot.take(0, [1.0] * 50)
    robot.tick(0)
    stale = Facts(stale="old")
    robot.tick(10, stale)
    robot.take(15, [2.0] * 50)
    assert robot.tick(20, stale) == []
    assert robot.tick(30) == [], "it was dropped, not kept"
    assert robot.said == ["stale: publishing is stopped"]


def test_a_trajectory_has_the_rows_to_come_at_their_times() -> None:
    robot = Robot(TRAJECTORY)
    robot.take(25, [1.0, 2.0, 3.0, 4.0])
    assert robot.sent == [("trajectory", [(15, [3.0, -3.0]), (35, [4.0, -4.0])])]
    assert robot.tick(30) == [], "sent once"
    robot.sent.clear()
    # Row 2 is due in 5 ms, sooner than the controller looks again.
    robot.take(35, [1.0, 2.0, 3.0, 7.0])
    assert robot.sent == [("trajectory", [(25, [7.0, -7.0])])]
    assert robot.tick(79) == []
    assert robot.tick(80) == [("stop", [7.0, -7.0])]
    assert robot.said == ["exhausted: a trajectory stops at the commanded position"]
    assert robot.tick(90) == []


def test_a_trajectory_stops_where_the_controller_is_or_where_the_robot_is() -> None:
    for action, expected, where in (
        ("hold", [0.75, -0.75], "commanded"),
        ("stop_trajectory", [0.5, -0.5], "measured"),
    ):
        robot = Robot(TRAJECTORY | {"safe.action": action})
        robot.take(0, [0.0, 1.0, 2.0])
        assert robot.tick(10, Facts(AT.measured, stale="old")) == [("stop", expected)]
        assert robot.said == [f"stale: a trajectory stops at the {where} position"]
    robot.take(20, [0.0, 1.0, 2.0])
    robot.sent.clear()
    robot.tick(30, Facts(None, stale="old"))
    # It had 10 ms of the 100 ms from 0.75 to 0.5, then 10 ms of the 20 ms to 2.
    assert robot.sent == [("stop", [pytest.approx(1.3625), pytest.approx(-1.3625)])]
    assert robot.said[-1] == "stale: a trajectory stops at the commanded position", "and says so"


def test_steps_are_limited_from_where_the_robot_is_and_counted_by_joint() -> None:
    robot = Robot(COMMANDS | {"limits.max_step": [0.1, 10.0]})
    robot.take(0, [1.0] * 10)
    assert robot.tick(0) == [("command", [pytest.approx(0.6), -1.0])]
    assert robot.tick(10) == [("command", [pytest.approx(0.7), -1.0])]
    assert robot.machine.counters.beyond_step.tolist() == [2, 0]
    assert robot.machine.counters.beyond_range.tolist() == [0, 0]


def test_a_trajectory_is_limited_in_proportion_to_its_times() -> None:
    limits = {"limits.max_step": [0.1, 0.1], "limits.upper": [0.9, 9.0]}
    robot = Robot(TRAJECTORY | limits)
    robot.take(0, [0.0, 5.0, 5.0, 5.0, 5.0])
    ((_, points),) = robot.sent
    # Three of the four periods to the first point may go by before the controller moves.
    assert [t for t, _ in points] == [40, 60, 80]
    assert [p[0] for _, p in points] == pytest.approx([0.6, 0.8, 0.9])
    assert [p[1] for _, p in points] == pytest.approx([-0.6, -0.8, -1.0])
    assert robot.machine.counters.beyond_range.tolist() == [3, 0]
    assert robot.machine.counters.beyond_step.tolist() == [2, 3]
    robot.sent.clear()
    # The next one begins where the controller is by then: a quarter of the way to the first point.
    robot.take(10, [-5.0] * 5)
    ((_, points),) = robot.sent
    assert points[0] == (50, pytest.approx([0.325, -0.325]))


def test_a_violated_limit_may_stop_until_the_next_activation() -> None:
    robot = Robot(COMMANDS | {"limits.upper": [2.0, 9.0], "limits.on_violation": "stop"})
    robot.take(0, [1.0, 3.0, 1.0, 1.0])
    assert robot.tick(10) == [("command", [1.0, -1.0])]
    assert robot.tick(20) == [("command", [1.0, -1.0])], "3 does not leave"
    assert robot.said == ["limit: the last command is held"]
    assert robot.machine.cause == Cause("limit", "limits are violated: range of a")
    robot.take(40, [1.5] * 9, begin_ms=40)
    assert robot.tick(50) == [("command", [1.0, -1.0])], "a good chunk does not end it"
    robot.machine.start()
    robot.take(60, [1.5] * 9, begin_ms=60)
    assert robot.tick(70) == [("command", [1.5, -1.5])]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("outputs", [COMMANDS, TRAJECTORY])
def test_no_value_that_is_not_finite_leaves(outputs: dict[str, Any], bad: float) -> None:
    robot = Robot(outputs)
    robot.take(0, [1.0, bad, 1.0])
    assert robot.tick(0) == [] and robot.machine.state == IDLE
    robot.take(10, [1.0] * 9)
    robot.tick(10)
    robot.take(15, [1.0, bad, 1.0])
    assert robot.machine.state == SAFE and robot.safe() == {"failed": 1}
    robot.tick(20)
    robot.take(20, [1.0] * 9, begin_ms=20)
    robot.tick(30)
    assert robot.machine.state == RUNNING


def test_velocities_begin_and_end_at_rest() -> None:
    robot = Robot(COMMANDS | {"action.kind": "velocity", "limits.max_step": [0.25, 0.25]})
    robot.take(0, [1.0] * 4)
    assert robot.tick(0) == [("command", [0.25, -0.25])]
    assert robot.tick(10) == [("command", [0.5, -0.5])]
    assert robot.tick(80) == [("command", [0.0, 0.0])], "hold is to stand still"


def test_a_controller_that_comes_back_is_met_where_the_robot_is() -> None:
    robot = Robot(COMMANDS | {"limits.max_step": [0.1, 0.1]})
    robot.take(0, [0.5] * 50)
    robot.tick(0)
    robot.tick(10, Facts(AT.measured, controller="nobody"))
    robot.take(20, [0.5] * 50, begin_ms=20)
    moved = Facts(np.array([-2.0, 2.0]))
    assert robot.tick(20, moved) == [("command", [pytest.approx(-1.9), pytest.approx(1.9)])]


LIMITED = {"limits.max_step": [0.1, 0.1]}
MOVED = Facts(np.array([-1.0, 1.0]))  # by hand, 1.5 from AT


@pytest.mark.parametrize(
    ("outputs", "action"),
    [
        (COMMANDS, "stop"),
        (COMMANDS | TRAJECTORY, "stop"),
        (COMMANDS | TRAJECTORY, "stop_trajectory"),
    ],
)
def test_commands_that_ended_go_on_from_where_the_robot_is_then(
    outputs: dict[str, Any], action: str
) -> None:
    robot = Robot(outputs | LIMITED | {"safe.action": action})
    robot.take(0, [0.5] * 50)
    assert ("command", [0.5, -0.5]) in robot.tick(10)
    robot.tick(20, Facts(AT.measured, stale="old"))
    robot.tick(30, Facts(MOVED.measured, stale="old"))
    robot.take(40, [0.5] * 50, begin_ms=40, facts=MOVED)
    expected = ("command", [pytest.approx(-0.9), pytest.approx(0.9)])
    assert expected in robot.tick(50, MOVED)


def test_trajectories_that_ended_go_on_from_where_the_robot_is_then() -> None:
    robot = Robot(TRAJECTORY | LIMITED | {"safe.action": "stop"})
    robot.take(0, [0.5] * 50)
    robot.tick(20, Facts(AT.measured, stale="old"))
    robot.sent.clear()
    robot.take(40, [0.5] * 50, begin_ms=40, facts=MOVED)
    ((_, points),) = robot.sent
    assert points[0] == (40, [pytest.approx(-0.9), pytest.approx(0.9)])


@pytest.mark.parametrize("action", ["hold", "stop_trajectory"])
def test_a_robot_moved_while_it_was_held_goes_on_from_where_it_is(action: str) -> None:
    robot = Robot(TRAJECTORY | LIMITED | {"safe.action": action})
    robot.take(0, [0.5] * 50)
    assert robot.tick(20, Facts(AT.measured, stale="old")) == [("stop", [0.5, -0.5])]
    robot.tick(219, Facts(MOVED.measured, stale="old"))
    robot.sent.clear()
    robot.take(220, [0.5] * 50, begin_ms=220, facts=Facts(None))
    assert robot.sent == [], "not without a measured position"
    robot.take(240, [0.5] * 50, begin_ms=240, facts=MOVED)
    ((_, points),) = robot.sent
    assert points[0] == (40, [pytest.approx(-0.9), pytest.approx(0.9)])


@pytest.mark.parametrize("action", ["stop", "stop_trajectory"])
def test_commands_that_ended_wait_for_a_measured_position(action: str) -> None:
    robot = Robot(COMMANDS | TRAJECTORY | LIMITED | {"safe.action": action, "safe.causes": []})
    robot.take(0, [0.5] * 2)
    robot.tick(10)
    robot.tick(40)
    robot.take(50, [0.9] * 50, begin_ms=50, facts=Facts(None))
    assert robot.tick(60, Facts(None)) == []
    assert robot.said[-1] == "stale: "


def test_a_controller_lost_during_another_fault_is_met_where_the_robot_is() -> None:
    robot = Robot(COMMANDS | LIMITED)
    robot.take(0, [0.5] * 50)
    robot.tick(0)
    robot.tick(10, Facts(AT.measured, stale="old"))
    assert robot.tick(20, Facts(AT.measured, controller="nobody")) == []
    robot.take(30, [0.5] * 50, begin_ms=30)
    assert robot.tick(30, MOVED) == [("command", [pytest.approx(-0.9), pytest.approx(0.9)])]


def test_without_a_position_to_begin_from_limited_steps_wait() -> None:
    robot = Robot(COMMANDS | {"limits.max_step": [0.1, 0.1], "safe.causes": []})
    robot.take(0, [0.5] * 50)
    assert robot.tick(0, Facts(None)) == []
    assert robot.safe() == {"stale": 1}


def test_leaving_the_active_state_takes_the_safe_action() -> None:
    robot = Robot(TRAJECTORY | {"safe.action": "stop_trajectory"})
    robot.machine.finish(NOW, AT, "idle")
    assert robot.sent == [], "nothing was commanded"
    robot.machine.start()
    robot.take(0, [1.0] * 9)
    robot.sent.clear()
    robot.machine.finish(NOW + 5 * MS, AT, "deactivated")
    assert robot.sent == [("stop", [0.5, -0.5])] and robot.machine.state == OFF
    robot.sent.clear()
    robot.take(10, [1.0] * 9)
    assert robot.tick(20) == [] and robot.sent == []


def test_a_jump_of_the_clock_ends_the_schedule() -> None:
    robot = Robot(TRAJECTORY)
    robot.take(0, [1.0] * 9)
    robot.machine.forget()
    assert robot.tick(10) == [("stop", [0.5, -0.5])], "what was commanded when is not known now"


def test_jumps_are_measured_at_the_hand_over() -> None:
    robot = Robot(COMMANDS)
    robot.take(0, [1.0] * 9)
    robot.tick(0)
    robot.take(10, [1.5] * 9)
    robot.take(20, [1.25] * 9)
    jumps = [jump.tolist() for jump in robot.machine.counters.jumps]
    assert jumps == [[0.5, 0.5], [0.25, 0.25]]
    assert robot.machine.counters.jump_max.tolist() == [0.5, 0.5]


def test_the_next_decision_begins_when_the_schedule_says_and_once() -> None:
    robot = Robot(COMMANDS | {"execution.replan_rows": 5, "execution.delay_s": 0.03})
    machine = robot.machine

    def due(ms: float) -> bool:
        return machine.decision_due(NOW + int(ms * MS))

    assert not machine.paces(False) and not due(0), "nothing is scheduled: the rate paces"
    robot.take(0, [1.0] * 9)
    assert machine.paces(False)
    assert not due(60), "row 5 is due at 100 ms, less 30 ms, less one period"
    assert due(60.001) and not due(80)
    assert machine.paces(True), "it runs"
    assert not machine.paces(False), "it failed: the rate paces the next one"
    robot.take(95, [1.0] * 9, begin_ms=70)
    assert machine.paces(False) and not due(100) and due(131)


def test_the_second_decision_of_an_activation_begins_in_time() -> None:
    robot = Robot(COMMANDS | {"execution.replan_rows": 5})
    robot.machine.delay.measured(60 * MS)  # the first one
    robot.take(60, [1.0] * 9)
    begun = next(ms for ms in range(60, 200, 10) if robot.machine.decision_due(NOW + ms * MS))
    assert begun == 60, "row 5 is due at 100 ms, less 60 ms: at once"
    robot.take(begun + 60, [1.0] * 9, begin_ms=begun)
    for ms in range(60, 240, 10):
        assert robot.tick(ms)
    assert robot.safe() == {}
