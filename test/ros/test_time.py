"""Clocks: simulated time, a bag that loops, recorded stamps without simulated time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import Decide, ForkSession, RestoreCapsule, SaveCapsule
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray

from flashrt_ros.stamps import duration_message, time_message, to_ns

from .harness import DEACTIVATE, Robot, image, joint_state, wait_until

pytestmark = pytest.mark.ros
SECOND = 1_000_000_000
TICK_S = 0.005


class Simulation:
    """A simulator: /clock at 200 Hz and sensors stamped by it, at ``speed`` times real time.

    Messages of a tick leave before the tick of the clock, as they do from a bag.
    """

    def __init__(self, robot: Robot, start_ns: int, speed: float) -> None:
        self._robot = robot
        # Before time runs: a clock that waited would make up for it.
        robot.connect({"front": Image, "joints": JointState})
        self._clock = robot.node.create_publisher(Clock, "/clock", 1)
        limit = time.monotonic() + 10.0
        while not self._clock.get_subscription_count() and time.monotonic() < limit:
            time.sleep(0.01)  # sensors of a time that the node does not know yet would be ahead
        self._step_ns = round(TICK_S * speed * SECOND)
        self.now_ns = start_ns
        self.sensors = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        ticks, due = 0, time.monotonic()
        while not self._stop.is_set():
            now_ns = self.now_ns
            if self.sensors and ticks % 5 == 0:
                self._robot.publish("front", image(), now_ns)
                self._robot.publish("joints", joint_state(), now_ns)
            self._clock.publish(Clock(clock=time_message(now_ns)))
            ticks += 1
            if self.now_ns == now_ns:  # the test may have moved it
                self.now_ns += self._step_ns
            due += TICK_S
            time.sleep(max(0.0, due - time.monotonic()))


@pytest.fixture
def simulate() -> Iterator[Callable[..., Simulation]]:
    running: list[Simulation] = []

    def make(*args: Any) -> Simulation:
        running.append(Simulation(*args))
        return running[-1]

    yield make
    for simulation in running:
        simulation.close()


@pytest.mark.timed
@pytest.mark.jazzy
def test_simulated_time_paces_decisions_and_may_jump_back(
    start: Callable[..., Robot], simulate: Callable[..., Simulation]
) -> None:
    robot = start(sim_time=True, rate_hz=5.0, camera__front__max_age_s=1.0, joints__max_age_s=1.0)
    robot.bring_up()
    time.sleep(0.3)
    assert robot.chunks == [], "the clock does not run: nothing is due"
    simulation = simulate(robot, 500 * SECOND, 2.0)
    robot.wait_chunks(10, 20.0)
    stamps = [to_ns(chunk.header.stamp) for chunk in robot.chunks]
    assert 500 * SECOND <= stamps[0] < stamps[-1] < 600 * SECOND
    gaps = [b - a for a, b in itertools.pairwise(stamps)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.2 * SECOND, rel=0.25), "0.2 s of that time"
    for chunk in robot.chunks:
        assert -0.05 * SECOND <= to_ns(chunk.observation_age) < SECOND

    jumps = int(robot.fresh_part("decisions")["clock_jumps"])
    simulation.now_ns = 500 * SECOND
    robot.wait_log("the node's clock jumped by -")
    robot.chunks.clear()
    robot.wait_chunks(5, 20.0)
    assert all(to_ns(c.header.stamp) < 510 * SECOND for c in robot.chunks), "the second round"
    assert int(robot.fresh_part("decisions")["clock_jumps"]) > jumps
    # The first messages of the new round may overtake its clock and be refused; no more than that.
    assert int(robot.part("input front")["refused"]) <= 2
    assert "minute away" not in robot.target.log
    assert robot.target.stop() == 0


def test_recorded_stamps_without_simulated_time_are_explained_once(
    start: Callable[..., Robot],
) -> None:
    robot = start(rate_hz=10.0)
    robot.bring_up()
    for k in range(15):
        robot.publish("front", image(), (1_000 + k) * SECOND)
        robot.publish("joints", joint_state(), (1_000 + k) * SECOND)
        time.sleep(0.1)
    robot.wait_log("set use_sim_time if a recording or a simulator plays")
    assert robot.target.log.count("use_sim_time") == 1
    assert robot.chunks == []
    robot.wait_value("input front", "accepted", 15)
    assert int(robot.fresh_part("decisions")["stale"]) > 10
    assert robot.target.stop() == 0


def test_a_clock_that_does_not_run_is_named(
    start: Callable[..., Robot], simulate: Callable[..., Simulation]
) -> None:
    robot = start(sim_time=True, rate_hz=20.0, camera__front__max_age_s=1.0, joints__max_age_s=1.0)
    robot.bring_up()
    robot.wait_log("s: use_sim_time is set and /clock has shown no time yet")
    said = "none is made: use_sim_time is set and /clock has shown no time yet"
    wait_until(lambda: robot.levels["policy: decisions"] == (2, said))
    simulation = simulate(robot, 500 * SECOND, 1.0)
    robot.wait_chunks(3, 20.0)
    wait_until(lambda: robot.fresh_part("decisions") and robot.levels["policy: decisions"][0] == 0)
    simulation.close()
    robot.wait_log("use_sim_time is set and /clock stands at 50")
    assert robot.levels["policy: decisions"][0] == 2
    assert robot.target.log.count("no chunk is published for") == 2, "one line each time"
    assert robot.change(DEACTIVATE)
    wait_until(lambda: robot.fresh_part("decisions") and robot.levels["policy: decisions"][0] == 0)
    assert robot.target.log.count("decisions: over") == 1, "deactivating mends nothing"
    assert robot.target.stop() == 0


def test_a_change_of_the_clocks_source_is_no_jump_of_zero_seconds(
    start: Callable[..., Robot],
) -> None:
    robot = start()
    robot.bring_up()
    value = ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=True)
    request = [Parameter(name="use_sim_time", value=value)]
    assert robot.call(SetParameters, "set_parameters", parameters=request).results[0].successful
    robot.wait_log("the node's clock changed to /clock (use_sim_time was set); samples so far")
    assert "jumped" not in robot.target.log
    assert robot.target.stop() == 0


def test_behind_a_jump_nobody_knows_how_old_a_context_is(
    start: Callable[..., Robot], simulate: Callable[..., Simulation]
) -> None:
    """The time of its samples comes again, and they are no younger by that."""
    robot = start(sim_time=True, camera__front__max_age_s=60.0, joints__max_age_s=60.0)
    robot.bring_up()
    simulation = simulate(robot, 500 * SECOND, 4.0)
    wait_until(lambda: robot.decide(5.0).error_code == 0, 20.0, "a decision")
    assert robot.call(SaveCapsule, "save_capsule", name="before").error_code == 0
    fork = robot.call(ForkSession, "fork_session", new_session="branch", capsule="before")
    assert fork.error_code == 0 == robot.decide(reuse_context=True).error_code
    simulation.sensors = False
    again_ns, simulation.now_ns = simulation.now_ns, simulation.now_ns - 2 * SECOND
    robot.wait_log("the node's clock jumped by -")
    wait_until(lambda: simulation.now_ns > again_ns + SECOND, 20.0)
    for _ in range(2):
        refused = robot.decide(reuse_context=True)
        assert refused.error_code == 83 and "one of unknown age" in refused.error_msg
        assert robot.call(RestoreCapsule, "restore_capsule", name="before").error_code == 0
    branch = robot.decide(session="branch", reuse_context=True)
    assert branch.error_code == 0, "returned only"
    assert to_ns(branch.chunk.observation_age) == to_ns(branch.chunk.generated)
    simulation.sensors = True
    wait_until(lambda: robot.decide(5.0).error_code == 0, 20.0, "another decision")
    assert robot.decide(reuse_context=True).error_code == 0


@pytest.mark.timed
@pytest.mark.parametrize("rate_hz", [0.0, 20.0])
def test_a_decision_that_runs_while_the_clock_jumps_back_is_forgotten(
    start: Callable[..., Robot], simulate: Callable[..., Simulation], rate_hz: float
) -> None:
    """It is neither published nor executed; the next one is."""
    robot = start(
        sim_time=True,
        disturbed=True,
        rate_hz=rate_hz,
        camera__front__max_age_s=3.0,
        joints__max_age_s=3.0,
        action__dt_s=0.2,
        output__commands__topic="commands",
        limits__lower=[-50.0] * 3,
        limits__upper=[50.0] * 3,
        safe__action="stop",
    )
    commands: list[Any] = []
    topic = f"{robot.target.namespace}/commands"
    robot.node.create_subscription(Float64MultiArray, topic, commands.append, 50)
    robot.bring_up()
    simulation = simulate(robot, 500 * SECOND, 1.0)
    if rate_hz:
        robot.wait_chunks(1, 20.0)
    else:
        wait_until(lambda: robot.decide(5.0).error_code == 0, 20.0, "a decision")
    robot.disturbance.order(busy_s=1.5)
    request = Decide.Request(timeout=duration_message(5 * SECOND))
    asked = None if rate_hz else robot.client(Decide, "decide").call_async(request)
    time.sleep(0.5)  # those that were quick are over, one that is slow runs
    robot.disturbance.order()
    simulation.sensors = False
    made, missed = len(robot.chunks), robot.fresh_part("decisions")["failed"]
    simulation.now_ns -= 20 * SECOND
    robot.wait_log("the node's clock jumped by -")
    commands.clear()
    time.sleep(2.0)
    if asked is not None:
        answer = wait_until(lambda: asked.done() and asked.result(), 5.0, "an answer")
        assert answer.error_code == 83 and "jumped meanwhile" in answer.error_msg
    assert len(robot.chunks) == made and commands == []
    assert robot.fresh_part("decisions")["failed"] == missed
    simulation.sensors = True
    if not rate_hz:
        wait_until(lambda: robot.decide(5.0).error_code == 0, 20.0, "another decision")
    wait_until(lambda: len(robot.chunks) > made and commands, 20.0, "a chunk that is executed")
    assert all(to_ns(c.header.stamp) < 495 * SECOND for c in robot.chunks[made:])
    assert robot.target.stop() == 0
