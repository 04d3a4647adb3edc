"""The prompt by a latched topic: the checks of the service, and no stall of the loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import SetPrompt
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String

from flashrt_core.errors import InputError
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_ros.prompt_topic import latched_qos
from flashrt_ros.stamps import to_ns

from .harness import ACTIVATE, CLEANUP, CONFIGURE, DEACTIVATE, Robot, wait_until

pytestmark = pytest.mark.ros
BUCKETS = (32, 64, 96, 128)


def publisher(robot: Robot, qos: Any = None) -> Any:
    return robot.node.create_publisher(String, f"{robot.target.name}/prompt", qos or latched_qos())


@pytest.mark.jazzy
def test_the_last_prompt_counts_even_for_who_comes_later(start: Callable[..., Robot]) -> None:
    robot = start(prompt="")
    topic = publisher(robot)
    topic.publish(String(data="fold the towel"))
    robot.bring_up()
    robot.wait_value("decisions", "prompt", "fold the towel")
    robot.feed("front", "joints")
    assert robot.decide().error_code == 0, "the parameter is empty: the topic gave one"
    assert robot.change(DEACTIVATE) and robot.change(CLEANUP)
    topic.publish(String(data="unfold it"))
    assert robot.change(CONFIGURE) and robot.change(ACTIVATE)
    robot.wait_value("decisions", "prompt", "unfold it")
    assert robot.call(SetPrompt, "set_prompt", prompt="by the service").error_code == 0
    robot.wait_value("decisions", "prompt", "by the service")
    assert robot.fresh_part("decisions")["prompts_taken"] == "1"


def test_what_the_service_refuses_the_topic_refuses(start: Callable[..., Robot]) -> None:
    robot = start(prompt="wave")
    robot.bring_up()
    topic = publisher(robot)
    wait_until(lambda: topic.get_subscription_count() > 0, what="the node to listen")
    refused = ("", "   ", "\u202e\u200b", "wave\x07", "wa\rve", "very " * 2000)
    for count, prompt in enumerate(refused, 1):
        topic.publish(String(data=prompt))
        robot.wait_value("decisions", "prompts_refused", count)
    robot.wait_log("topic ~/prompt: the prompt stays as it was: prompt: expected")
    topic.publish(b"\0\1\0\0\xff\xff\xff\x7fno string")
    robot.wait_value("decisions", "prompts_refused", len(refused) + 1)
    part = robot.fresh_part("decisions")
    assert (part["prompt"], part["prompts_taken"]) == ("wave", "0")
    topic.publish(String(data="wave\n\ttwice"))
    robot.wait_value("decisions", "prompts_taken", 1)
    assert robot.target.alive and "Traceback" not in robot.target.log


def test_a_publisher_that_does_not_latch_is_reported(start: Callable[..., Robot]) -> None:
    robot = start()
    robot.bring_up()
    publisher(robot, QoSProfile(depth=1, durability=DurabilityPolicy.VOLATILE))
    robot.wait_log("publisher on ~/prompt: its QoS (DURABILITY) does not fit")


def test_a_flood_of_prompts_ends_with_the_last(start: Callable[..., Robot]) -> None:
    robot = start(rate_hz=20.0)
    robot.bring_up()
    robot.feed("front", "joints")
    topic = publisher(robot)
    wait_until(lambda: topic.get_subscription_count() > 0)
    robot.wait_chunks(3)
    for k in range(300):
        topic.publish(String(data=f"number {k}"))
    robot.wait_value("decisions", "prompt", "number 299")
    robot.wait_chunks(5)
    assert robot.fresh_part("decisions")["busy"] == "0"


def prompts_of_every_bucket() -> dict[int, str]:
    """Captured length -> a prompt that needs it."""
    session = load(LoadOptions(views=("base_0_rgb",), state_dim=3, prompt_buckets=BUCKETS))
    encode, found = session.processor, {}
    seen = Observation({"base_0_rgb": np.zeros((8, 8, 3), np.uint8)}, np.full(3, 0.25, np.float32))
    for words in range(1, 200):
        prompt = " ".join(["put"] * words)
        try:
            encode.check_prompt(prompt)
        except InputError:
            break
        tokens = encode.prompt_tokens(encode.encode(seen, prompt))
        found[session.engine.shape_for(tokens).prompt_tokens] = prompt
    return found


@pytest.mark.timed
def test_a_change_of_prompt_stalls_the_loop_by_no_more_than_one_decision(
    start: Callable[..., Robot],
) -> None:
    prompts = prompts_of_every_bucket()
    assert tuple(sorted(prompts)) == BUCKETS
    period_s = 0.1
    robot = start(rate_hz=1 / period_s, prompt_buckets=list(BUCKETS))
    robot.bring_up()
    robot.feed("front", "joints")
    topic = publisher(robot)
    wait_until(lambda: topic.get_subscription_count() > 0)
    robot.wait_chunks(5)
    before = int(robot.fresh_part("decisions")["deadline_missed"])
    for taken, bucket in enumerate((*BUCKETS, *BUCKETS[::-1]), 1):  # every change of shape
        robot.chunks.clear()
        robot.wait_chunks(1)
        topic.publish(String(data=prompts[bucket]))
        # In what is told a second later everything is that the change has brought about.
        robot.wait_chunks(10)
        chunks = list(robot.chunks)
        assert all(b.sequence == a.sequence + 1 for a, b in itertools.pairwise(chunks)), bucket
        gaps = [
            (to_ns(b.generated) - to_ns(a.generated)) / 1e9 for a, b in itertools.pairwise(chunks)
        ]
        assert max(gaps) < 2 * period_s, (bucket, gaps)
        part = robot.fresh_part("decisions")
        assert part["prompts_taken"] == str(taken)
        missed, before = int(part["deadline_missed"]) - before, int(part["deadline_missed"])
        assert missed <= 1, bucket
