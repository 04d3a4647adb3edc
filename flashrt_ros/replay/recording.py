"""Write a rosbag2 of the synthetic workcell: camera images and joint states at real rates.

The same seed gives the same bytes. Stamps carry what recordings of real sensors carry: cameras that
are not in phase, periods that jitter, and a delay from the stamp to the recorder that is longer for
images than for joints.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from flashrt_core.errors import OptionError
from flashrt_ros.parameters import COMPRESSED, JOINTS

from .output import writing
from .parameter_file import COMPRESSED_TYPE, JOINTS_TYPE, NodeInput
from .scene import ARM_JOINTS, Scene

# Any fixed moment will do; a recording is old when it is played.
_EPOCH_NS = 1_767_225_600_000_000_000


@dataclass(frozen=True)
class Recorder:
    """How to record: length in seconds, rates in Hz, image size in pixels, storage and seed."""

    seconds: float = 12.0
    camera_hz: float = 30.0
    joint_hz: float = 100.0
    width: int = 640
    height: int = 480
    storage: str = "mcap"  # or "sqlite3"
    compressed: bool = True
    seed: int = 0


@dataclass(frozen=True)
class _Sample:
    """A message to come: recording time, sensor stamp (both ns after the epoch) and its source."""

    time_ns: int
    stamp_ns: int
    source: int


def write_recording(
    path: Path,
    inputs: Sequence[NodeInput],
    joint_names: Sequence[str],
    options: Recorder | None = None,
    progress: Callable[[float], None] | None = None,
) -> int:
    """Record the workcell for the topics of ``inputs``; returns the number of messages.

    Args:
        path: folder to create; a bag of that name is replaced once the new one is complete,
            anything else is left alone.
        inputs: cameras (uncompressed) and joints.
        joint_names: names in the joint states; seven of the arm where empty.
        options: rates, sizes, storage.
        progress: called with the fraction done.

    Raises:
        OptionError: ``path`` is in the way, or a camera is set to compressed images.
        OutputError: the file system does not take it.
    """
    options = options or Recorder()
    _check_replaceable(path)
    for entry in inputs:
        if entry.msgtype == COMPRESSED_TYPE:
            raise OptionError(
                f"camera '{entry.name}'",
                expected="raw images in the recording that is written",
                got=f"transport: {COMPRESSED}",
                remedy=f"record a bag of {entry.topic} and use 'flashrt replay'",
            )
    store = get_typestore(Stores.ROS2_JAZZY)
    encode = _Encoder(
        store, Scene(options.seed, options.width, options.height), inputs, joint_names
    )
    count = 0
    with writing("recording", path), _replacing(path) as fresh, _writer(fresh, options) as writer:
        connections = [writer.add_connection(i.topic, i.msgtype, typestore=store) for i in inputs]
        for sample in _schedule(inputs, options):
            data = encode(sample)
            writer.write(connections[sample.source], _EPOCH_NS + sample.time_ns, data)
            count += 1
            if progress is not None:
                progress(sample.time_ns / 1e9 / options.seconds)
    return count


def _writer(path: Path, options: Recorder) -> Writer:
    mcap = options.storage == "mcap"
    plugin = StoragePlugin.MCAP if mcap else StoragePlugin.SQLITE3
    writer = Writer(path, version=9, storage_plugin=plugin)
    if options.compressed:
        # mcap compresses its own chunks, which every reader understands; sqlite3 has no such thing.
        mode = CompressionMode.STORAGE if mcap else CompressionMode.MESSAGE
        writer.set_compression(mode, CompressionFormat.ZSTD)
    return writer


def _check_replaceable(path: Path) -> None:
    """Only nothing, an empty folder and a recording may stand where one will be written."""
    if not os.path.lexists(path):
        return
    if path.is_dir():
        found = {entry.name for entry in path.iterdir()}
        # A storage file alone, named like the folder, is what a killed recording left.
        if "metadata.yaml" in found or found <= {f"{path.name}.mcap", f"{path.name}.db3"}:
            return
    raise OptionError(
        f"recording '{path}'",
        expected="a new folder, or an earlier recording to replace",
        got="something else",
        remedy="remove it or choose another folder",
    )


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of ``path`` when the block ends well.

    It lies in a hidden sibling, so that a run that is cut off leaves ``path`` as it was. What a
    killed run left there goes with the next one.
    """
    aside = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(aside, ignore_errors=True)
    fresh, replaced = aside / "new" / path.name, aside / "replaced"
    fresh.parent.mkdir(parents=True)
    try:
        yield fresh
        if os.path.lexists(path):
            path.rename(replaced)
        fresh.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _schedule(inputs: Sequence[NodeInput], options: Recorder) -> Iterator[_Sample]:
    """All samples in recording order."""
    rng = np.random.default_rng([options.seed, 1])
    samples = []
    for source, entry in enumerate(inputs):
        joints = entry.name == JOINTS
        rate = options.joint_hz if joints else options.camera_hz
        jitter_s, delay_s, spread_s = (1e-4, 3e-4, 5e-5) if joints else (5e-4, 4e-3, 6e-4)
        count = int(options.seconds * rate)
        stamps = (np.arange(count) + rng.uniform(0.1, 0.9)) / rate
        # A jitter beyond half a period would reorder the stamps of one sensor.
        stamps += np.clip(rng.normal(0, jitter_s, count), -0.4 / rate, 0.4 / rate)
        times = stamps + delay_s + np.abs(rng.normal(0, spread_s, count))
        times = np.maximum.accumulate(times)
        samples += [
            _Sample(int(time * 1e9), int(stamp * 1e9), source)
            for time, stamp in zip(times, stamps, strict=True)
        ]
    return iter(sorted(samples, key=lambda s: (s.time_ns, s.source)))


class _Encoder:
    """Turns a sample into the CDR bytes of its message."""

    def __init__(
        self,
        store: Any,
        scene: Scene,
        inputs: Sequence[NodeInput],
        joint_names: Sequence[str],
    ) -> None:
        self._store = store
        self._scene = scene
        self._inputs = inputs
        self._names = list(joint_names) or [f"joint_{i + 1}" for i in range(ARM_JOINTS)]
        cameras = [entry.name for entry in inputs if entry.name != JOINTS]
        self._view = {name: index for index, name in enumerate(cameras)}

    def __call__(self, sample: _Sample) -> bytes:
        entry = self._inputs[sample.source]
        message = (
            self._joints(sample.stamp_ns)
            if entry.msgtype == JOINTS_TYPE
            else self._image(entry.name, sample.stamp_ns)
        )
        return bytes(self._store.serialize_cdr(message, entry.msgtype))

    def _header(self, stamp_ns: int, frame: str) -> Any:
        types = self._store.types
        sec, nanosec = divmod(_EPOCH_NS + stamp_ns, 1_000_000_000)
        stamp = types["builtin_interfaces/msg/Time"](sec=sec, nanosec=nanosec)
        return types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame)

    def _image(self, name: str, stamp_ns: int) -> Any:
        pixels = self._scene.render(self._view[name], stamp_ns / 1e9)
        height, width, channels = pixels.shape
        return self._store.types["sensor_msgs/msg/Image"](
            header=self._header(stamp_ns, f"{name}_optical_frame"),
            height=height,
            width=width,
            encoding="rgb8",
            is_bigendian=0,
            step=width * channels,
            data=pixels.reshape(-1),
        )

    def _joints(self, stamp_ns: int) -> Any:
        position, velocity = self._scene.joints(stamp_ns / 1e9, len(self._names))
        return self._store.types[JOINTS_TYPE](
            header=self._header(stamp_ns, ""),
            name=self._names,
            position=position,
            velocity=velocity,
            effort=np.zeros(0),
        )
