"""A fuzzer on every topic that a node reads: it counts what it refuses, and goes on.

``FLASHRT_FUZZ_SECONDS`` says for how long, ``FLASHRT_FUZZ_SEED`` with which messages.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("cv2")

from std_msgs.msg import String

from flashrt_ros.prompt_topic import latched_qos

from .controllers import Controllers, positions
from .fuzz import next_message
from .harness import Robot, wait_until
from .test_safe_action import RUN

pytestmark = pytest.mark.ros
SECONDS = float(os.environ.get("FLASHRT_FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("FLASHRT_FUZZ_SEED", "0"))
TOPICS = ("front", "wrist", "joints")
GROWTH_MB = 150.0
EVERY_S = 0.003
KNOWN_BAD = 10


def every_refusal_is_counted(robot: Robot) -> None:
    """Messages that are known to be bad, and what the counters say of them."""
    robot.feeding = set()
    wait_until(lambda: robot.fresh_part("node") and len(robot.diagnostics) >= 6)
    counted = {topic: int(robot.part(f"input {topic}")["refused"]) for topic in TOPICS}
    for _ in range(KNOWN_BAD):  # slowly, so that none is lost on the way
        for topic in TOPICS:
            robot.publish_bytes(topic, b"\x00\x01\x00\x00\xff")
        time.sleep(0.02)
    for topic in TOPICS:
        robot.wait_value(f"input {topic}", "refused", counted[topic] + KNOWN_BAD)


def test_a_fuzzer_on_every_topic(start: Callable[..., Robot]) -> None:
    robot = start(
        **RUN,
        output__trajectory__topic="trajectory",
        cameras=["front", "wrist"],
        camera__wrist__topic="wrist",
        camera__wrist__slot="left_wrist_0_rgb",
        camera__wrist__transport="compressed",
        camera__wrist__max_age_s=0.5,
    )
    heard = Controllers(robot)
    robot.bring_up()
    robot.feed(*TOPICS)
    robot.wait_chunks(5)
    prompts = robot.node.create_publisher(String, f"{robot.target.name}/prompt", latched_qos())
    wait_until(lambda: prompts.get_subscription_count() > 0)
    before = robot.target.resources()
    rng, sent = np.random.default_rng(SEED), dict.fromkeys((*TOPICS, "prompt"), 0)
    end, marks = time.monotonic() + SECONDS, [len(robot.chunks)]
    while time.monotonic() < end:
        assert robot.target.alive, robot.target.log
        topic = (*TOPICS, "prompt")[rng.integers(0, 4)]
        good = String(data="wave") if topic == "prompt" else robot.good(topic)
        data = next_message(rng, good, robot.now_ns())
        (prompts.publish if topic == "prompt" else robot._publishers[topic].publish)(data)
        sent[topic] += 1
        time.sleep(EVERY_S)
        if sum(sent.values()) % 1000 == 0:
            marks.append(len(robot.chunks))
    # Whatever the last prompt was, and whatever stamps there were: it all goes on.
    wait_until(lambda: prompts.publish(String(data="wave")) or len(robot.chunks) > marks[-1] + 5)
    robot.wait_value("execution", "state", "running")
    assert robot.target.alive
    for chunk in robot.chunks:
        assert np.isfinite(chunk.data).all()
    assert all(np.isfinite(positions(h.message)).all() for h in heard.trajectories)
    assert all(later > sooner for sooner, later in itertools.pairwise(marks)), marks
    wait_until(lambda: robot.fresh_part("node") and len(robot.diagnostics) >= 6)
    for topic in TOPICS:
        part = robot.part(f"input {topic}")
        refused = sum(int(v) for k, v in part.items() if k.startswith("refused."))
        assert int(part["refused"]) == refused > sent[topic] // 5, f"{topic}: {part}"
        assert int(part["received"]) == int(part["accepted"]) + refused, f"{topic}: {part}"
        assert float(part["oldest_used_s"]) <= float(part["max_age_s"])
    assert int(robot.part("decisions")["prompts_refused"]) > sent["prompt"] // 5
    assert robot.part("node")["callback_errors"] == "0"
    assert "unexpected exception" not in robot.target.log
    assert robot.target.resources()[0] - before[0] < GROWTH_MB

    every_refusal_is_counted(robot)
    robot.feeding = set(TOPICS)
    robot.wait_chunks(3)
    assert robot.target.stop() == 0
