"""Outputs beside the chunk topic, over DDS: trajectories, commands, limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter

from flashrt_ros.execution.chunk import HOLD, Chunk
from flashrt_ros.stamps import to_ns

from .controllers import Controllers, positions, stops
from .harness import CONFIGURE, JOINTS, Robot, wait_until
from .test_time import SECOND, Simulation, simulate

pytestmark = [pytest.mark.ros, pytest.mark.timed]
__all__ = ["simulate"]  # a fixture
MS = 1_000_000
# A chunk covers 0.8 s, decisions come five times a second; a busy machine brings inputs late.
RUN = {
    "rate_hz": 5.0,
    "horizon": 8,
    "action__dt_s": 0.1,
    "camera__front__max_age_s": 1.0,
    "joints__max_age_s": 1.0,
}


def schedule_of(message: object) -> Chunk:
    """The chunk of an ActionChunk."""
    rows = np.asarray(message.data, np.float64).reshape(message.horizon, message.action_dim)
    return Chunk(to_ns(message.first_action_stamp), to_ns(message.dt), rows, message.sequence)


def test_a_trajectory_is_the_part_of_a_chunk_that_is_still_to_come(
    start: Callable[..., Robot],
) -> None:
    robot = start(**RUN, output__trajectory__topic="trajectory")
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front", "joints")
    heard.wait_heard("trajectories", 8)
    chunks = {to_ns(c.first_action_stamp): schedule_of(c) for c in robot.chunks}
    for trajectory in [h.message for h in heard.trajectories]:
        assert tuple(trajectory.joint_names) == JOINTS
        stamp_ns = to_ns(trajectory.header.stamp)
        dues = [stamp_ns + to_ns(point.time_from_start) for point in trajectory.points]
        assert dues[0] > stamp_ns, "nothing in the past"
        assert {b - a for a, b in itertools.pairwise(dues)} == {100 * MS}, "exactly dt apart"
        chunk = next(c for c in chunks.values() if dues[-1] == c.due_ns(7))
        rows = chunk.rows_from(dues[0])
        assert [chunk.due_ns(row) for row in rows] == dues, "to the nanosecond"
        np.testing.assert_array_equal(positions(trajectory), chunk.rows[rows.start :])
        sooner = chunk.due_ns(rows.start - 1) if rows.start else chunk.first_ns - 100 * MS
        assert sooner < stamp_ns + 10 * MS, "none is left out that could be followed"
    part = robot.fresh_part("execution")
    assert part["state"] == "running" and part["safe_actions"] == "0"
    assert float(part["jump.elbow.max"]) > 0.0
    assert robot.target.log.count("an output sends whatever the policy says") == 1
    assert robot.target.stop() == 0


@pytest.mark.jazzy
def test_commands_are_the_rows_that_are_due_at_the_control_rate(
    start: Callable[..., Robot],
) -> None:
    robot = start(
        **RUN,
        output__commands__topic="commands",
        output__rate_hz=50.0,
        execution__interpolation=HOLD,
    )
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front", "joints")
    heard.wait_heard("commands", 100)
    commands = list(heard.commands)
    took_s = (commands[-1].at_ns - commands[0].at_ns) * 1e-9
    assert (len(commands) - 1) / took_s == pytest.approx(50.0, rel=0.1)
    rows = {tuple(row) for c in robot.chunks for row in schedule_of(c).rows}
    for command in commands:
        assert tuple(command.message.data) in rows, "a row as it is, in the order of the names"
        newest = [c for c in robot.chunks if to_ns(c.generated) < command.at_ns]
        due = [
            schedule_of(c).rows[row].tolist()
            for c in newest[-2:]
            for at_ns in (command.at_ns, command.at_ns - 30 * MS)
            if (row := schedule_of(c).row_at(at_ns)) is not None
        ]
        assert list(command.message.data) in due, "of the newest chunk, at that time"
    assert heard.trajectories == []
    assert robot.target.stop() == 0


def test_limits_hold_on_the_wire_and_are_counted_by_joint(start: Callable[..., Robot]) -> None:
    robot = start(
        **RUN,
        output__commands__topic="commands",
        output__rate_hz=50.0,
        limits__lower=[-0.05, -10.0, -10.0],
        limits__upper=[0.05, 10.0, 10.0],
        limits__max_step=[10.0, 0.01, 10.0],
    )
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front", "joints")
    heard.wait_heard("commands", 100)
    sent = np.array([list(h.message.data) for h in heard.commands])
    assert (np.abs(sent[:, 0]) <= 0.05).all()
    assert abs(sent[0, 1] - 0.25) <= 0.01 + 1e-12, "from where the joint is"
    assert (np.abs(np.diff(sent[:, 1])) <= 0.01 + 1e-12).all()
    part = robot.fresh_part("execution")
    assert int(part["clamped_range.shoulder"]) > 0 and int(part["clamped_step.elbow"]) > 0
    assert part["clamped_range.elbow"] == part["clamped_step.wrist"] == "0"
    assert robot.target.stop() == 0


def test_a_violation_may_stop_the_robot(start: Callable[..., Robot]) -> None:
    robot = start(
        **RUN,
        output__trajectory__topic="trajectory",
        limits__upper=[1e-6, 10.0, 10.0],
        limits__on_violation="stop",
        safe__action="stop_trajectory",
    )
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed("front", "joints")
    robot.wait_log("limits are violated: range of shoulder")
    robot.wait_chunks(5)
    sent = [h.message for h in heard.trajectories]
    assert stops(sent[-1]) and list(sent[-1].points[0].positions) == [0.25] * 3
    assert all((positions(t)[:, 0] <= 1e-6).all() for t in sent[:-1])
    assert robot.fresh_part("execution")["cause"] == "limit"
    assert robot.levels["policy: execution"][0] == 2
    assert robot.target.log.count("limits are violated") == 1
    assert "an output sends whatever" not in robot.target.log
    assert robot.target.stop() == 0


#: What is changed, on top of what is in front, and why the node cannot be configured then.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "parameter 'limits.max_step': expected 3 values, one of each action, got 1"),
    (
        {
            "limits.max_step": [0.1, 0.1, 0.1],
            "safe.controller_timeout_s": 0.5,
            "safe.controller_state.topic": "state",
            "safe.controller_state.type": "no_msgs/msg/State",
        },
        "expected a message of an installed package, got 'no_msgs/msg/State'",
    ),
    (
        {
            "safe.controller_timeout_s": 0.0,
            "safe.controller_state.topic": "",
            "execution.replan_rows": 4,
            "rate_hz": 5.0,
        },
        "parameter 'execution.replan_rows': expected less than 4",
    ),
    (
        {
            "execution.replan_rows": 0,
            "output.commands.topic": "",
            "output.trajectory.topic": "no topic",
        },
        "parameter 'output.trajectory.topic'",
    ),
    (
        {"output.trajectory.topic": "t", "action.kind": "velocity"},
        "expected none, as action.kind is velocity",
    ),
]


def change(robot: Robot, values: dict[str, Any]) -> None:
    changed = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
    done = robot.call(SetParameters, "set_parameters", parameters=changed)
    assert all(result.successful for result in done.results), done.results


def test_outputs_that_cannot_be_are_refused_at_configure(start: Callable[..., Robot]) -> None:
    robot = start(output__commands__topic="c", limits__max_step=[0.1])
    for values, text in REFUSED:
        change(robot, values)
        assert text not in robot.target.log
        assert not robot.change(CONFIGURE)
        robot.wait_log(text)
    change(robot, {"action.kind": "absolute"})
    assert robot.change(CONFIGURE), "it was nothing else"
    assert robot.target.stop() == 0


def test_an_unknown_name_of_outputs_is_refused_at_configure(start: Callable[..., Robot]) -> None:
    robot = start(output__commands__topic="c", limits__max_steps=[0.1, 0.1, 0.1])
    assert not robot.change(CONFIGURE)
    robot.wait_log("did you mean 'limits.max_step'?")
    assert robot.target.stop() == 0


def test_without_outputs_nothing_is_new(start: Callable[..., Robot]) -> None:
    robot = start(**RUN)
    robot.bring_up()
    robot.feed("front", "joints")
    robot.wait_chunks(3)
    wait_until(lambda: robot.part("decisions"), 5.0)
    assert robot.part("execution") == {}
    topics = {
        name
        for name, kinds in robot.node.get_topic_names_and_types()
        if {"trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64MultiArray"} & set(kinds)
    }
    assert not {t for t in topics if t.startswith(robot.target.namespace)}
    assert robot.target.stop() == 0


def test_execution_lives_on_the_nodes_clock(
    start: Callable[..., Robot], simulate: Callable[..., Simulation]
) -> None:
    robot = start(sim_time=True, **RUN, output__commands__topic="commands", output__rate_hz=50.0)
    robot.bring_up()
    heard = Controllers(robot)
    simulation = simulate(robot, 500 * SECOND, 0.5)
    heard.wait_heard("commands", 50, 30.0)
    at = [h.at_ns for h in heard.commands]
    assert 500 * SECOND < at[0] < at[-1] < 600 * SECOND
    pace_hz = (len(at) - 1) / ((at[-1] - at[0]) * 1e-9)
    assert pace_hz == pytest.approx(50.0, rel=0.15), "in simulated seconds"
    # A jump back ends the schedule: the last command is held until a chunk of the new time comes.
    before = robot.fresh_part("execution")
    assert before["safe_actions"] == "0"
    simulation.now_ns = 500 * SECOND
    robot.wait_log("the node's clock jumped by -")
    robot.wait_value("execution", "safe.exhausted", 1)
    robot.wait_value("execution", "state", "running")
    heard.commands.clear()
    heard.wait_heard("commands", 20, 30.0)
    assert heard.commands[-1].at_ns < 520 * SECOND
    assert robot.target.stop() == 0
