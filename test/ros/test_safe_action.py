"""The safe action over DDS: in time for every cause, said once, and over when its cause is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import Decide
from sensor_msgs.msg import JointState

from flashrt_ros.stamps import to_ns

from .controllers import Controllers, positions, stops
from .harness import ACTIVATE, DEACTIVATE, Robot, joint_state, wait_until
from .test_outputs import schedule_of

pytestmark = [pytest.mark.ros, pytest.mark.timed]
MS = 1_000_000
PERIOD_NS = 20 * MS
# What a loaded machine of two cores may add to a control period, at most.
MARGIN_NS = 25 * MS
# Long enough for a busy machine that brings late what is sent 30 times a second.
MAX_AGE_NS = 500 * MS
# A chunk covers 0.4 s; decisions come ten times a second.
RUN = {
    "rate_hz": 10.0,
    "horizon": 8,
    "action__dt_s": 0.05,
    "output__rate_hz": 50.0,
    "camera__front__max_age_s": MAX_AGE_NS * 1e-9,
    "joints__max_age_s": MAX_AGE_NS * 1e-9,
    "disturbed": True,
}
TRAJECTORY = {"output__trajectory__topic": "trajectory", "safe__action": "stop_trajectory"}


class Workcell:
    """A robot under trajectories, and its controllers."""

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self.heard = Controllers(robot)
        robot.bring_up()
        robot.feed("front", "joints")

    def settle(self) -> None:
        """Undisturbed, and running."""
        self.robot.disturbance.order()
        self.robot.feeding = {"front", "joints"}
        self.robot.wait_value("execution", "state", "running")
        self.heard.wait_heard("trajectories", 2)

    def next_stop(self) -> Any:
        """The next trajectory that stops the robot."""
        seen = len(self.heard.trajectories)

        def found() -> Any:
            later = [h.message for h in self.heard.trajectories[seen:]]
            return next((message for message in later if stops(message)), None)

        return wait_until(found, 10.0, lambda: f"a stop in:\n{self.robot.target.log}")

    def causes(self) -> dict[str, int]:
        """How often each cause took the safe action."""
        part = self.robot.fresh_part("execution")
        return {k[5:]: int(v) for k, v in part.items() if k.startswith("safe.")}


@pytest.fixture(scope="module")
def cell(start_for_all: Callable[..., Robot]) -> Iterator[Workcell]:
    workcell = Workcell(start_for_all(**RUN, **TRAJECTORY))
    yield workcell
    assert workcell.robot.target.stop() == 0
    assert "unexpected exception" not in workcell.robot.target.log


@pytest.mark.parametrize("disturbance", [{"busy_s": 1.0}, {"lose": True}], ids=str)
def test_a_schedule_that_runs_out_stops_the_robot_within_a_control_period(
    cell: Workcell, disturbance: dict[str, Any]
) -> None:
    """A decision that takes ten times its period, or never arrives, delays nothing."""
    for _ in range(3):
        cell.settle()
        before = cell.causes()
        if "busy_s" in disturbance:
            cell.robot.disturbance.order(**disturbance)
            stop = cell.next_stop()
            done = [c for c in cell.robot.chunks if to_ns(c.generated) < to_ns(stop.header.stamp)]
        else:
            done = list(cell.robot.chunks)
            cell.robot.disturbance.order(**disturbance)
            stop = cell.next_stop()
            # A chunk was perhaps under way when the order came.
            ends = [t.message for t in cell.heard.trajectories if not stops(t.message)]
            last = to_ns(ends[-1].header.stamp) + to_ns(ends[-1].points[-1].time_from_start)
            done = [c for c in cell.robot.chunks if schedule_of(c).due_ns(7) == last]
        late_ns = to_ns(stop.header.stamp) - schedule_of(done[-1]).end_ns
        assert 0 <= late_ns <= PERIOD_NS + MARGIN_NS, f"{late_ns / MS} ms"
        assert list(stop.points[0].positions) == [0.25] * 3, "where the joints are"
        assert to_ns(stop.points[0].time_from_start) == 100 * MS
        after = cell.causes()
        assert after == before | {"exhausted": before["exhausted"] + 1}
        assert cell.robot.levels["policy: execution"][0] == 2
    cell.settle()
    cell.robot.wait_log("execution (exhausted): over")


def test_a_stale_input_stops_the_robot_within_a_control_period(cell: Workcell) -> None:
    cell.settle()
    before = cell.causes()
    cell.robot.feeding = {"joints"}
    stop = cell.next_stop()
    late_ns = to_ns(stop.header.stamp) - cell.robot.stamps_ns["front"] - MAX_AGE_NS
    assert 0 < late_ns <= PERIOD_NS + MARGIN_NS, f"{late_ns / MS} ms"
    assert cell.causes() == before | {"stale": before["stale"] + 1}
    cell.settle()


def test_joints_that_are_stale_themselves_are_not_the_place_to_stop_at(cell: Workcell) -> None:
    cell.settle()
    cell.robot.feeding = {"front"}
    stop = cell.next_stop()
    assert list(stop.points[0].positions) != [0.25] * 3
    done = "a trajectory stops at the commanded position"
    cell.robot.wait_value("execution", "last_action", done)
    assert "input 'joints'" in cell.robot.levels["policy: execution"][1]
    cell.settle()


@pytest.mark.parametrize("disturbance", ["fail", "nan"])
def test_a_failed_decision_stops_the_robot_before_the_chunk_is_over(
    cell: Workcell, disturbance: str
) -> None:
    cell.settle()
    before, chunks = cell.causes(), len(cell.robot.chunks)
    cell.robot.disturbance.order(**{disturbance: True})
    stop = cell.next_stop()
    done = [c for c in cell.robot.chunks if to_ns(c.generated) < to_ns(stop.header.stamp)]
    # The next decision begins, and fails, within 0.1 s of the last chunk, which covers 0.4 s.
    assert to_ns(stop.header.stamp) < schedule_of(done[-1]).end_ns - 100 * MS
    answer = cell.robot.decide()
    assert answer.error_code == Decide.Response.NUMERICS
    assert cell.causes() == before | {"failed": before["failed"] + 1}
    cell.settle()
    for chunk in cell.robot.chunks[chunks:]:
        assert np.isfinite(chunk.data).all()
    assert all(np.isfinite(positions(h.message)).all() for h in cell.heard.trajectories)


@pytest.mark.jazzy
def test_leaving_the_active_state_stops_the_robot(cell: Workcell) -> None:
    cell.settle()
    assert cell.robot.change(DEACTIVATE)
    last = wait_until(lambda: (m := cell.heard.trajectories[-1].message) and stops(m) and m)
    assert list(last.points[0].positions) == [0.25] * 3
    seen = len(cell.heard.trajectories)
    cell.robot.wait_value("execution", "state", "off")
    assert len(cell.heard.trajectories) == seen, "nothing more"
    assert cell.robot.change(ACTIVATE)
    cell.settle()


def test_a_controller_that_falls_silent_is_lost_at_once(start: Callable[..., Robot]) -> None:
    timeout_ns = 100 * MS
    robot = start(
        **RUN,
        **TRAJECTORY,
        safe__controller_timeout_s=timeout_ns * 1e-9,
        safe__controller_state__topic="wrist_joints",
        safe__controller_state__type="sensor_msgs/msg/JointState",
    )
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front", "joints")
    robot.connect({"wrist_joints": JointState})
    with robot.publishing("wrist_joints", joint_state):
        robot.wait_value("execution", "state", "running")
        heard.wait_heard("trajectories", 3)
    silent_ns = robot.stamps_ns["wrist_joints"]
    stop = wait_until(lambda: (m := heard.trajectories[-1].message) and stops(m) and m)
    late_ns = to_ns(stop.header.stamp) - silent_ns - timeout_ns
    assert 0 < late_ns <= PERIOD_NS + MARGIN_NS, f"{late_ns / MS} ms"
    robot.wait_log("the controller's state (wrist_joints) is silent for 0.1 s")
    assert robot.target.stop() == 0


def test_measured_positions_are_sent_in_the_order_of_the_actions(
    start: Callable[..., Robot],
) -> None:
    names = ["wrist", "shoulder", "elbow"]  # the joints are shoulder, elbow, wrist
    where = {"extra": 9.0, "elbow": 0.5, "wrist": 0.125, "shoulder": -0.25}
    robot = start(**RUN, **TRAJECTORY, action__names=names)
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front")
    robot.connect({"joints": JointState})
    with robot.publishing("joints", lambda: joint_state(where)):
        heard.wait_heard("trajectories", 2)
        assert robot.change(DEACTIVATE)
    stop = wait_until(lambda: (m := heard.trajectories[-1].message) and stops(m) and m)
    assert list(stop.joint_names) == names
    assert list(stop.points[0].positions) == [where[name] for name in names]
    assert robot.target.stop() == 0


def test_a_lost_controller_is_noticed_and_held_commands_go_on(
    start: Callable[..., Robot],
) -> None:
    robot = start(**RUN, output__commands__topic="commands", safe__controller_timeout_s=0.2)
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front", "joints")
    heard.wait_heard("commands", 20)
    heard.leave()
    robot.wait_value("execution", "cause", "controller")
    robot.wait_log("no controller listens on")
    back = Controllers(robot)
    robot.wait_value("execution", "state", "running")
    back.wait_heard("commands", 20)
    # Held commands: the same values, at the control rate, while decisions fail.
    robot.disturbance.order(fail=True)
    robot.wait_value("execution", "cause", "failed")
    seen = len(back.commands)
    back.wait_heard("commands", 30)
    held = [list(h.message.data) for h in back.commands[seen:]]
    assert all(values == held[0] for values in held)
    gaps = np.diff([h.at_ns for h in back.commands[seen:]]) / MS
    assert np.median(gaps) == pytest.approx(20.0, abs=2.0)
    assert robot.target.log.count("no controller listens on") == 1
    assert robot.target.stop() == 0


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.jazzy), signal.SIGTERM]
)
def test_a_process_that_is_told_to_end_stops_the_robot_first(
    start: Callable[..., Robot], number: signal.Signals
) -> None:
    # On a busy machine inputs would be late, and the robot stopped before it is told to.
    patient = {"camera__front__max_age_s": 5.0, "joints__max_age_s": 5.0}
    cell = Workcell(start(**{**RUN, **patient}, **TRAJECTORY))
    cell.settle()
    assert cell.robot.target.stop(number) == 0
    wait_until(lambda: stops(cell.heard.trajectories[-1].message))
    assert "the node leaves the active state" in cell.robot.target.log
