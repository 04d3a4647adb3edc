"""GR00T N1.7 in a node of its own: chunks, another prompt, capsules. One process for all tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import RestoreCapsule, SaveCapsule, SetPrompt

from .harness import JOINTS, Robot, image, joint_state

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def robot(start_for_all: Callable[..., Robot]) -> Robot:
    # Ages that outlast the module: one set of messages serves every test.
    robot = start_for_all(
        policy="groot_n17",
        camera__front__slot="view_0",
        embodiment=2,
        capsule_slots=1,
        camera__front__max_age_s=600.0,
        joints__max_age_s=600.0,
    )
    robot.bring_up()
    robot.publish("front", image())
    robot.publish("joints", joint_state())
    return robot


def test_a_chunk_through_the_node(robot: Robot) -> None:
    answer = robot.decide()
    assert answer.error_code == 0, answer.error_msg
    chunk = answer.chunk
    assert (chunk.policy, chunk.session) == ("groot_n17", "main")
    assert (chunk.horizon, chunk.action_dim) == (4, 3) and tuple(chunk.action_names) == JOINTS
    values = np.asarray(chunk.data, np.float32)
    assert np.isfinite(values).all() and np.unique(values).size > 6


def test_what_a_capsule_restores_goes_on_as_it_was(robot: Robot) -> None:
    robot.decide()
    assert robot.call(SaveCapsule, "save_capsule", name="mark").error_code == 0
    on = bytes(robot.decide(reuse_context=True).chunk.data.tobytes())
    assert robot.call(SetPrompt, "set_prompt", prompt="open the drawer").error_code == 0
    other = bytes(robot.decide().chunk.data.tobytes())
    assert other != on
    answer = robot.call(RestoreCapsule, "restore_capsule", name="mark")
    assert answer.error_code == 0, answer.error_msg
    assert bytes(robot.decide(reuse_context=True).chunk.data.tobytes()) == on


def test_a_prompt_too_long_is_refused_in_one_line(robot: Robot) -> None:
    answer = robot.call(SetPrompt, "set_prompt", prompt="put it down and " * 40)
    assert answer.error_code != 0 and "at most 128 tokens" in answer.error_msg
    assert robot.decide().error_code == 0
