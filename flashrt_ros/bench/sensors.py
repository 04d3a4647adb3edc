"""The sensors of a robot, as a process of their own: cameras and joints of a parameter file.

``python -m flashrt_ros.bench.sensors`` with the fields of :class:`SensorOptions` as JSON prints
``ready`` once the node listens. From each line on its standard input to the next it publishes, and
then prints what was sent meanwhile, as JSON.

Each camera runs by a clock of its own, as real ones do: their phases move against each other and
against the decisions, so that a run sees every phase. A message is stamped when it is complete, as
the last thing before it is published. What rclpy and the middleware then do with it on this side,
three copies of the picture where a driver in C++ has two, is part of the image's age.
"""

from __future__ import annotations

import ctypes
import heapq
import json
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.context import Context
from rclpy.node import Node
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState

from flashrt_core.errors import OptionError
from flashrt_ros.replay.parameter_file import COMPRESSED_TYPE, JOINTS_TYPE, read_parameters
from flashrt_ros.replay.scene import Scene
from flashrt_ros.stamps import SECOND, time_message

_FRAMES = 6  # pictures of each camera, over and over
_DRIFT = 2e-4  # by which the clock of each camera is slower than that of the one before
_SETTLE_S = 0.5  # the reader learns of the writer a moment after the writer of the reader
_STAMP = 4  # offset of header.stamp in a message: behind the encapsulation

_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.argtypes, _address_of.restype = [ctypes.py_object], ctypes.c_void_p


@dataclass(frozen=True)
class SensorOptions:
    """Which parameter file, rates in Hz, image size in pixels."""

    parameters: str
    camera_hz: float = 30.0
    joint_hz: float = 100.0
    width: int = 640
    height: int = 480


@dataclass
class _Source:
    """A topic: what publishes its next message, and when that is due (monotonic ns)."""

    name: str
    period_ns: int
    send: Callable[[], None]
    due_ns: int = 0
    sent: int = 0


class Sensors:
    """Publishes the inputs of a parameter file on a node.

    Args:
        node: publishes.
        options: see there.

    Raises:
        OptionError: a camera of the file wants compressed images.
    """

    def __init__(self, node: Node, options: SensorOptions) -> None:
        file = read_parameters(Path(options.parameters))
        self._names = list(file.config.joints_names)
        self._scene = Scene(0, options.width, options.height)
        self._start = time.monotonic()
        self._publishers: dict[str, Any] = {}
        self._sources: list[_Source] = []
        for index, entry in enumerate(file.inputs):
            if entry.msgtype == COMPRESSED_TYPE:
                raise OptionError(
                    f"camera '{entry.name}'", expected="transport: raw", got="compressed"
                )
            joints = entry.msgtype == JOINTS_TYPE
            kind, rate = (JointState, options.joint_hz) if joints else (Image, options.camera_hz)
            qos = QoSProfile(depth=10) if joints else qos_profile_sensor_data
            publisher = self._publishers[entry.name] = node.create_publisher(kind, entry.topic, qos)
            send = self._joints(publisher) if joints else self._camera(publisher, index)
            period = SECOND / rate * (1.0 if joints else 1.0 + (index + 1) * _DRIFT)
            self._sources.append(_Source(entry.name, round(period), send))

    def wait_for_subscribers(self, timeout_s: float = 20.0) -> bool:
        """Whether every topic is subscribed to within that time."""
        limit = time.monotonic() + timeout_s
        while not all(p.get_subscription_count() for p in self._publishers.values()):
            if time.monotonic() > limit:
                return False
            time.sleep(0.02)
        time.sleep(_SETTLE_S)
        return True

    def run(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Publish until ``stopped()``; messages sent of each input, and how late they were."""
        now_ns = time.monotonic_ns()
        for index, source in enumerate(self._sources):
            source.sent = 0
            source.due_ns = now_ns + source.period_ns * (index + 1) // len(self._sources)
        queue = [(source.due_ns, index) for index, source in enumerate(self._sources)]
        heapq.heapify(queue)
        late_ns: list[int] = []
        while not stopped():
            due_ns, index = queue[0]
            left_ns = due_ns - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns * 1e-9)
            source = self._sources[index]
            late_ns.append(time.monotonic_ns() - due_ns)
            source.send()
            source.sent += 1
            source.due_ns += source.period_ns
            heapq.heapreplace(queue, (source.due_ns, index))
        late = np.percentile(late_ns or [0], (50, 99, 100)) * 1e-6
        return {
            "sent": {source.name: source.sent for source in self._sources},
            "late_ms": dict(zip(("p50", "p99", "max"), late.round(3).tolist(), strict=True)),
        }

    def _camera(self, publisher: Any, index: int) -> Callable[[], None]:
        pictures = [self._scene.render(index, 0.4 * k) for k in range(_FRAMES)]
        messages = [bytearray(serialize_message(_image(picture))) for picture in pictures]
        order = "<iI" if messages[0][1] == 1 else ">iI"
        count = 0

        def send() -> None:
            nonlocal count
            data = bytes(messages[count % len(messages)])
            count += 1
            # rclpy takes nothing but bytes, and a copy behind the stamp would count as age. These
            # are new, and nobody has them yet: they may still be written.
            place = (_address_of(data) or 0) + _STAMP
            ctypes.memmove(place, struct.pack(order, *divmod(time.time_ns(), SECOND)), 8)
            publisher.publish(data)

        return send

    def _joints(self, publisher: Any) -> Callable[[], None]:
        names = self._names

        def send() -> None:
            positions, velocities = self._scene.joints(time.monotonic() - self._start, len(names))
            message = JointState(
                name=names, position=positions.tolist(), velocity=velocities.tolist()
            )
            message.header.stamp = time_message(time.time_ns())
            publisher.publish(message)

        return send


def _image(pixels: np.ndarray) -> Any:
    height, width = pixels.shape[:2]
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.data.frombytes(pixels.tobytes())
    return message


def _next_line() -> threading.Event:
    """Set once there is another line on standard input, or its end."""
    came = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        came.set()

    threading.Thread(target=wait, name="stdin", daemon=True).start()
    return came


def main(arguments: Sequence[str]) -> int:
    """Run as a process; the exit status."""
    options = SensorOptions(**json.loads(arguments[0]))
    context = Context()
    context.init(args=[])
    node = Node(
        "flashrt_sensors",
        context=context,
        use_global_arguments=False,
        start_parameter_services=False,
        enable_rosout=False,
    )
    try:
        sensors = Sensors(node, options)
        if not sensors.wait_for_subscribers():
            print("no node subscribes to the inputs of the parameter file", file=sys.stderr)
            return 1
        print("ready", flush=True)
        while sys.stdin.readline():
            print(json.dumps(sensors.run(_next_line().is_set)), flush=True)
        return 0
    finally:
        node.destroy_node()
        context.try_shutdown()


if __name__ == "__main__":
    # Ctrl-C on a terminal reaches this process, too: whoever started it tells of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
