"""Episodes as rosbag2: what the cameras and joints gave, and the expert's plan of each moment.

Every message of a moment carries the same stamp, simulated time after a fixed epoch, and is
recorded at it.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import yaml
from PIL import Image
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from flashrt_core.errors import OptionError
from flashrt_core.outputs import writing
from flashrt_core.policies.base import Observation

from .layout import Array
from .robot import DT_S, JOINTS, VIEWS

IMAGES = {slot: f"/{camera}_camera/image_raw/compressed" for slot, camera in VIEWS.items()}
STATES, PLANS, PROMPTS = "/joint_states", "/expert/joint_trajectory", "/prompt"
IMAGE_TYPE, STATE_TYPE = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/JointState"
PLAN_TYPE, PROMPT_TYPE = "trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/String"
TOPICS = {
    **dict.fromkeys(IMAGES.values(), IMAGE_TYPE),
    STATES: STATE_TYPE,
    PLANS: PLAN_TYPE,
    PROMPTS: PROMPT_TYPE,
}
# Any fixed moment will do; a recording is old when it is read.
EPOCH_NS = 1_767_225_600_000_000_000
_MADE = "tabletop"  # key of the custom data of a bag
STORAGES = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}


def made_of(path: Path) -> tuple[str, str]:
    """Kind of storage of a bag, and how it was made; empty where it does not say.

    Raises:
        OptionError: no bag.
    """
    try:
        content = yaml.safe_load((path / "metadata.yaml").read_bytes())
        about = content["rosbag2_bagfile_information"]
        return str(about["storage_identifier"]), str(
            (about.get("custom_data") or {}).get(_MADE, "")
        )
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise OptionError(
            f"'{path}'",
            expected="a recorded episode",
            got=getattr(error, "strerror", None) or f"{type(error).__name__}: {error}",
            remedy="remove it, or name another --output",
        ) from error


class EpisodeWriter:
    """A bag of one episode, whole or not there; use as a context manager.

    Args:
        path: folder of the bag, which must not exist.
        storage: "mcap" or "sqlite3".
        made: how it was made, in a word, which :func:`made_of` gives back.

    Raises:
        OutputError: the file system refuses.
    """

    def __init__(self, path: Path, storage: str = "mcap", made: str = "") -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._store: Any = get_typestore(Stores.ROS2_JAZZY)
        with writing("recording", path):
            shutil.rmtree(self._part, ignore_errors=True)
            self._part.mkdir(parents=True)
            # The storage file is named after its folder, so the folder has its last name already.
            self._writer = Writer(
                self._part / path.name, version=9, storage_plugin=STORAGES[storage]
            )
            if made:
                self._writer.set_custom_data(_MADE, made)
            self._writer.open()
        self._topics = {
            topic: self._writer.add_connection(topic, kind, typestore=self._store)
            for topic, kind in TOPICS.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with writing("recording", self._path):
            self._writer.close()
            if kind is None:
                (self._part / self._path.name).rename(self._path)
            shutil.rmtree(self._part, ignore_errors=True)

    def prompt(self, text: str) -> None:
        """The instruction, at the beginning."""
        self._write(PROMPTS, 0, self._store.types[PROMPT_TYPE](data=text))

    def moment(self, observation: Observation, plan: Array) -> None:
        """An observation, and the plan [H, 7] for it."""
        types, stamp_ns = self._store.types, observation.stamp_ns
        for slot, topic in IMAGES.items():
            message = types[IMAGE_TYPE](
                header=self._header(stamp_ns, f"{VIEWS[slot]}_camera_optical_frame"),
                format="rgb8; png compressed bgr8",
                data=np.frombuffer(_png(np.asarray(observation.images[slot])), np.uint8),
            )
            self._write(topic, stamp_ns, message)
        nothing = np.zeros(0)
        state = types[STATE_TYPE](
            header=self._header(stamp_ns, ""),
            name=list(JOINTS),
            position=np.asarray(observation.state, np.float64),
            velocity=nothing,
            effort=nothing,
        )
        self._write(STATES, stamp_ns, state)
        self._write(PLANS, stamp_ns, self._trajectory(stamp_ns, plan))

    def _trajectory(self, stamp_ns: int, plan: Array) -> Any:
        types, nothing = self._store.types, np.zeros(0)
        points = []
        for row, positions in enumerate(plan):
            sec, nanosec = divmod(round(row * DT_S * 1e9), 1_000_000_000)
            due = types["builtin_interfaces/msg/Duration"](sec=sec, nanosec=nanosec)
            points.append(
                types["trajectory_msgs/msg/JointTrajectoryPoint"](
                    positions=positions,
                    velocities=nothing,
                    accelerations=nothing,
                    effort=nothing,
                    time_from_start=due,
                )
            )
        return types[PLAN_TYPE](
            header=self._header(stamp_ns, ""), joint_names=list(JOINTS), points=points
        )

    def _header(self, stamp_ns: int, frame: str) -> Any:
        sec, nanosec = divmod(EPOCH_NS + stamp_ns, 1_000_000_000)
        stamp = self._store.types["builtin_interfaces/msg/Time"](sec=sec, nanosec=nanosec)
        return self._store.types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame)

    def _write(self, topic: str, stamp_ns: int, message: Any) -> None:
        data = self._store.serialize_cdr(message, TOPICS[topic])
        with writing("recording", self._path):
            self._writer.write(self._topics[topic], EPOCH_NS + stamp_ns, data)


def _png(image: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "png", compress_level=4)
    return buffer.getvalue()
