"""LingBot-VA in a node of its own: chunks that follow each other, looked at on the way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import RestoreCapsule, SaveCapsule

from flashrt_ros.stamps import to_ns

from .harness import ACTIVATE, DEACTIVATE, Robot, wait_until

pytestmark = pytest.mark.ros

DT_S = 0.1


@pytest.fixture(scope="module")
def robot(start: Callable[..., Robot]) -> Robot:
    robot = start(
        policy="lingbot_va",
        camera__front__slot="view_0",
        action__dt_s=DT_S,
        horizon=0,
        rate_hz=50.0,
        capsule_slots=2,
        output__commands__topic="commands",
        limits__lower=[-0.1, -0.1, -0.1],
        limits__upper=[0.1, 0.1, 0.1],
        safe__action="hold",
    )
    robot.bring_up()
    robot.feed("front", "joints")
    return robot


def test_chunks_follow_each_other(robot: Robot) -> None:
    wait_until(lambda: len(robot.chunks) >= 4, 15.0, lambda: robot.target.log)
    chunks = robot.chunks[:4]
    assert [chunk.sequence for chunk in chunks] == [0, 1, 2, 3]
    assert [chunk.horizon for chunk in chunks] == [4, 8, 8, 8]
    starts = [to_ns(chunk.first_action_stamp) for chunk in chunks]
    for chunk, begun, next_ns in zip(chunks, starts, starts[1:], strict=False):
        # Never before the chunk is over, and as soon as an observation and a decision are made.
        late_s = (next_ns - begun) * 1e-9 - DT_S * chunk.horizon
        assert 0 <= late_s < 1.0
        assert np.isfinite(np.asarray(chunk.data, np.float32)).all()


def test_a_capsule_is_of_a_chunks_end(robot: Robot) -> None:
    robot.wait_chunks(1)
    saved = robot.call(SaveCapsule, "save_capsule", name="end")
    kept = robot.chunks[-1]
    assert saved.error_code == 0, saved.error_msg
    answer = wait_until(
        lambda: (
            answer
            if (answer := robot.call(SaveCapsule, "save_capsule", name="late")).error_code
            else None
        ),
        5.0,
        "a refusal in the middle of a chunk",
    )
    assert "at the end of a chunk" in answer.error_msg and "\n" not in answer.error_msg
    robot.wait_chunks(1)
    assert robot.call(RestoreCapsule, "restore_capsule", name="end").error_code == 0
    # The capsule's chunk goes out again, before another decision is made.
    again = wait_until(
        lambda: [chunk for chunk in robot.chunks if chunk.sequence == kept.sequence][1:],
        5.0,
        "the chunk of the capsule",
    )
    assert again[0].data == kept.data


def test_an_activation_begins_an_episode(robot: Robot) -> None:
    assert robot.change(DEACTIVATE)
    before = len(robot.chunks)
    assert robot.change(ACTIVATE)
    wait_until(lambda: len(robot.chunks) >= before + 2, 10.0, lambda: robot.target.log)
    assert [chunk.horizon for chunk in robot.chunks[before : before + 2]] == [4, 8]
    assert [chunk.sequence for chunk in robot.chunks[before : before + 2]] == [0, 1]
