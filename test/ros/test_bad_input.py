"""Bad sensor data over DDS: each is refused with its reason, counted, and costs nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("cv2")

import cv2
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import serialize_message

from .harness import RELIABLE, Robot, image, joint_state, jpeg, wait_until

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def robot(start_for_all: Callable[..., Robot]) -> Robot:
    robot = start_for_all(
        rate_hz=20.0,
        cameras=["front", "wrist"],
        camera__wrist__topic="wrist",
        camera__wrist__slot="left_wrist_0_rgb",
        camera__wrist__transport="compressed",
        camera__wrist__max_age_s=8.0,
        joints__max_age_s=2.0,
    )
    robot.bring_up()
    return robot


@pytest.fixture(autouse=True)
def goes_on(robot: Robot) -> Iterator[None]:
    """Good data flows before, during and after each test, and so do chunks."""
    robot.feed("front", "wrist", "joints")
    robot.wait_chunks(2)
    yield
    robot.feed("front", "wrist", "joints")
    robot.wait_chunks(3)
    assert robot.target.alive and "Traceback" not in robot.target.log


def grid(*shape: int) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) % 251).astype(np.uint8).reshape(shape)


def broken_png() -> Any:
    data = bytearray(cv2.imencode(".png", grid(24, 32, 3))[1].tobytes())
    data[60:-12] = bytes(len(data) - 72)
    return jpeg(bytes(data), "png")


PICTURE = cv2.imencode(".jpeg", grid(64, 96, 3))[1].tobytes()
NAN, INF = float("nan"), float("inf")
REFUSED: list[tuple[str, str, Callable[[], Any], str, str]] = [
    ("depth", "front", lambda: image("16UC1", grid(4, 4, 2)), "encoding", "depth in millimetres"),
    ("unknown", "front", lambda: image("h264", grid(4, 4, 1)), "encoding", "got 'h264'"),
    ("no order", "front", lambda: image("8UC3", grid(4, 4, 3)), "encoding", "rgb8 or bgr8"),
    ("short step", "front", lambda: image("rgb8", grid(4, 4, 3), step=5), "size", "'step'"),
    ("short data", "front", lambda: image("rgb8", grid(4, 4, 3), step=13), "size", "got 48"),
    ("wrong format", "front", lambda: image("rgba8", grid(4, 4, 3)), "size", "'step'"),
    ("cut", "wrist", lambda: jpeg(PICTURE[:-200]), "decode", "cut short"),
    ("no picture", "wrist", lambda: jpeg(b"not a picture"), "decode", "begins like jpeg or png"),
    ("empty", "wrist", lambda: jpeg(b""), "decode", "got 0 bytes"),
    ("corrupt", "wrist", broken_png, "decode", "do not decode"),
    ("missing", "joints", lambda: joint_state({"shoulder": 0.0, "wrist": 0.0}), "joint_names",
     "joints elbow are missing"),
    ("nan", "joints", lambda: joint_state({"shoulder": NAN, "elbow": 0.0, "wrist": 0.0}),
     "not_finite", "position of shoulder"),
    ("infinite", "joints", lambda: joint_state({"shoulder": 0.0, "elbow": 0.0, "wrist": INF}),
     "not_finite", "position of wrist"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "make", "reason", "text"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refused_with_a_reason(
    robot: Robot, topic: str, make: Callable[[], Any], reason: str, text: str
) -> None:
    key = f"refused.{reason}"
    misses = robot.fresh_part("decisions")["stale"]
    before = robot.part(f"input {topic}")
    robot.feed(*({"front", "wrist", "joints"} - {topic}))
    for count in (1, 2):
        robot.publish(topic, make())
        if topic == "wrist":  # what a newer picture overtakes is never decoded
            robot.wait_value(f"input {topic}", key, int(before[key]) + count)
    robot.wait_chunks(3)
    robot.feed("front", "wrist", "joints")
    robot.wait_value(f"input {topic}", key, int(before[key]) + 2)
    after = robot.part(f"input {topic}")
    assert int(after["refused"]) == int(before["refused"]) + 2, "and under no other reason"
    assert text in after["last_refusal"]
    assert f"input '{topic}'" in robot.target.log
    assert robot.part("decisions")["stale"] == misses, "the good one before served"


@pytest.mark.jazzy
@pytest.mark.parametrize("topic", ["front", "wrist", "joints"])
def test_bytes_that_are_no_message(robot: Robot, topic: str) -> None:
    before = robot.fresh_part(f"input {topic}")
    robot.feed(*({"front", "wrist", "joints"} - {topic}))
    good = serialize_message(robot.good(topic))
    robot.publish(topic, robot.good(topic))
    for data in (good[:4] + b"\xff" * 60, good[: len(good) // 2], b"\x00\x01\x00\x00") * 2:
        robot.publish_bytes(topic, data)
        time.sleep(0.03)  # a burst longer than the queue loses messages before anybody sees them
    robot.wait_value(f"input {topic}", "refused.malformed", int(before["refused.malformed"]) + 6)
    after = robot.part(f"input {topic}")
    assert int(after["refused"]) == int(before["refused"]) + 6
    assert int(after["received"]) >= int(before["received"]) + 6
    assert "can be read: " in after["last_refusal"] and "/src/" not in after["last_refusal"]
    where = "wrist/compressed" if topic == "wrist" else topic
    robot.wait_log(f"input '{topic}' ({where}) refuses messages, malformed: no ")
    assert robot.target.log.count(f"({where}) refuses messages, malformed") == 1


def test_stamps_far_ahead_are_shown(robot: Robot) -> None:
    before = int(robot.fresh_part("input front")["ahead_of_clock"])
    for ahead_ns in (5_000_000_000, (2**31 - 2) * 1_000_000_000 - robot.now_ns()):
        robot.publish("front", image(), robot.now_ns() + ahead_ns)
    said = (1, "messages are stamped ahead of the node's clock")
    wait_until(lambda: robot.levels["policy: input front"] == said)
    robot.wait_value("input front", "ahead_of_clock", before + 2)
    robot.wait_log("input 'front' (front) is stamped ahead of the node's clock: ")


@pytest.mark.parametrize("encoding", ["bgr8", "rgba8", "bgra8", "mono8", "yuv422_yuy2", "mono16"])
def test_supported_encodings_are_taken(robot: Robot, encoding: str) -> None:
    channels = {"bgr8": 3, "mono8": 1, "yuv422_yuy2": 2, "mono16": 2}.get(encoding, 4)
    before = robot.fresh_part("input front")
    robot.feed("wrist", "joints")
    for _ in range(6):
        robot.publish("front", image(encoding, grid(24, 32, channels), pad=3))
        robot.wait_chunks(1)
    after = robot.fresh_part("input front")
    assert after["refused"] == before["refused"]
    assert int(after["used"]) > int(before["used"])


def test_extra_and_reordered_joints_are_taken_by_name(robot: Robot) -> None:
    before = robot.fresh_part("input joints")
    robot.feed("front", "wrist")
    values = {"gripper": NAN, "wrist": 0.1, "shoulder": 0.2, "base": 9.0, "elbow": 0.3}
    for _ in range(4):
        robot.publish("joints", joint_state(values))
        robot.wait_chunks(1)
    after = robot.fresh_part("input joints")
    assert after["refused"] == before["refused"] and int(after["used"]) > int(before["used"])


def test_stamps_that_go_backwards(robot: Robot) -> None:
    before = int(robot.fresh_part("input front")["refused.stamp_backwards"])
    for _ in range(3):
        robot.publish("front", image(), robot.now_ns() - 2_000_000_000)
    robot.wait_value("input front", "refused.stamp_backwards", before + 3)
    assert "before that of the last message" in robot.fresh_part("input front")["last_refusal"]


def test_messages_without_a_stamp_are_reported(robot: Robot) -> None:
    robot.feed("wrist", "joints")
    robot.publish("front", image(), 0)
    robot.wait_chunks(1)
    robot.wait_value("input front", "unstamped", 1)


def test_a_camera_that_stops_silences_the_chunks_until_it_returns(robot: Robot) -> None:
    lines, misses = robot.target.log.count("no chunk"), int(robot.fresh_part("decisions")["stale"])
    robot.feed("wrist", "joints")
    wait_until(lambda: robot.target.log.count("no chunk is published: input 'front'") > lines)
    silent = len(robot.chunks)
    wait_until(lambda: int(robot.part("decisions")["stale"]) >= misses + 5)
    assert robot.levels["policy: decisions"] == (2, "stale: front")
    assert robot.levels["policy: input front"][0] == 1
    assert "old, allowed 0.500 s" in robot.levels["policy: input front"][1]
    assert len(robot.chunks) == silent
    assert robot.target.log.count("no chunk") == lines + 1, "an edge, not a line a decision"
    robot.feed("front", "wrist", "joints")
    robot.wait_chunks(3)
    newest = robot.chunks[-1]
    assert newest.observation_age.sec == 0 and newest.observation_age.nanosec < 500_000_000
    wait_until(lambda: robot.fresh_part("decisions") and robot.levels["policy: decisions"][0] == 0)


@pytest.mark.jazzy
def test_a_publisher_whose_qos_does_not_fit_is_reported(start: Callable[..., Robot]) -> None:
    namespace = "/picky"
    option = f"qos_overrides.{namespace}/front.subscription.reliability"
    other = start(namespace=namespace, arguments=("-p", f"{option}:=reliable"))
    other.bring_up()
    other.node.create_publisher(type(image()), "front", qos_profile_sensor_data)
    other.wait_log("does not fit the subscription of input 'front', nothing is received")
    assert int(other.fresh_part("input front")["incompatible_publishers"]) >= 1
    other.publish("front", image(), qos=RELIABLE)
    wait_until(lambda: other.fresh_part("input front")["accepted"] == "1")
