"""Faults of the world around a node: drivers, clocks, the machine, other nodes, the process itself.

In each the safe action comes in time, nothing is decided on old input, and it goes on afterwards.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import Decide, ListCapsules, SetPrompt
from lifecycle_msgs.srv import GetState
from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from flashrt_ros.prompt_topic import latched_qos
from flashrt_ros.stamps import to_ns

from .controllers import Controllers, stops
from .harness import ACTIVATE, PARAMETERS, PolicyProcess, Robot, wait_until
from .test_safe_action import MARGIN_NS, MAX_AGE_NS, MS, PERIOD_NS, RUN, TRAJECTORY, Workcell
from .test_time import SECOND, Simulation

pytestmark = [pytest.mark.ros, pytest.mark.timed]
STALL_S = float(os.environ.get("FLASHRT_STALL_SECONDS", "2"))
BUSY = 81


@pytest.fixture(scope="module")
def cell(start_for_all: Callable[..., Robot]) -> Iterator[Workcell]:
    workcell = Workcell(start_for_all(**RUN, **TRAJECTORY))
    yield workcell
    assert_sound(workcell.robot)
    assert workcell.robot.target.stop() == 0
    assert "unexpected exception" not in workcell.robot.target.log


def assert_sound(robot: Robot) -> None:
    """No input was used past its age, and every message is in one count."""
    wait_until(lambda: robot.fresh_part("node") and len(robot.diagnostics) >= 5)
    for name in ("front", "joints"):
        part = robot.part(f"input {name}")
        assert 0.0 < float(part["oldest_used_s"]) <= MAX_AGE_NS * 1e-9, name
        assert int(part["received"]) == int(part["accepted"]) + int(part["refused"]), name


def test_a_driver_that_dies_and_one_that_takes_its_place(cell: Workcell) -> None:
    cell.settle()
    before = cell.causes()
    cell.robot.unplug("front")
    stop = cell.next_stop()
    late_ns = to_ns(stop.header.stamp) - cell.robot.stamps_ns["front"] - MAX_AGE_NS
    assert 0 < late_ns <= PERIOD_NS + MARGIN_NS, f"{late_ns / MS} ms"
    assert cell.causes() == before | {"stale": before["stale"] + 1}
    made = len(cell.robot.chunks)
    wait_until(lambda: cell.robot.levels["policy: decisions"] == (2, "stale: front"))
    assert len(cell.robot.chunks) == made
    cell.robot.feed("front", "joints")
    cell.settle()
    assert_sound(cell.robot)


def test_a_stall_of_the_process(cell: Workcell) -> None:
    """All cores taken away, and given back: what was scheduled and what waits in queues is old."""
    cell.settle()
    before = cell.causes()
    process = cell.robot.target.process
    process.send_signal(signal.SIGSTOP)
    stopped_ns, heard = cell.robot.now_ns(), len(cell.heard.trajectories)
    time.sleep(STALL_S)
    resumed_ns = cell.robot.now_ns()
    process.send_signal(signal.SIGCONT)
    stop = cell.next_stop()
    late_ns = to_ns(stop.header.stamp) - resumed_ns
    assert late_ns <= PERIOD_NS + MARGIN_NS, f"{late_ns / MS} ms"
    cell.settle()
    after = cell.causes()
    assert sum(after.values()) > sum(before.values())
    old = [c for c in cell.robot.chunks if stopped_ns < to_ns(c.generated) < resumed_ns]
    assert not old, "nothing is made while nothing runs"
    late = [
        c
        for c in cell.robot.chunks
        if to_ns(c.generated) >= resumed_ns and to_ns(c.header.stamp) < resumed_ns - MAX_AGE_NS
    ]
    assert len(late) <= 1, "the one that was being made when the process stopped"
    for message in (h.message for h in cell.heard.trajectories[heard:] if h.at_ns > resumed_ns):
        ends_ns = to_ns(message.header.stamp) + to_ns(message.points[-1].time_from_start)
        assert stops(message) or ends_ns > resumed_ns, "late chunks are not executed"
    assert_sound(cell.robot)


def test_a_flood_of_services_delays_neither_decisions_nor_the_robot(cell: Workcell) -> None:
    cell.settle()
    before = cell.causes()
    kinds: list[tuple[Any, str, dict[str, Any]]] = [
        (Decide, "decide", {}),
        (SetPrompt, "set_prompt", {"prompt": "wave"}),
        (ListCapsules, "list_capsules", {}),
    ]
    node, qos = cell.robot.node, QoSProfile(depth=1000)
    clients = [
        (node.create_client(kind, f"{cell.robot.target.name}/{name}", qos_profile=qos), kind, more)
        for kind, name, more in kinds
        for _ in range(2)
    ]
    for client, _, _ in clients:
        wait_until(client.service_is_ready)
    counted = int(cell.robot.fresh_part("decisions")["busy"])
    began = time.monotonic()
    pending = [
        client.call_async(kind.Request(**more)) for _ in range(60) for client, kind, more in clients
    ]
    answered = wait_until(lambda: all(f.done() for f in pending), 30.0, "360 answers")
    assert answered, f"{time.monotonic() - began} s"
    codes = [f.result().error_code for f in pending]
    assert set(codes) <= {0, BUSY} and codes.count(0) > 8
    wait_until(
        lambda: int(cell.robot.fresh_part("decisions")["busy"]) >= counted + codes.count(BUSY)
    )
    assert cell.causes() == before, "no safe action: chunks came in time"
    for client, _, _ in clients:
        node.destroy_client(client)
    cell.robot.feeding = {"joints"}
    stop = cell.next_stop()
    late_ns = to_ns(stop.header.stamp) - cell.robot.stamps_ns["front"] - MAX_AGE_NS
    assert late_ns <= PERIOD_NS + MARGIN_NS
    cell.settle()
    assert_sound(cell.robot)


def test_a_clock_that_jumps_ahead_and_back(start: Callable[..., Robot]) -> None:
    robot = start(sim_time=True, **RUN, **TRAJECTORY)
    heard = Controllers(robot)
    robot.bring_up()
    simulation = Simulation(robot, 500 * SECOND, 1.0)
    try:
        robot.wait_value("execution", "state", "running")
        heard.wait_heard("trajectories", 2)
        for target_ns in (900 * SECOND, 100 * SECOND):
            seen, jumped_ns = len(heard.trajectories), simulation.now_ns
            simulation.now_ns = target_ns

            def in_new_time(chunk: Any, target_ns: int = target_ns) -> bool:
                return 0 <= to_ns(chunk.header.stamp) - target_ns < 60 * SECOND

            wait_until(lambda f=in_new_time: sum(map(f, robot.chunks)) >= 5, 20.0, "5 chunks")
            for chunk in filter(in_new_time, robot.chunks):
                assert -50 * MS <= to_ns(chunk.observation_age) <= MAX_AGE_NS + 100 * MS
            if target_ns > jumped_ns:
                later = [h.message for h in heard.trajectories[seen:]]
                assert any(map(stops, later)), "what was scheduled is over at once"
            robot.wait_value("execution", "state", "running")
        robot.wait_log("the node's clock jumped by -")
        assert_sound(robot)
        assert robot.target.stop() == 0
    finally:
        simulation.close()


class Supervisor:
    """Starts a node again whenever its process ends, as launch does with ``respawn``."""

    def __init__(self, start: Callable[[], PolicyProcess]) -> None:
        self._start = start
        self._ended = threading.Event()
        self.current = start()
        self.starts = 1
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10.0)

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            if not self.current.alive:
                self.current = self._start()
                self.starts += 1


class Namesake:
    """Another node of a policy node's name, as far as that one can see: it says what it is told."""

    def __init__(self, robot: Robot) -> None:
        space, name = robot.target.namespace, robot.target.name.rsplit("/", 1)[1]
        context = robot.context
        self._node = Node(name, namespace=space, context=context, use_global_arguments=False)
        self._node.create_service(GetState, "~/get_state", lambda _, response: response)
        self._publisher = self._node.create_publisher(String, "~/name_claim", latched_qos())

    def claim(self, acts_ns: int) -> None:
        """Be active since then, Unix time."""
        self._publisher.publish(String(data=f"acts {acts_ns} 1 77 another host"))

    def close(self) -> None:
        self._node.destroy_node()


def test_of_two_nodes_of_one_name_that_act_one_goes_on(cell: Workcell) -> None:
    """Two that discovered each other late both acted, for as long as anybody watched."""
    robot, other = cell.robot, Namesake(cell.robot)
    try:
        cell.settle()
        other.claim(time.time_ns())
        robot.wait_value("node", "nodes_of_this_name", 2)
        robot.chunks.clear()
        robot.wait_chunks(5)
        assert robot.part("node")["state"] == "active", "it was so earlier"
        other.claim(1)
        cell.next_stop()
        robot.wait_log(
            f"deactivated: node name '{robot.target.name}': expected one active node of that name,"
            " got 2, also process 77 on host 'another host', active earlier; stop the other node"
        )
        robot.wait_value("node", "state", "inactive")
        robot.chunks.clear()
        time.sleep(0.3)
        assert not robot.chunks
    finally:
        other.close()
    wait_until(lambda: robot.change(ACTIVATE), 15.0, "the name to be free")
    robot.wait_chunks(2)
    assert robot.target.log.count("deactivated: ") == 1


# A name is taken until DDS misses the process that had it: 20 s, where a profile does not say less.
SHORT_LEASE = """<?xml version="1.0" encoding="UTF-8"?>
<dds xmlns="http://www.eprosima.com"><profiles>
  <participant profile_name="short_lease" is_default_profile="true"><rtps><builtin>
    <discovery_config>
      <leaseDuration><sec>2</sec></leaseDuration>
      <leaseAnnouncement><sec>0</sec><nanosec>500000000</nanosec></leaseAnnouncement>
    </discovery_config>
  </builtin></rtps></participant>
</profiles></dds>
"""


def test_a_node_that_is_killed_and_started_again(tmp_path: Path) -> None:
    profile = tmp_path / "short_lease.xml"
    profile.write_text(SHORT_LEASE)
    parameters = {k.replace("__", "."): v for k, v in {**RUN, **TRAJECTORY}.items()}
    del parameters["disturbed"]
    namespace = f"/killed{os.getpid()}"
    supervisor = Supervisor(
        lambda: PolicyProcess(
            tmp_path,
            PARAMETERS | parameters | {"autostart": True},
            namespace=namespace,
            environment={"FASTDDS_DEFAULT_PROFILES_FILE": str(profile)},
        )
    )
    robot = Robot(supervisor.current)
    heard = Controllers(robot)
    try:
        robot.wait_value("node", "state", "active", 20.0)
        robot.feed("front", "joints")
        heard.wait_heard("trajectories", 3)
        supervisor.current.process.kill()
        wait_until(lambda: supervisor.starts == 2)
        robot.target = supervisor.current
        robot.chunks.clear()
        robot.wait_chunks(3, 30.0)
        heard.wait_heard("trajectories", 3)
        assert robot.chunks[0].sequence <= 1, "a new process counts anew"
        robot.wait_value("node", "nodes_of_this_name", 1)
        assert supervisor.starts == 2
        assert "configure failed" not in robot.target.log, "the name was waited for"
    finally:
        supervisor.close()
        robot.close()
        assert supervisor.current.stop() == 0
