"""Missing inputs over DDS: wait, go on masked, or stop, each reported and each over when it is."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import ForkSession, RestoreCapsule, SaveCapsule

from flashrt_ros.stamps import time_message, to_ns

from .harness import Robot, image, wait_until

pytestmark = pytest.mark.ros
STALE_INPUT = 83
CAMERAS = {
    "cameras": ["front", "side"],
    "camera__side__topic": "side",
    "camera__side__slot": "left_wrist_0_rgb",
}


@pytest.mark.timed
def test_a_held_camera_is_masked_and_comes_back(start: Callable[..., Robot]) -> None:
    robot = start(
        rate_hz=20.0,
        camera__side__on_missing="hold",
        # A busy machine brings late what is sent.
        camera__front__max_age_s=1.0,
        joints__max_age_s=1.0,
        **CAMERAS,
    )
    robot.bring_up()
    robot.feed("front", "side", "joints")
    robot.wait_chunks(5)
    robot.feed("front", "joints")
    robot.wait_value("input side", "on_missing", "hold")
    wait_until(lambda: int(robot.fresh_part("decisions")["masked"]) >= 20, 20.0, "masked decisions")
    before = robot.part("decisions")
    after = robot.fresh_part("input side")
    assert int(after["masked"]) >= int(before["masked"])
    level, said = robot.levels["policy: input side"]
    assert level == 1 and "old, allowed" in said
    assert robot.part("decisions")["stale"] == before["stale"]
    robot.feed("front", "side", "joints")
    used = int(robot.fresh_part("input side")["used"])
    wait_until(lambda: int(robot.fresh_part("input side")["used"]) > used + 5, 20.0, "its return")
    end = int(robot.fresh_part("decisions")["masked"])
    robot.wait_chunks(10)
    assert int(robot.fresh_part("decisions")["masked"]) == end
    fork = robot.call(ForkSession, "fork_session", new_session="branch")
    assert fork.error_code == 0 and robot.decide(reuse_context=True).error_code == 0
    assert robot.call(SaveCapsule, "save_capsule", name="here").error_code == 0
    stale = int(robot.fresh_part("decisions")["stale"])  # some, where a busy machine was late
    robot.feed("side", "joints")  # the other camera waits
    wait_until(
        lambda: int(robot.fresh_part("decisions")["stale"]) > stale + 5, 20.0, "stale decisions"
    )
    made = len(robot.chunks)
    refused = robot.decide(reuse_context=True)
    assert refused.error_code == STALE_INPUT, "it would be a chunk of what is not any more"
    assert "context that is kept, its sample of input 'front': expected" in refused.error_msg
    assert "; decide without reuse_context, or fork" in refused.error_msg
    assert robot.decide(session="branch", reuse_context=True).error_code == 0
    assert robot.call(RestoreCapsule, "restore_capsule", name="here").error_code == 0
    refused = robot.decide(reuse_context=True)
    assert refused.error_code == STALE_INPUT, "nor is a capsule's observation younger than it is"
    assert len(robot.chunks) == made, "nothing is published"


def test_an_input_that_stops_the_node(start: Callable[..., Robot]) -> None:
    robot = start(rate_hz=20.0, joints__on_missing="stop", joints__max_age_s=0.3)
    robot.bring_up()
    robot.feed("front", "joints")
    robot.wait_chunks(5)
    robot.feed("front")
    robot.wait_log("decisions go on when it is back")
    wait_until(lambda: int(robot.fresh_part("decisions")["stopped"]) > 5, 20.0, "stopped decisions")
    wait_until(lambda: robot.levels["policy: decisions"] == (2, "stopped: joints"))
    assert robot.levels["policy: input joints"][0] == 2
    made = len(robot.chunks)
    refused = robot.decide(timeout_s=60.0)  # a wait would outlast the limit of the call
    assert refused.error_code == STALE_INPUT and "'joints'" in refused.error_msg
    refused = robot.decide(reuse_context=True)
    assert refused.error_code == STALE_INPUT and "'joints'" in refused.error_msg
    assert len(robot.chunks) == made, "nothing is published"
    asking = threading.Event()

    def bring_back() -> None:
        asking.wait(10.0)
        robot.feed("front", "joints")

    thread = threading.Thread(target=bring_back)
    thread.start()
    asking.set()
    stamp = time_message(robot.now_ns())
    answer = robot.decide(timeout_s=20.0, inputs=["joints"], not_before=[stamp])
    thread.join()
    assert answer.error_code == 0, "who names the input waits for it"
    robot.wait_chunks(3)
    robot.wait_log("decisions: over")
    assert robot.target.log.count("decisions go on when it is back") == 1


def test_inputs_that_are_too_far_apart_make_no_decision(start: Callable[..., Robot]) -> None:
    robot = start(
        rate_hz=20.0, sync__max_skew_s=0.05, camera__front__max_age_s=60.0, joints__max_age_s=60.0
    )
    robot.bring_up()
    before_ns = robot.now_ns() - 500_000_000
    robot.feed("joints")
    for index in range(8):
        # From before the first of the joint states that the node keeps.
        robot.publish("front", image(), before_ns + index * 1_000_000)
        robot.wait_value("input front", "on_missing", "wait")
    wait_until(lambda: int(robot.fresh_part("decisions")["skewed"]) > 5, 20.0, "skewed decisions")
    wait_until(
        lambda: robot.levels["policy: decisions"] == (2, "skewed: front, joints"),
        what=lambda: str(robot.levels),
    )
    robot.wait_log("samples within 0.050 s of each other")
    robot.feed("front", "joints")
    robot.chunks.clear()
    robot.wait_chunks(5)
    for chunk in robot.chunks:
        oldest = to_ns(chunk.generated) - to_ns(chunk.observation_age)
        assert 0 <= to_ns(chunk.header.stamp) - oldest <= 50_000_000
