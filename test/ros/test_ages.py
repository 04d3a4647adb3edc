"""How old what a chunk was made of is: asked for, refused and told, wherever the context went."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import ForkSession, RestoreCapsule, SaveCapsule

from flashrt_ros.stamps import time_message, to_ns

from .harness import Robot, image, joint_state

pytestmark = pytest.mark.ros
INPUT, STALE_INPUT = 11, 83
HOUR = 3600 * 10**9


@pytest.fixture(scope="module")
def robot(start_for_all: Callable[..., Robot]) -> Robot:
    ages = {"camera__front__max_age_s": 2.0, "joints__max_age_s": 60.0}
    robot = start_for_all(max_sessions=5, capsule_slots=2, **ages)
    robot.bring_up()
    return robot


def decided_on(robot: Robot, image_age_s: float = 0.0) -> tuple[int, int]:
    """A decision of the main session; the stamps of its image and joint states."""
    now_ns = robot.now_ns()
    image_ns = now_ns - round(image_age_s * 1e9)
    robot.publish("front", image(), image_ns)
    robot.publish("joints", joint_state(), now_ns)
    wanted = {"inputs": ["front", "joints"], "not_before": [time_message(image_ns)] * 2}
    answer = robot.decide(5.0, **wanted)
    assert answer.error_code == 0, answer.error_msg
    assert oldest_ns(answer) == image_ns and to_ns(answer.chunk.header.stamp) == now_ns
    return image_ns, now_ns


def oldest_ns(answer: Any) -> int:
    """Stamp of the oldest input of a chunk."""
    assert answer.error_code == 0, answer.error_msg
    return to_ns(answer.chunk.generated) - to_ns(answer.chunk.observation_age)


def test_a_capsule_is_as_old_as_its_oldest_input(robot: Robot) -> None:
    image_ns, _ = decided_on(robot, image_age_s=1.0)
    for name in ("first", "second"):  # a capsule of a capsule, too
        assert robot.call(SaveCapsule, "save_capsule", name=name).error_code == 0
        assert robot.call(RestoreCapsule, "restore_capsule", name=name).error_code == 0
    forked = [{"capsule": "second"}, {"source_session": "main"}, {"source_session": "fork 0"}]
    for index, source in enumerate(forked):
        fork = robot.call(ForkSession, "fork_session", new_session=f"fork {index}", **source)
        assert fork.error_code == 0, fork.error_msg
    assert oldest_ns(robot.decide(reuse_context=True)) == image_ns
    left_s = 2.05 - (robot.now_ns() - image_ns) * 1e-9
    time.sleep(max(0.0, left_s))
    made = len(robot.chunks)
    for name in ("second", "first"):
        refused = robot.decide(reuse_context=True)
        assert refused.error_code == STALE_INPUT, "the image is too old, whatever the joints are"
        assert "sample of input 'front': expected one of at most 2.000 s" in refused.error_msg
        assert robot.call(RestoreCapsule, "restore_capsule", name=name).error_code == 0
    assert robot.decide(reuse_context=True).error_code == STALE_INPUT
    for index in range(3):
        answer = robot.decide(session=f"fork {index}", reuse_context=True)
        assert oldest_ns(answer) == image_ns, "returned only, and as old as it is"
    time.sleep(0.2)
    assert len(robot.chunks) == made, "nothing is published"


def test_a_context_is_reused_only_where_it_is_as_new_as_asked(robot: Robot) -> None:
    image_ns, joints_ns = decided_on(robot)
    newer = {"front": image_ns, "joints": joints_ns}
    names, stamps = list(newer), [time_message(stamp) for stamp in newer.values()]
    asked: dict[str, Any] = {"inputs": names, "not_before": stamps}
    assert robot.decide(reuse_context=True, **asked).error_code == 0
    assert robot.call(ForkSession, "fork_session", new_session="branch").error_code == 0
    made = len(robot.chunks)
    begin = time.monotonic()
    for session in ("main", "branch"):
        for name, stamp in ((names[0], image_ns + HOUR), (names[1], joints_ns + HOUR)):
            refused = robot.decide(
                30.0,
                session=session,
                reuse_context=True,
                inputs=[name],
                not_before=[time_message(stamp)],
            )
            assert refused.error_code == STALE_INPUT, session
            assert f"sample of input '{name}': expected one stamped at not" in refused.error_msg
    assert time.monotonic() - begin < 10.0, "nothing that comes would make it newer"
    robot.publish("front", image())
    refused = robot.decide(
        reuse_context=True,
        inputs=["front"],
        not_before=[time_message(robot.stamps_ns["front"])],
    )
    assert refused.error_code == STALE_INPUT, "the newer image is not in the context"
    assert len(robot.chunks) == made


@pytest.mark.parametrize("reuse", [False, True])
def test_an_input_that_is_named_twice(robot: Robot, reuse: bool) -> None:
    decided_on(robot)
    far = robot.now_ns() + HOUR
    for stamps in ((far, 0), (0, far), (0, 0)):
        refused = robot.decide(
            reuse_context=reuse,
            inputs=["front", "joints", "front"],
            not_before=[time_message(stamp) for stamp in (stamps[0], 0, stamps[1])],
        )
        assert refused.error_code == INPUT
        assert "'inputs': expected each name once, got ['front']" in refused.error_msg
