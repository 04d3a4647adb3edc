"""A real policy node in its own process, and the robot around it: topics, services, diagnostics.

Everything runs over DDS in a domain of this test process and, for each node, a namespace of its
own. Tests wait for services and messages, never for node names (their discovery can take seconds).
"""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from flashrt_ros.msg import ActionChunk, DecisionTiming
from flashrt_ros.srv import Decide
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, Image, JointState

from flashrt_ros import stamps
from flashrt_ros.parameters import COMPRESSED, RAW, transport_topic

from .fork_server import fork

DOMAIN = 20 + os.getpid() % 80
JOINTS = ("shoulder", "elbow", "wrist")
# Small and quick: what is tested here is the node, not the policy.
PARAMETERS: dict[str, Any] = {
    "policy": "pi05",
    "preset": "tiny",
    "prompt": "wave",
    "threads": 1,
    "rate_hz": 0.0,
    "horizon": 4,
    "steps": 1,
    "cameras": ["front"],
    "camera.front.topic": "front",
    "camera.front.slot": "base_0_rgb",
    "joints.topic": "joints",
    "joints.names": list(JOINTS),
}
CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE
_MATCHING_S = 0.3
_numbers = itertools.count(1)


def wait_until(
    condition: Callable[[], Any], timeout_s: float = 10.0, what: str | Callable[[], str] = ""
) -> Any:
    """Return the first true value of ``condition``; fail the test after ``timeout_s``."""
    limit = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > limit:
            text = what() if callable(what) else what or str(condition)
            raise AssertionError(f"not within {timeout_s} s: {text}")
        time.sleep(0.01)
    return value


class PolicyProcess:
    """The node as its own process; ``log`` is what it printed."""

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        *,
        name: str = "policy",
        namespace: str = "",
        arguments: Iterable[str] = (),
        program: Iterable[str] = ("-m", "flashrt_ros.start"),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        number = next(_numbers)
        # Domains are few: the nodes of another run of tests may be in this one.
        self.namespace = namespace or f"/t{os.getpid()}n{number}"
        self.name = f"{self.namespace}/{name}"
        self._log = folder / f"node{number}.log"
        file = folder / f"node{number}.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": dict(parameters)}}))
        command = [*program, "--ros-args"]
        command += ["-r", f"__node:={name}", "-r", f"__ns:={self.namespace}"]
        command += ["--params-file", str(file), *arguments]
        variables = os.environ | {
            "ROS_DOMAIN_ID": str(DOMAIN),
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "RCUTILS_COLORIZED_OUTPUT": "0",
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self._log.touch()
        self.process = fork(command, variables, self._log)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 20.0) -> int:
        """Signal, wait, return the exit status; SIGKILL (and a failed test) if it does not end."""
        if self.alive:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"no exit {timeout_s} s after signal {number}:\n{self.log}"
            ) from None

    def resources(self) -> tuple[float, int, int]:
        """Memory, threads and descriptors of the node; see :func:`resources`."""
        return resources(self.process.pid)


def resources(pid: int | str = "self") -> tuple[float, int, int]:
    """Resident anonymous and shared memory in MB, threads, open file descriptors of a process.

    Pages of files (libraries) are left out: the kernel takes them back and reads them again as it
    likes, tens of MB at a time, without any doing of the process.
    """
    base = Path(f"/proc/{pid}")
    lines = (base / "status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}
    resident = (int(sizes["RssAnon"]) + int(sizes["RssShmem"])) * 1024 / 1e6
    return resident, len(list((base / "task").iterdir())), len(list((base / "fd").iterdir()))


class Robot:
    """The other side of a policy node: publishes sensors, listens, calls services.

    Its callbacks run in a thread of their own. ``chunks``, ``timings`` and ``diagnostics``
    ([part][key], and the level and message of each part) fill as messages arrive.
    """

    def __init__(self, target: PolicyProcess, sim_time: bool = False) -> None:
        self.target = target
        self.context = Context()
        rclpy.init(args=[], context=self.context, domain_id=DOMAIN)
        self.node = Node(
            "robot",
            namespace=target.namespace,
            context=self.context,
            use_global_arguments=False,
            parameter_overrides=[Parameter("use_sim_time", value=sim_time)],
        )
        self.chunks: list[Any] = []
        self.timings: list[Any] = []
        self.diagnostics: dict[str, dict[str, str]] = {}
        self._diagnostics_from_ns = 0
        self.levels: dict[str, tuple[int, str]] = {}
        self.feeding: set[str] = set()
        self.stamps_ns: dict[str, int] = {}  # of the last message on each topic
        self.disturbance: Any = None  # where the node was started to be disturbed
        self._clients: dict[str, Any] = {}
        self._publishers: dict[str, Any] = {}
        subscribe = self.node.create_subscription
        subscribe(ActionChunk, f"{target.name}/action_chunk", self.chunks.append, 50)
        subscribe(DecisionTiming, f"{target.name}/decision_timing", self.timings.append, 50)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.node.create_timer(1 / 30, self._feed)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.feeding.clear()
        self._executor.shutdown()
        self._thread.join(5.0)
        self.node.destroy_node()
        self.context.try_shutdown()

    # Lifecycle and services

    def client(self, kind: Any, name: str) -> Any:
        """A ready client of ``~/<name>``."""
        client = self._clients.get(name)
        if client is None:
            client = self.node.create_client(
                kind, f"{self.target.name}/{name}", qos_profile=QoSProfile(depth=100)
            )
            self._clients[name] = client
        wait_until(lambda: client.service_is_ready() or not self.target.alive, 60.0, f"~/{name}")
        return client

    def call(self, kind: Any, name: str, timeout_s: float = 20.0, /, **fields: Any) -> Any:
        """Call ``~/<name>`` of the node and return the response."""
        future = self.client(kind, name).call_async(kind.Request(**fields))
        wait_until(lambda: future.done() or not self.target.alive, timeout_s, f"answer of {name}")
        status = self.target.process.poll()
        assert future.done(), f"the node died in {name}, status {status}:\n{self.target.log}"
        return future.result()

    def state(self) -> str:
        return str(self.call(GetState, "get_state").current_state.label)

    def change(self, transition: int) -> bool:
        answer = self.call(ChangeState, "change_state", 60.0, transition=Transition(id=transition))
        return bool(answer.success)

    def bring_up(self) -> None:
        """Configure, activate, and wait until sensor topics are connected."""
        assert self.change(CONFIGURE), self.target.log
        assert self.change(ACTIVATE), self.target.log

    def decide(self, timeout_s: float = 5.0, **fields: Any) -> Any:
        """Call ~/decide; waits for usable inputs up to ``timeout_s``."""
        return self.call(
            Decide, "decide", timeout=stamps.duration_message(round(timeout_s * 1e9)), **fields
        )

    # Sensors

    def now_ns(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)

    def publish(
        self, topic: str, message: Any, stamp_ns: int | None = None, qos: Any = None
    ) -> Any:
        """Publish with ``stamp_ns`` (default now) on a topic of the namespace."""
        self.connect({topic: type(message)}, qos)
        publisher = self._publishers[topic]
        stamp_ns = self.now_ns() if stamp_ns is None else stamp_ns
        message.header.stamp = stamps.time_message(stamp_ns)
        publisher.publish(message)
        self.stamps_ns[topic] = stamp_ns
        return message

    def connect(self, kinds: Mapping[str, Any], qos: Any = None) -> None:
        """Create the publishers that there are not yet, and wait until they are heard.

        Compressed images go to the topic of their transport.
        """
        new = {topic: kind for topic, kind in kinds.items() if topic not in self._publishers}
        for topic, kind in new.items():
            transport = COMPRESSED if kind is CompressedImage else RAW
            self._publishers[topic] = self.node.create_publisher(
                kind, transport_topic(topic, transport), qos or qos_profile_sensor_data
            )
        for topic in new:
            publisher = self._publishers[topic]
            wait_until(
                lambda p=publisher: p.get_subscription_count() > 0, what=f"reader of {topic}"
            )
        if new:
            # The reader learns of the writer a moment after the writer of the reader; a message
            # before that would be lost, and a test may have one only.
            time.sleep(_MATCHING_S)

    def publish_bytes(self, topic: str, data: bytes) -> None:
        """Publish bytes as they are, on a topic that :meth:`publish` was used for."""
        self._publishers[topic].publish(data)

    def feed(self, *topics: str) -> None:
        """Publish good messages on exactly these topics, 30 a second."""
        self.connect({topic: type(self.good(topic)) for topic in topics})
        for topic in topics:
            self.publish(topic, self.good(topic))
        self.feeding = set(topics)

    def unplug(self, topic: str) -> None:
        """The publisher of a topic goes, as that of a driver that died; :meth:`feed` brings one."""
        self.feeding = self.feeding - {topic}
        self.node.destroy_publisher(self._publishers.pop(topic))

    def good(self, topic: str) -> Any:
        """A message that the node takes on ``topic``."""
        if topic == "joints":
            return joint_state()
        if topic == "wrist":
            return jpeg()
        return image()

    @contextlib.contextmanager
    def publishing(
        self, topic: str, make: Callable[[], Any], every_s: float = 0.02
    ) -> Iterator[None]:
        """Publish what ``make`` returns at a steady pace meanwhile."""
        timer = self.node.create_timer(every_s, lambda: self.publish(topic, make()))
        yield
        self.node.destroy_timer(timer)

    def _feed(self) -> None:
        for topic in tuple(self.feeding):
            self.publish(topic, self.good(topic))

    # What the node says

    def part(self, name: str) -> dict[str, str]:
        """The newest values of one status in the node's diagnostics."""
        return self.diagnostics.get(f"policy: {name}", {})

    def fresh_part(self, name: str) -> dict[str, str]:
        """The values of one status, published after this call began, not only received after it."""
        self._diagnostics_from_ns = time.time_ns()
        self.diagnostics = {}
        return dict(wait_until(lambda: self.part(name), 5.0, f"diagnostics of {name}"))

    def wait_value(self, part: str, key: str, value: Any, timeout_s: float = 8.0) -> None:
        """Wait until diagnostics say ``key: value``."""

        def failure() -> str:
            return f"{part}.{key} = {value} in {self.part(part)}\n{self.target.log}"

        wait_until(lambda: self.part(part).get(key) == str(value), timeout_s, failure)

    def wait_log(self, text: str, timeout_s: float = 8.0) -> None:
        def failure() -> str:
            return f"log line '{text}' in:\n{self.target.log}"

        wait_until(lambda: text in self.target.log, timeout_s, failure)

    def wait_chunks(self, more: int, timeout_s: float = 10.0) -> None:
        """Wait for this many further chunks."""
        wanted = len(self.chunks) + more
        wait_until(lambda: len(self.chunks) >= wanted, timeout_s, f"{more} more chunks")

    def _on_diagnostics(self, message: Any, info: Any) -> None:
        if info["source_timestamp"] < self._diagnostics_from_ns:
            return
        for status in message.status:
            if status.hardware_id == self.target.name:
                values = {item.key: item.value for item in status.values}
                # The level first: who waits for the values looks at it next.
                self.levels[status.name] = (ord(status.level), status.message)
                self.diagnostics[status.name] = values

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            return


def image(
    encoding: str = "rgb8", pixels: np.ndarray | None = None, step: int = 0, pad: int = 0
) -> Any:
    """An Image of [H, W, C] uint8 pixels; ``pad`` junk bytes end each row."""
    if pixels is None:
        pixels = np.full((24, 32, 3), 90, np.uint8)
    height, width = pixels.shape[:2]
    rows = np.full((height, pixels[0].size + pad), 0xEE, np.uint8)
    rows[:, : pixels[0].size] = pixels.reshape(height, -1)
    data = array.array("B", rows.tobytes())
    return Image(
        height=height, width=width, encoding=encoding, step=step or rows.shape[1], data=data
    )


def jpeg(data: bytes | None = None, kind: str = "jpeg") -> Any:
    """A CompressedImage, by default a good picture."""
    if data is None:
        import cv2

        data = cv2.imencode(f".{kind}", np.full((24, 32, 3), 120, np.uint8))[1].tobytes()
    return CompressedImage(format=kind, data=array.array("B", data))


def joint_state(values: Mapping[str, float] | None = None) -> Any:
    values = dict.fromkeys(JOINTS, 0.25) if values is None else values
    return JointState(name=list(values), position=list(values.values()))


RELIABLE = QoSProfile(depth=10)
