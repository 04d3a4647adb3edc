"""LingBot-VA in a node of its own: chunks that follow each other, looked at on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import (
    Decide,
    DropCapsule,
    ForkSession,
    RestoreCapsule,
    SaveCapsule,
    SetPrompt,
)
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_ros.stamps import to_ns

from .harness import ACTIVATE, CLEANUP, DEACTIVATE, Robot, wait_until

pytestmark = [pytest.mark.ros, pytest.mark.timed]

DT_S, LIMIT = 0.06, 0.5


@pytest.fixture(scope="module")
def robot(start_for_all: Callable[..., Robot]) -> Robot:
    robot = start_for_all(
        policy="lingbot_va",
        camera__front__slot="view_0",
        camera__front__max_age_s=30.0,  # a capsule that is restored is no older
        joints__max_age_s=30.0,
        action__dt_s=DT_S,
        horizon=0,
        rate_hz=50.0,
        capsule_slots=2,
        max_sessions=2,
        output__commands__topic="commands",
        limits__lower=[-LIMIT] * 3,
        limits__upper=[LIMIT] * 3,
        safe__action="hold",
    )
    robot.bring_up()
    robot.feed("front", "joints")
    return robot


@pytest.fixture(scope="module")
def expected(robot: Robot) -> list[np.ndarray]:
    """The chunks of an episode whose pictures are all the same, executed within the limits."""
    session = load(
        LoadOptions(
            policy="lingbot_va",
            preset="tiny",
            device="cpu",
            views=("view_0",),
            state_dim=3,
            action_dim=3,
            prompt="wave",
            steps=1,
            threads=1,
        )
    )
    seen = {"view_0": np.full((24, 32, 3), 90, np.uint8)}
    state, chunks = np.full(3, 0.25), list[np.ndarray]()
    for pictures in (1, 4, 8, 8):
        for _ in range(pictures - 1):
            session.record(seen)
        done = np.clip(chunks[-1], -LIMIT, LIMIT) if chunks else None
        chunks.append(session.decide(Observation(seen, state), executed=done).actions)
    free = np.abs(np.concatenate(chunks)) < LIMIT
    assert 0.2 < free.mean() < 0.9, "some are clamped, some are not"
    session.engine.close()
    return chunks


def equal(chunks: list[Any], expected: list[np.ndarray]) -> None:
    for chunk, wanted in zip(chunks, expected, strict=True):
        found = np.asarray(chunk.data, np.float32).reshape(wanted.shape)
        assert np.abs(found - wanted).max() < 1e-6, chunk.sequence


def test_chunks_follow_each_other(robot: Robot, expected: list[np.ndarray]) -> None:
    wait_until(lambda: len(robot.chunks) >= 4, 15.0, lambda: robot.target.log)
    chunks = robot.chunks[:4]
    assert [chunk.sequence for chunk in chunks] == [0, 1, 2, 3]
    assert [chunk.horizon for chunk in chunks] == [4, 8, 8, 8]
    starts = [to_ns(chunk.first_action_stamp) for chunk in chunks]
    for chunk, begun, next_ns in zip(chunks, starts, starts[1:], strict=False):
        # Never before the chunk is over, and as soon as an observation and a decision are made.
        late_s = (next_ns - begun) * 1e-9 - DT_S * chunk.horizon
        assert 0 <= late_s < 1.0
    equal(chunks, expected)


def test_a_healthy_node_warns_of_nothing(robot: Robot) -> None:
    robot.wait_chunks(1)
    decisions, execution = robot.fresh_part("decisions"), robot.part("execution")
    assert decisions["deadline_missed"] == "0" and int(decisions["late_pictures"]) <= 1
    level, said = robot.levels["policy: decisions"]
    assert level == 0 or "cameras are late" in said, "and that is the machine's load"
    assert execution["state"] == "running" and execution["safe_actions"] == "0"
    assert "UserWarning" not in robot.target.log and "safe action" not in robot.target.log


def test_a_capsule_is_of_a_chunks_end(robot: Robot) -> None:
    robot.wait_chunks(1)
    time.sleep(2.5 * DT_S)  # on the way: it waits for the end
    saved = robot.call(SaveCapsule, "save_capsule", name="end")
    assert saved.error_code == 0, saved.error_msg
    kept = wait_until(
        lambda: [chunk for chunk in robot.chunks if chunk.sequence == saved.decision - 1],
        5.0,
        "the chunk of the capsule",
    )[0]
    robot.wait_chunks(1)
    assert robot.call(RestoreCapsule, "restore_capsule", name="end").error_code == 0
    # The capsule's chunk goes out again, before another decision is made.
    again = wait_until(
        lambda: [chunk for chunk in robot.chunks if chunk.sequence == kept.sequence][1:],
        5.0,
        "the chunk of the capsule",
    )
    assert again[0].data == kept.data


def test_requests_beside_the_timer(robot: Robot) -> None:
    early = robot.call(Decide, "decide")
    assert "before it; give a longer timeout" in early.error_msg and "\n" not in early.error_msg
    assert "end of the chunk that session 'main' executes" in early.error_msg
    before = len(robot.chunks)
    made = robot.decide()
    assert made.error_code == 0, made.error_msg
    assert made.chunk.horizon == 8
    robot.wait_chunks(1)
    sequences = [chunk.sequence for chunk in robot.chunks[before:]]
    assert made.chunk.sequence in sequences and sequences == sorted(set(sequences))
    refused = robot.call(Decide, "decide", reuse_context=True)
    assert "decide without reuse_context" in refused.error_msg


def test_a_fork_sees_what_the_robot_does(robot: Robot) -> None:
    time.sleep(2.5 * DT_S)  # on the way through a chunk
    assert robot.call(ForkSession, "fork_session", new_session="fork").error_code == 0
    for expected in (0, 1):
        made = robot.decide(session="fork")
        assert (made.error_code, made.error_msg) == (0, "")
        assert made.chunk.session == "fork" and made.chunk.horizon == 8
        assert np.isfinite(np.asarray(made.chunk.data)).all(), expected
    assert robot.call(DropCapsule, "drop_capsule", name="fork", session=True).error_code == 0


def test_an_episode_is_begun_by_a_request(robot: Robot) -> None:
    before = len(robot.chunks)
    answer = robot.call(Trigger, "restart")
    assert answer.success and answer.message == ""
    again = wait_until(
        lambda: [chunk for chunk in robot.chunks[before:] if chunk.sequence == 0], 5.0, "an episode"
    )
    assert again[0].horizon == 4


def test_on_request_alone_pictures_and_limits_count_too(
    robot: Robot, expected: list[np.ndarray]
) -> None:
    """As the rest, with ``rate_hz`` 0: nothing but requests begins a chunk."""
    assert robot.change(DEACTIVATE) and robot.change(CLEANUP)
    rate = Parameter("rate_hz", value=0.0).to_parameter_msg()
    answer = robot.call(SetParameters, "set_parameters", parameters=[rate])
    assert answer.results[0].successful
    robot.bring_up()
    made = [robot.decide(timeout_s=5.0) for _ in range(4)]
    assert [(one.error_msg, one.chunk.horizon) for one in made] == [
        ("", rows) for rows in (4, 8, 8, 8)
    ]
    equal([one.chunk for one in made], expected)
    decisions = robot.fresh_part("decisions")
    assert int(decisions["late_pictures"]) <= 1, "23 would be, were none kept on the way"
    assert robot.call(SaveCapsule, "save_capsule", name="stopped").error_code == 0
    assert robot.change(DEACTIVATE) and robot.change(CLEANUP)
    rate = Parameter("rate_hz", value=50.0).to_parameter_msg()
    robot.call(SetParameters, "set_parameters", parameters=[rate])
    robot.bring_up()


def test_an_activation_begins_an_episode(robot: Robot) -> None:
    time.sleep(2.5 * DT_S)
    assert robot.change(DEACTIVATE)
    # Stopped on the way, what the last decision left is not lost.
    assert robot.call(SaveCapsule, "save_capsule", name="stopped").error_code == 0
    before = len(robot.chunks)
    assert robot.change(ACTIVATE)
    wait_until(lambda: len(robot.chunks) >= before + 2, 10.0, lambda: robot.target.log)
    assert [chunk.horizon for chunk in robot.chunks[before : before + 2]] == [4, 8]
    assert [chunk.sequence for chunk in robot.chunks[before : before + 2]] == [0, 1]


def test_a_capsules_chunk_is_not_executed_under_another_prompt(robot: Robot) -> None:
    """With the same one an activation goes on with it; else it begins an episode."""
    saved = robot.call(SaveCapsule, "save_capsule", name="stopped")
    kept = wait_until(
        lambda: [chunk for chunk in robot.chunks if chunk.sequence == saved.decision - 1],
        5.0,
        "the chunk of the capsule",
    )[-1]
    for prompt in ("wave", "put everything down"):
        assert robot.change(DEACTIVATE)
        assert robot.call(RestoreCapsule, "restore_capsule", name="stopped").error_code == 0
        assert robot.call(SetPrompt, "set_prompt", prompt=prompt).error_code == 0
        before = len(robot.chunks)
        assert robot.change(ACTIVATE)
        robot.wait_chunks(1)
        first = robot.chunks[before]
        if prompt == "wave":
            assert (first.sequence, first.data) == (kept.sequence, kept.data)
        else:
            assert (first.sequence, first.horizon) == (kept.sequence + 1, 4)
    assert robot.fresh_part("decisions")["dropped_chunks"] == "1"
