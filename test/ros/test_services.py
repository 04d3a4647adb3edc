"""Each service of an active node, with good and bad requests; one process for all tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import (
    Decide,
    DropCapsule,
    ForkSession,
    ListCapsules,
    RestoreCapsule,
    SaveCapsule,
    SetPrompt,
)

from flashrt_ros.stamps import duration_message, time_message, to_ns
from test.gpu import requires_gpu

from .harness import ACTIVATE, DEACTIVATE, JOINTS, Robot, image, joint_state, jpeg, wait_until

pytestmark = pytest.mark.ros
INPUT, STALE_STATE, CAPSULE, STORE_FULL, SESSION, SESSION_LIMIT = 11, 12, 40, 41, 50, 51
TIMEOUT, STALE_INPUT = 82, 83


#: Ages that outlast the module: one set of messages serves every test.
AGES = {"camera__front__max_age_s": 600.0, "joints__max_age_s": 600.0}
#: On which device the node runs: its parameters.
DEVICES = {"cpu": {}, "cuda": {"device": "cuda", "precision": "bf16"}}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=requires_gpu)])
def device(request: pytest.FixtureRequest) -> dict[str, Any]:
    return DEVICES[request.param]


@pytest.fixture(scope="module")
def robot(start_for_all: Callable[..., Robot], device: dict[str, Any]) -> Robot:
    robot = start_for_all(max_sessions=3, capsule_slots=2, **AGES, **device)
    robot.bring_up()
    robot.publish("front", image())
    robot.publish("joints", joint_state())
    return robot


@pytest.fixture(autouse=True)
def tidy(robot: Robot) -> Iterator[None]:
    """Every test starts at decision 0 with the main session alone, and leaves the node alive."""
    assert robot.change(DEACTIVATE) and robot.change(ACTIVATE)
    yield
    held = robot.call(ListCapsules, "list_capsules")
    for name in held.names:
        assert robot.call(DropCapsule, "drop_capsule", name=name).error_code == 0
    for name in held.live_sessions:
        if name != "main":
            drop = robot.call(DropCapsule, "drop_capsule", name=name, session=True)
            assert drop.error_code == 0
    assert robot.call(SetPrompt, "set_prompt", prompt="wave").error_code == 0
    assert robot.target.alive and "Traceback" not in robot.target.log


def chunk(response: Any) -> Any:
    assert response.error_code == 0, response.error_msg
    return response.chunk


def data(response: Any) -> bytes:
    return bytes(chunk(response).data.tobytes())


@pytest.mark.jazzy
def test_a_chunk_says_what_it_is(robot: Robot) -> None:
    robot.chunks.clear()
    robot.timings.clear()
    time.sleep(0.1)  # so that the stamps below come after those of the messages before
    stamp = robot.now_ns()
    robot.publish("joints", joint_state(), stamp - 40_000_000)
    robot.publish("front", image(), stamp)
    names, stamps = ["front", "joints"], [time_message(stamp), time_message(stamp - 40_000_000)]
    got = chunk(robot.decide(inputs=names, not_before=stamps))
    assert to_ns(got.header.stamp) == stamp == to_ns(got.first_action_stamp)
    assert (got.policy, got.session, got.sequence) == ("pi05", "main", 0)
    assert len(got.fingerprint) == 64
    assert tuple(got.action_names) == JOINTS and got.action_kind == "absolute"
    assert (got.horizon, got.action_dim) == (4, 3)
    values = np.asarray(got.data, np.float32)
    assert values.shape == (12,) and np.isfinite(values).all() and np.unique(values).size > 6
    assert got.dt == duration_message(20_000_000)
    age = to_ns(got.observation_age)
    assert age == to_ns(got.generated) - (stamp - 40_000_000), "age of the oldest input"
    assert 40_000_000 <= age < 5_000_000_000
    assert 0 < to_ns(got.inference_time) < age
    wait_until(lambda: robot.chunks and robot.timings, what="the chunk on its topic, too")
    assert robot.chunks[0] == got
    timing = robot.timings[0]
    assert (timing.session, timing.sequence) == ("main", 0) and timing.header == got.header
    parts = (timing.ingest_ms, timing.context_ms, timing.action_ms, timing.publish_ms)
    assert all(part > 0.0 for part in parts) and sum(parts) <= timing.total_ms
    assert timing.observation_age_ms == pytest.approx(age / 1e6, rel=1e-3)


def test_same_seed_same_inputs_same_bits_in_every_activation(robot: Robot) -> None:
    first = [data(robot.decide()) for _ in range(3)]
    assert len(set(first)) == 3, "each decision draws its own noise"
    assert robot.change(DEACTIVATE) and robot.change(ACTIVATE)
    assert [data(robot.decide()) for _ in range(3)] == first


@pytest.mark.jazzy
def test_capsules_bring_a_session_back_to_the_bit(robot: Robot) -> None:
    robot.decide()
    saved = robot.call(SaveCapsule, "save_capsule", name="here")
    assert (saved.error_code, saved.decision) == (0, 1) and saved.bytes > 0
    wanted = data(robot.decide(reuse_context=True))
    robot.publish("front", image(pixels=np.full((24, 32, 3), 200, np.uint8)))
    other = chunk(robot.decide())
    assert other.sequence == 2 and other.data.tobytes() != wanted
    assert robot.call(RestoreCapsule, "restore_capsule", name="here").error_code == 0
    again = robot.decide(reuse_context=True)
    assert data(again) == wanted and again.chunk.sequence == 1
    assert again.chunk.header.stamp != other.header.stamp, "it is the old observation's chunk"
    listed = robot.call(ListCapsules, "list_capsules")
    assert (listed.names, listed.sessions) == (["here"], ["main"])
    assert listed.fingerprints == [other.fingerprint]
    assert list(listed.bytes) == [saved.bytes]
    assert listed.stamps == [again.chunk.header.stamp]


def test_a_restore_while_inactive_survives_the_activation(robot: Robot) -> None:
    for _ in range(3):
        robot.decide()
    assert robot.call(SaveCapsule, "save_capsule", name="third").decision == 3
    assert robot.change(DEACTIVATE)
    assert robot.call(RestoreCapsule, "restore_capsule", name="third").error_code == 0
    assert robot.change(ACTIVATE)
    assert chunk(robot.decide()).sequence == 3


@pytest.mark.jazzy
def test_forked_sessions_continue_like_their_source_and_stay_off_the_topic(robot: Robot) -> None:
    robot.decide()
    fork = robot.call(ForkSession, "fork_session", new_session="branch")
    assert fork.error_code == 0, fork.error_msg
    wait_until(lambda: len(robot.chunks) >= 1)
    time.sleep(0.1)
    before = len(robot.chunks)
    branch = robot.decide(session="branch", reuse_context=True)
    assert branch.chunk.session == "branch" and branch.chunk.sequence == 1
    time.sleep(0.2)
    assert len(robot.chunks) == before, "a branch's chunk is returned, not published"
    assert data(robot.decide(reuse_context=True)) == data(branch)
    assert robot.call(SaveCapsule, "save_capsule", name="mine", session="branch").error_code == 0
    foreign = robot.call(RestoreCapsule, "restore_capsule", name="mine")
    assert foreign.error_code == CAPSULE and "one of session 'branch'" in foreign.error_msg
    again = robot.call(ForkSession, "fork_session", capsule="mine", new_session="second")
    assert again.error_code == 0, again.error_msg
    assert data(robot.decide(session="second", reuse_context=True)) == data(
        robot.decide(session="branch", reuse_context=True)
    )


@pytest.mark.jazzy
def test_limits_and_unknown_names(robot: Robot) -> None:
    cases: list[tuple[Any, str, dict[str, Any], int, str]] = [
        (RestoreCapsule, "restore_capsule", {"name": "none"}, CAPSULE, "'none'"),
        (DropCapsule, "drop_capsule", {"name": "none"}, CAPSULE, "'none'"),
        (DropCapsule, "drop_capsule", {"name": "none", "session": True}, SESSION, "'none'"),
        (DropCapsule, "drop_capsule", {"name": "main", "session": True}, SESSION, "'main'"),
        (SaveCapsule, "save_capsule", {"name": "x", "session": "none"}, SESSION, "'none'"),
        (ForkSession, "fork_session", {"new_session": "main"}, SESSION, "'main'"),
        (ForkSession, "fork_session", {"new_session": "x", "capsule": "none"}, CAPSULE, "'none'"),
        (ForkSession, "fork_session", {"new_session": "x", "source_session": "none"}, SESSION, ""),
        (SetPrompt, "set_prompt", {"prompt": "wave", "session": "none"}, SESSION, "'none'"),
        (Decide, "decide", {"session": "none"}, SESSION, "'none'"),
        (Decide, "decide", {"timeout": duration_message(-1)}, INPUT, "'timeout': expected 0 s or"),
        (SaveCapsule, "save_capsule", {"name": "\u200b"}, CAPSULE, "visible character"),
        (ForkSession, "fork_session", {"new_session": "\u200b"}, SESSION, "visible character"),
        (Decide, "decide", {"inputs": ["front"]}, INPUT, "1 stamps, one an input, got 0"),
        (
            Decide,
            "decide",
            {"inputs": ["rear"], "not_before": [time_message(1)]},
            INPUT,
            "['front', 'joints'], got ['rear']",
        ),
    ]
    for kind, name, fields, code, text in cases:
        response = robot.call(kind, name, **fields)
        assert (response.error_code, text in response.error_msg) == (code, True), response
    chunk(robot.decide())
    for name in ("a", "b"):
        assert robot.call(SaveCapsule, "save_capsule", name=name).error_code == 0
        assert robot.call(ForkSession, "fork_session", new_session=name).error_code == 0
    full = robot.call(SaveCapsule, "save_capsule", name="c")
    assert full.error_code == STORE_FULL and "capsule_slots" in full.error_msg
    beyond = robot.call(ForkSession, "fork_session", new_session="c")
    assert beyond.error_code == SESSION_LIMIT and "at most 3 sessions" in beyond.error_msg
    for fields, code in (({"capsule": "none"}, CAPSULE), ({"source_session": "none"}, SESSION)):
        unknown = robot.call(ForkSession, "fork_session", new_session="c", **fields)
        assert (unknown.error_code, "'none'" in unknown.error_msg) == (code, True)
    held = robot.call(ListCapsules, "list_capsules")
    assert held.names == ["a", "b"] and sorted(held.live_sessions) == ["a", "b", "main"]
    assert robot.call(SaveCapsule, "save_capsule", name="a").error_code == 0, "replaces its own"
    node = robot.fresh_part("node")
    assert (node["capsules"], node["capsule_slots"]) == ("2", "2")
    assert node["sessions"] == "a, b, main"


@pytest.mark.jazzy
def test_prompts(robot: Robot) -> None:
    plain = data(robot.decide())
    for prompt in ("", "   ", "\u202e\u200b", "wave\x07", "wa\rve", "\u3164", "very " * 2000):
        refused = robot.call(SetPrompt, "set_prompt", prompt=prompt)
        assert refused.error_code == INPUT and "prompt" in refused.error_msg, prompt
        assert len(refused.error_msg) < 300
    assert robot.call(SetPrompt, "set_prompt", prompt="wave\n\ttwice").error_code == 0
    assert robot.call(SetPrompt, "set_prompt", prompt="wave").error_code == 0
    assert robot.change(DEACTIVATE) and robot.change(ACTIVATE)
    assert data(robot.decide()) == plain, "a refused prompt changes nothing"
    assert robot.call(SetPrompt, "set_prompt", prompt="push it over").error_code == 0
    assert robot.change(DEACTIVATE) and robot.change(ACTIVATE)
    assert data(robot.decide()) != plain
    stale = robot.call(SetPrompt, "set_prompt", prompt="pull")
    assert stale.error_code == 0
    reuse = robot.decide(reuse_context=True)
    assert reuse.error_code == STALE_STATE, "the retained context answers the old prompt"
    for service, kind in (("save_capsule", SaveCapsule), ("restore_capsule", RestoreCapsule)):
        assert robot.call(kind, service, name="old").error_code == 0
        assert robot.decide(reuse_context=True).error_code == STALE_STATE, service


def test_decide_waits_for_the_stamps_it_was_given(robot: Robot) -> None:
    future_ns = robot.now_ns() + 300_000_000
    wanted = {"inputs": ["joints"], "not_before": [time_message(future_ns)]}
    begin = time.monotonic()
    late = robot.decide(0.2, **wanted)
    assert late.error_code == TIMEOUT and "inputs joints" in late.error_msg
    assert 0.2 <= time.monotonic() - begin < 2.0
    assert robot.decide(0.0, **wanted).error_code == TIMEOUT, "zero does not wait"

    client = robot.client(Decide, "decide")
    pending = client.call_async(Decide.Request(timeout=duration_message(10_000_000_000), **wanted))
    other = robot.call(ListCapsules, "list_capsules")
    assert other.error_code == 0 and not pending.done(), "waiting holds up nobody"
    wait_until(lambda: robot.now_ns() > future_ns)
    robot.publish("joints", joint_state(), future_ns)
    answer = wait_until(lambda: pending.done() and pending.result())
    assert to_ns(chunk(answer).header.stamp) >= future_ns


def test_an_unknown_session_is_said_before_any_wait_for_inputs(robot: Robot) -> None:
    never = {"inputs": ["front"], "not_before": [time_message(robot.now_ns() + 10**15)]}
    begin = time.monotonic()
    answer = robot.decide(30.0, session="none", **never)
    assert answer.error_code == SESSION and "'none'" in answer.error_msg
    assert time.monotonic() - begin < 10.0
    assert robot.decide(0.0, session="none", **never).error_code == SESSION
    assert robot.decide(0.0, session="main", **never).error_code == TIMEOUT


@pytest.mark.jazzy
def test_deactivation_releases_a_waiting_request(robot: Robot) -> None:
    never = [time_message(robot.now_ns() + 10**15)]
    client = robot.client(Decide, "decide")
    pending = client.call_async(
        Decide.Request(inputs=["front"], not_before=never, timeout=duration_message(10**11))
    )
    time.sleep(0.2)
    assert robot.change(DEACTIVATE)
    answer = wait_until(lambda: pending.done() and pending.result())
    assert answer.error_code == 80 and answer.error_msg
    assert robot.change(ACTIVATE)


@pytest.mark.jazzy
def test_a_flood_of_requests_is_answered_or_refused_never_dropped(robot: Robot) -> None:
    client = robot.client(Decide, "decide")
    pending = [client.call_async(Decide.Request()) for _ in range(40)]
    wait_until(lambda: all(f.done() for f in pending), 30.0, "40 answers")
    codes = [f.result().error_code for f in pending]
    assert set(codes) <= {0, 81} and codes.count(0) >= 8
    busy = [f.result().error_msg for f in pending if f.result().error_code == 81]
    assert all("at most" in message for message in busy)
    wanted = str(len(busy))
    wait_until(lambda: robot.fresh_part("decisions")["busy"] == wanted, 5.0)


def test_padding_and_channel_order_do_not_change_a_bit(robot: Robot) -> None:
    rng = np.random.default_rng(5)
    rgb = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    alpha = np.dstack([rgb[:, :, ::-1], np.full((24, 32), 7, np.uint8)])
    messages = [
        image("rgb8", rgb),
        image("bgr8", rgb[:, :, ::-1].copy(), pad=1),
        image("rgb8", rgb, pad=64),
        image("bgra8", alpha, pad=2),
    ]
    results = set()
    for message in messages:
        assert robot.change(DEACTIVATE) and robot.change(ACTIVATE)
        stamp = robot.now_ns()
        robot.publish("front", message, stamp)
        answer = robot.decide(inputs=["front"], not_before=[time_message(stamp)])
        results.add(data(answer))
    assert len(results) == 1
    assert robot.fresh_part("input front")["refused"] == "0"


def test_images_that_the_device_decodes_give_equal_bits(
    robot: Robot, start: Callable[..., Robot], device: dict[str, Any]
) -> None:
    other = start(**AGES, camera_bytes=3 * 56 * 56, **device)
    other.bring_up()
    other.feed("joints")
    pixels = np.random.default_rng(6).integers(0, 256, (48, 60, 3), dtype=np.uint8)
    results = set()
    for each in (robot, other):
        stamp = each.now_ns()
        each.publish("front", image("bgr8", pixels, pad=5), stamp)
        results.add(data(each.decide(inputs=["front"], not_before=[time_message(stamp)])))
    assert len(results) == 1
    # What the window has no room for the host resizes.
    pixels = np.random.default_rng(7).integers(0, 256, (90, 160, 3), dtype=np.uint8)
    results = set()
    for each in (robot, other):
        stamp = each.now_ns()
        each.publish("front", image("rgb8", pixels), stamp)
        results.add(data(each.decide(inputs=["front"], not_before=[time_message(stamp)])))
    assert len(results) == 1
    assert other.fresh_part("input front")["refused"] == "0"


def test_compressed_images_of_any_size_beside_raw_ones(
    start: Callable[..., Robot], device: dict[str, Any]
) -> None:
    cv2 = pytest.importorskip("cv2")
    pictures = {}
    for size in ((40, 60), (720, 1280)):
        ramp = np.add.outer(np.arange(size[0]), np.arange(size[1])) * 255 // sum(size)
        pixels = np.dstack([ramp, 255 - ramp, ramp // 2]).astype(np.uint8)
        pictures[size] = jpeg(cv2.imencode(".jpeg", pixels)[1].tobytes())
    results: dict[Any, set[Any]] = {size: set() for size in pictures}
    for camera_bytes in (0, 3 * 60 * 60):
        target = start(
            camera__front__transport="compressed",
            camera_bytes=camera_bytes,
            **AGES,
            **device,
        )
        target.bring_up()
        target.feed("joints")
        for size, picture in pictures.items():
            stamp = target.now_ns()
            for _ in range(3):  # best effort: one may be lost on its way
                target.publish("front", picture, stamp)
                answer = target.decide(inputs=["front"], not_before=[time_message(stamp)])
                if answer.error_code == 0:
                    break
            results[size].add(data(answer))
    small, large = results.values()
    assert len(small) == len(large) == 1 and small != large


def test_who_waits_in_vain_hears_what_was_refused(robot: Robot) -> None:
    short = image("rgb8", np.zeros((4, 4, 3), np.uint8))
    short.height = 5
    words = (
        "last refused: size: image data: expected 60 bytes (step 12 x 5 rows, 4 x 5 rgb8), got 48"
    )

    def wanted() -> dict[str, Any]:
        return {"inputs": ["front"], "not_before": [time_message(robot.now_ns() + 10**9)]}

    assert "refused" not in robot.decide(0.0, **wanted()).error_msg
    # Before the request, as a replay in steps does it.
    count = int(robot.fresh_part("input front")["refused"])
    robot.publish("front", short)
    wait_until(lambda: robot.fresh_part("input front")["refused"] == str(count + 1))
    answer = robot.decide(0.1, **wanted())
    assert answer.error_code == TIMEOUT and answer.error_msg.endswith(f"got none; front {words}")
    # Another message since: what was refused before it is no reason any more.
    robot.publish("front", robot.good("front"))
    wait_until(lambda: "refused" not in robot.decide(0.0, **wanted()).error_msg)
    # While it waits, though a good one with an older stamp came as well.
    client = robot.client(Decide, "decide")
    pending = client.call_async(Decide.Request(timeout=duration_message(10**9), **wanted()))
    time.sleep(0.2)
    robot.publish("front", short)
    robot.publish("front", robot.good("front"))
    answer = wait_until(lambda: pending.done() and pending.result())
    assert answer.error_code == TIMEOUT and answer.error_msg.endswith(words)
