"""Chunks beside the plans of an expert in the recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_typestore

from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.expert import KIND, TOPIC, expert_error
from flashrt_ros.replay.records import ChunkRecord

BASE, SECOND = 1_767_225_600_000_000_000, 1_000_000_000


def bag_of_plans(folder: Path, plans: dict[int, np.ndarray]) -> Path:
    """Stamp (ns) -> [rows, 2] of joints b and a."""
    store = get_typestore(Stores.ROS2_JAZZY)
    types, none = store.types, np.zeros(0)
    with Writer(folder / "bag", version=9) as writer:
        topic = writer.add_connection(TOPIC, KIND, typestore=store)
        for stamp_ns, rows in plans.items():
            sec, nanosec = divmod(stamp_ns, SECOND)
            stamp = types["builtin_interfaces/msg/Time"](sec=sec, nanosec=nanosec)
            later = types["builtin_interfaces/msg/Duration"](sec=0, nanosec=0)
            point = types["trajectory_msgs/msg/JointTrajectoryPoint"]
            message = types[KIND](
                header=types["std_msgs/msg/Header"](stamp=stamp, frame_id=""),
                joint_names=["b", "a"],
                points=[point(row, none, none, none, later) for row in rows],
            )
            writer.write(topic, stamp_ns, store.serialize_cdr(message, KIND))
    return folder / "bag"


def chunk(stamp_ns: int, actions: np.ndarray) -> ChunkRecord:
    own = {"session": "main", "sequence": 0, "names": ("a", "b"), "policy": "", "fingerprint": ""}
    times = {"stamp_ns": stamp_ns, "oldest_ns": stamp_ns, "first_action_ns": stamp_ns}
    rest = {"dt_ns": SECOND // 10, "age_ms": 0.0, "received_ns": 0}
    return ChunkRecord(**own, **times, **rest, actions=actions.astype(np.float32))


def test_each_chunk_is_held_against_the_plan_of_its_moment(tmp_path: Path) -> None:
    plan = np.array([[0.0, 1.0], [2.0, 1.5], [4.0, 2.0]])
    with Bag(bag_of_plans(tmp_path, {BASE: plan, BASE + SECOND: plan + 10})) as bag:
        chunks = [
            chunk(BASE, plan[:, ::-1] + [0.25, 0.5]),
            chunk(BASE + SECOND, plan[:, ::-1] + 10),
            chunk(BASE + SECOND // 2, plan * 100),  # nobody planned then
        ]
        found = expert_error(bag, chunks)
    assert found["a"] == pytest.approx({"mean": 0.125, "standing_still": 0.5, "chunks": 2})
    assert found["b"] == pytest.approx({"mean": 0.25, "standing_still": 2.0, "chunks": 2})


def test_a_recording_without_plans_has_nothing_to_compare(recording: Path) -> None:
    with Bag(recording) as bag:
        assert expert_error(bag, [chunk(BASE, np.zeros((3, 2)))]) == {}
