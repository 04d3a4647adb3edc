"""A thousand decisions of one process: memory, threads and descriptors stay where they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import DropCapsule, ForkSession, RestoreCapsule, SaveCapsule, SetPrompt

from .harness import Robot, resources, wait_until

pytestmark = [pytest.mark.ros, pytest.mark.slow]
WARM_UP, DECISIONS = 250, 1000
SLACK_MB = 2.0


def exercise(robot: Robot) -> None:
    """One round of everything that a running robot asks for."""
    assert robot.call(SaveCapsule, "save_capsule", name="spot").error_code == 0
    assert robot.call(ForkSession, "fork_session", new_session="branch").error_code == 0
    assert robot.decide(session="branch", reuse_context=True).error_code == 0
    drop = robot.call(DropCapsule, "drop_capsule", name="branch", session=True)
    assert drop.error_code == 0
    assert robot.call(RestoreCapsule, "restore_capsule", name="spot").error_code == 0
    assert robot.call(SetPrompt, "set_prompt", prompt="").error_code != 0
    assert robot.call(RestoreCapsule, "restore_capsule", name="none").error_code != 0


def test_a_node_that_decides_a_thousand_times(start: Callable[..., Robot]) -> None:
    robot = start(rate_hz=100.0, camera__front__max_age_s=5.0, joints__max_age_s=5.0)
    robot.bring_up()
    robot.feed("front", "joints")
    robot.wait_chunks(20)
    exercise(robot)

    def decided(count: int) -> bool:
        robot.chunks.clear()
        robot.timings.clear()
        return int(robot.part("decisions").get("decisions", 0)) >= count

    wait_until(lambda: decided(WARM_UP), 60.0)
    before = robot.target.resources()
    for share in (0.5, 0.75, 1.0):
        wait_until(lambda share=share: decided(WARM_UP + round(share * DECISIONS)), 90.0)
        exercise(robot)
    after = robot.target.resources()
    assert after[1:] == before[1:], "threads and file descriptors"
    assert abs(after[0] - before[0]) <= SLACK_MB, f"resident memory {before[0]} -> {after[0]} MB"
    assert robot.target.stop() == 0


def test_a_session_that_decides_a_thousand_times() -> None:
    """The same without ROS, so that a leak of the engine is told from one of the node."""
    from flashrt_core.load import LoadOptions, load
    from flashrt_core.policies.base import Observation

    session = load(
        LoadOptions(
            views=("base_0_rgb",), state_dim=3, action_dim=3, prompt="wave", steps=1, horizon=4,
            threads=1,
        )
    )  # fmt: skip
    rng = np.random.default_rng(0)
    observation = Observation(
        {"base_0_rgb": rng.integers(0, 256, (24, 32, 3), np.uint8)}, np.zeros(3, np.float32)
    )

    for k in range(WARM_UP + DECISIONS):
        if k == WARM_UP:
            before = resources()
        state = np.full(3, 0.5 * np.sin(k), np.float32)
        session.decide(replace(observation, state=state, stamp_ns=k))
        if k % 50 == 0:
            session.snapshot("spot")
            session.restore("spot")
    after = resources()
    session.engine.close()
    assert session.decisions == WARM_UP + DECISIONS
    assert after[1:] == before[1:]
    assert abs(after[0] - before[0]) <= SLACK_MB, f"{before[0]} -> {after[0]} MB"
