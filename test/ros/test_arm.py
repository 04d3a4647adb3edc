"""End to end: the tiny policy moves a simulated arm through trajectories while it thinks ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.execution.chunk import LINEAR
from flashrt_ros.execution.control import _chunk
from flashrt_ros.execution.strategies import REAL_TIME_CHUNKING, STRATEGIES
from flashrt_ros.stamps import to_ns

from .controllers import ArmModel, SimulatedArm, followed, positions, stops
from .harness import DEACTIVATE, Robot, wait_until

pytestmark = [pytest.mark.ros, pytest.mark.timed]
MS = 1_000_000
STEP = np.array([0.01, 0.02, 0.015])  # rad in 10 ms
START = np.zeros(3)
UPPER = np.array([0.6, 0.8, 0.7])
# A chunk covers 1.2 s, the next one shall be there after 0.55 s, and takes 0.15 s of it. The rate
# alone would bring one every 0.2 s, at row 7 or 8 of the one before.
RUN: dict[str, Any] = {
    "rate_hz": 10.0,
    "horizon": 24,
    "action__dt_s": 0.05,
    "output__trajectory__topic": "trajectory",
    "output__rate_hz": 100.0,
    "execution__replan_rows": 11,
    "limits__lower": (-UPPER).tolist(),
    "limits__upper": UPPER.tolist(),
    "limits__max_step": STEP.tolist(),
    "safe__causes": ["stale"],
    "camera__front__max_age_s": 1.0,  # a busy machine brings inputs late
    "joints__max_age_s": 1.0,
    "disturbed": True,
}
BUSY_S = 0.15


def check_steps(arm: ArmModel) -> None:
    """No update moved a joint by more than its limit, or out of its range."""
    path = np.stack([position for _, position in arm.path])
    worst = (np.abs(np.diff(path, axis=0)) / STEP).max()
    assert 0.9 < worst <= 1.0 + 1e-6, "the limit holds, and is reached: the test can fail"
    assert (np.abs(path) <= UPPER * (1.0 + 1e-12)).all()


def check_followed(arm: ArmModel) -> int:
    """The arm is at each point at its time, until the next trajectory; the number of points."""
    times = np.array([time_ns for time_ns, _ in arm.path])
    path = np.stack([position for _, position in arm.path])
    seen = 0
    arrivals = [at_ns for at_ns, _ in arm.taken[1:]] + [int(times[-1])]
    for (at_ns, message), until_ns in zip(arm.taken, arrivals, strict=True):
        stamp_ns = to_ns(message.header.stamp)
        for point, wanted in zip(message.points, positions(message), strict=True):
            due_ns = stamp_ns + to_ns(point.time_from_start)
            if at_ns + arm.PERIOD_NS < due_ns < until_ns - arm.PERIOD_NS:
                after = int(np.searchsorted(times, due_ns))
                # Between two updates, each at most one step from the point.
                for k in (after - 1, after):
                    assert (np.abs(path[k] - wanted) <= STEP * 1.0001).all()
                seen += 1
    return seen


def moved(arm: ArmModel, begin_ns: int, end_ns: int) -> float:
    """How far the arm moved meanwhile, in rad of the joint that moved most."""
    inside = [position for time_ns, position in arm.path if begin_ns <= time_ns <= end_ns]
    return float(np.ptp(np.stack(inside), axis=0).max())


def assert_continued(robot: Robot, begin: int, strategy: str) -> None:
    """Chunks from there on repeat of the one before what was executed while they were decided, if
    they are to; and no others do.
    """
    pairs = list(itertools.pairwise(robot.chunks[begin:]))
    worst = []
    for before, after in pairs:
        chunk, start_ns = _chunk(before), to_ns(after.first_action_stamp)
        rows = np.array(after.data).reshape(after.horizon, after.action_dim)
        for k in range(3):  # 0.15 s of decision and the row ahead: four at least
            due = chunk.at(start_ns + k * 50 * MS, LINEAR)
            assert due is not None
            worst.append(np.abs(rows[k] - due).max())
    part = robot.fresh_part("decisions")
    if strategy == REAL_TIME_CHUNKING:
        assert max(worst) < 1e-5
        assert int(part["guided"]) >= len(pairs)
        assert int(part["kept_rows"]) >= 4 * len(pairs)
    else:
        assert np.median(worst) > 0.1
        assert part["guided"] == part["kept_rows"] == "0"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_arm_follows_chunks_while_the_next_is_decided(
    start: Callable[..., Robot], strategy: str
) -> None:
    robot = start(**RUN, execution__strategy=strategy)
    robot.disturbance.order(busy_s=BUSY_S)
    robot.bring_up()
    robot.feed("front")
    arm = SimulatedArm(robot, START)
    robot.wait_chunks(4)
    begin = len(robot.chunks)
    robot.wait_chunks(8, 20.0)

    # Inference overlaps execution: no gap, no safe action, and the arm moves while it decides.
    part = robot.fresh_part("execution")
    assert (part["state"], part["safe_actions"]) == ("running", "0"), robot.target.log
    assert 1e3 * BUSY_S <= float(part["delay_ms"]) < 1e3 * BUSY_S + 200.0
    pairs = itertools.pairwise(robot.chunks[begin:])
    rows = [(to_ns(b.generated) - to_ns(a.first_action_stamp)) / (50 * MS) for a, b in pairs]
    assert 9.0 < np.median(rows) < 11.5, f"there when row 11 is due, or little sooner: {rows}"
    assert_continued(robot, begin, strategy)
    thinking = [(to_ns(c.generated), to_ns(c.inference_time)) for c in robot.chunks[begin:]]

    # Late: 0.5 s instead of the 0.15 s expected; rows are skipped, and the schedule may run out.
    skipped = int(part["skipped_rows"])
    robot.disturbance.order(busy_s=0.5)
    robot.wait_chunks(4, 20.0)  # the first was perhaps under way, the last is perhaps not counted
    part = robot.fresh_part("execution")
    assert int(part["skipped_rows"]) >= skipped + 20
    # Failed and lost ones: the schedule runs out, the arm is held, and then goes on.
    for disturbance in ({"fail": True}, {"lose": True}):
        robot.disturbance.order(**disturbance)
        seen = len(arm.heard)
        wait_until(lambda n=seen: any(stops(m) for m in arm.heard[n:]), 10.0, str(disturbance))
        robot.wait_value("execution", "cause", "exhausted")
        robot.disturbance.order(busy_s=BUSY_S)
        robot.wait_value("execution", "state", "running")
        robot.wait_chunks(3)
    assert robot.change(DEACTIVATE)
    wait_until(lambda: stops(arm.heard[-1]), 5.0, "the last word")
    arm.close()

    for transport_ns in (0, 3 * MS, ArmModel.PERIOD_NS):
        exact = followed(arm.heard, START, arm.began_ns, transport_ns)
        assert exact.rejected == []
        check_steps(exact)
        assert check_followed(exact) > 60
        for end_ns, took_ns in thinking:
            assert took_ns >= 1e9 * BUSY_S and moved(exact, end_ns - took_ns, end_ns) > 0.01
    part = robot.fresh_part("execution")
    assert sum(int(part[f"clamped_step.{name}"]) for name in ("shoulder", "elbow", "wrist")) > 0
    assert robot.target.stop() == 0
