"""The player keeps the recorded timing, hands on what was recorded, and feeds the clock."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState

from flashrt_core.errors import OptionError
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.messages import message_class, well_formed
from flashrt_ros.replay.parameter_file import ParameterFile
from flashrt_ros.replay.player import PlaybackError, Player
from flashrt_ros.stamps import to_ns

pytestmark = pytest.mark.ros

BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)


class Listener:
    """A node that notes when each message came (monotonic seconds) and its stamp (ns)."""

    def __init__(self) -> None:
        self.context = Context()
        self.context.init(args=[])
        self.node = Node("listener", context=self.context, use_global_arguments=False)
        self.images: list[tuple[float, int, bytes]] = []
        self.joints: list[tuple[float, int, list[float]]] = []
        self.clock: list[tuple[float, int]] = []
        subscribe = self.node.create_subscription
        subscribe(Image, "/camera/base/image_raw", self._on_image, BEST_EFFORT)
        subscribe(JointState, "/joint_states", self._on_joints, 50)
        subscribe(Clock, "/clock", self._on_clock, BEST_EFFORT)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.thread = threading.Thread(target=self.executor.spin, daemon=True)
        self.thread.start()

    def _on_image(self, message: Any) -> None:
        stamp = to_ns(message.header.stamp)
        self.images.append((time.monotonic(), stamp, bytes(message.data)))

    def _on_joints(self, message: Any) -> None:
        self.joints.append((time.monotonic(), to_ns(message.header.stamp), list(message.position)))

    def _on_clock(self, message: Any) -> None:
        self.clock.append((time.monotonic(), to_ns(message.clock)))

    def close(self) -> None:
        self.executor.shutdown()
        self.thread.join(5)
        self.node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture
def listener(private_graph: int) -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture
def publisher(private_graph: int) -> Iterator[Node]:
    context = Context()
    context.init(args=[])
    node = Node("publisher", context=context, use_global_arguments=False)
    yield node
    node.destroy_node()
    context.try_shutdown()


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.01)


@pytest.mark.parametrize("rate", [1.0, 2.5])
def test_recorded_timing_and_content(
    recording: Path, parameters: ParameterFile, listener: Listener, publisher: Node, rate: float
) -> None:
    with Bag(recording) as bag:
        routes = [
            r for r in bag.routes(parameters.inputs, parameters.path) if "wrist" not in r.topic
        ]
        player = Player(publisher, bag, routes)
        player.wait_for_subscribers()
        player.start_clock(bag.start_ns)
        progress: list[float] = []
        played = player.play(rate, progress.append)
        recorded = list(bag.messages([r.topic for r in routes]))
    wait_for(lambda: len(listener.joints) == 100 and len(listener.images) == 30)
    # The player's own part: it sends on time. Loose, for machines that do other work as well.
    assert played.sent == {"base": 30, "joints": 100}
    assert played.seconds == pytest.approx(progress[-1] / rate, abs=0.2)
    assert np.median(played.late_ms) < 5.0
    assert progress == sorted(progress)
    # What arrives: the recorded values, in order, at the recorded distances.
    stamps = [m.stamp_ns for m in recorded if m.topic == "/joint_states"]
    assert [stamp for _, stamp, _ in listener.joints] == stamps
    images = {m.stamp_ns: m.data for m in recorded if "image" in m.topic}
    assert len(listener.images) >= 25
    for _, stamp, data in listener.images:
        assert images[stamp].endswith(data)
    times = [m.time_ns / 1e9 for m in recorded if m.topic == "/joint_states"]
    wanted = np.array(times) / rate
    came = np.array([moment for moment, _, _ in listener.joints])
    error_ms = (came - came[0] - (wanted - wanted[0])) * 1e3
    assert np.percentile(np.abs(error_ms - np.median(error_ms)), 50) < 5.0
    # The clock runs forward at the rate of the recording.
    ticks = [now for _, now in listener.clock]
    assert all(a <= b for a, b in itertools.pairwise(ticks))
    assert len(set(ticks)) > 100
    (first, begin), (last, end) = listener.clock[10], listener.clock[-1]
    assert (end - begin) / 1e9 / rate == pytest.approx(last - first, abs=0.1)


def test_stop_ends_the_run(recording: Path, parameters: ParameterFile, publisher: Node) -> None:
    with Bag(recording) as bag:
        player = Player(publisher, bag, bag.routes(parameters.inputs, parameters.path))
        seen: list[float] = []
        player.play(1.0, seen.append, stop=lambda: len(seen) >= 20)
        assert sum(player.sent.values()) == 20


def test_nobody_listens(recording: Path, parameters: ParameterFile, publisher: Node) -> None:
    with Bag(recording) as bag:
        player = Player(publisher, bag, bag.routes(parameters.inputs, parameters.path))
        with pytest.raises(PlaybackError, match="joint_states"):
            player.wait_for_subscribers(0.2)
        with pytest.raises(OptionError, match="rate"):
            player.play(0.0)


def test_types_that_are_not_installed() -> None:
    assert message_class("sensor_msgs/msg/Image") is Image
    assert message_class("acme_msgs/msg/Number") is None
    assert message_class("sensor_msgs/msg/Nonsense") is None


def test_well_formed_is_what_the_middleware_can_read(recording: Path) -> None:
    with Bag(recording) as bag:
        joints = next(bag.messages(["/joint_states"])).data
        image = next(bag.messages(["/camera/base/image_raw"])).data
    for data, kind in ((joints, "sensor_msgs/msg/JointState"), (image, "sensor_msgs/msg/Image")):
        assert well_formed(data, kind)
        assert well_formed(data + bytes(20), kind), "bytes at the end that nobody reads"
        for length in (0, 2, 4, 11, len(data) - 9):
            assert not well_formed(data[:length], kind)
    frame = bytearray(image)
    start = 16  # 4 of encapsulation, 8 of stamp, 4 of length: the frame's name
    frame[start] = 0xFF
    assert well_formed(bytes(frame), "sensor_msgs/msg/Image"), "a name in Latin-1 is a name"
    frame[start - 4 : start] = b"\xff\xff\xff\x7f"
    assert not well_formed(bytes(frame), "sensor_msgs/msg/Image"), "a length beyond the end"
