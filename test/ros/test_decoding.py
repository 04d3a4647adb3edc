"""Compressed pictures: decoded beside everything else, the newest only."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("builtin_interfaces")
pytest.importorskip("cv2")

import cv2

from flashrt_core import images
from flashrt_ros.decoding import NewestFirst
from flashrt_ros.parameters import transport_topic

from .harness import Robot, jpeg, wait_until
from .test_inputs import MS, T0, fill, header, joints, make_ingest

pytestmark = pytest.mark.ros


def picture(value: int, size: tuple[int, int] = (4, 4)) -> bytes:
    return cv2.imencode(".png", np.full((*size, 3), value, np.uint8))[1].tobytes()


def message(stamp_ns: int, data: bytes) -> Any:
    return SimpleNamespace(header=header(stamp_ns), format="png", data=data)


class Gate:
    """Decoding that waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[bytes] = []
        self.open = threading.Event()
        real = images.decode_rgb

        def slow(compressed: Any, *rest: Any) -> np.ndarray:
            self.begun.append(bytes(compressed.data))
            assert self.open.wait(20.0)
            return real(compressed, *rest)

        monkeypatch.setattr(images, "decode_rgb", slow)


def test_a_slow_picture_delays_neither_joints_nor_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ingest, refusals = make_ingest(
        **{"camera.left.transport": "compressed", "camera.left.max_age_s": 10.0}
    )
    left = ingest.inputs["left"]
    assert ingest.offer(left, message(T0, picture(1)), T0)  # decoded at once: no thread yet
    gate, arrived = Gate(monkeypatch), threading.Event()
    ingest.start(arrived.set)
    try:
        assert ingest.offer(left, message(T0 + MS, picture(2)), T0 + MS)
        wait_until(lambda: gate.begun, what="the thread to begin")
        for k in range(3, 9):
            assert ingest.offer(left, message(T0 + k * MS, picture(k)), T0 + k * MS)
        fill(ingest, {"right": T0 + 9 * MS, "joints": T0 + 9 * MS})
        assert ingest.gather(T0 + 9 * MS).observation.images["left"][0, 0, 0] == 1
        assert len(gate.begun) == 1 and not arrived.is_set(), "still at the first"
        gate.open.set()
        wait_until(lambda: left.newest_stamp_ns() == T0 + 8 * MS, what="the newest picture")
        assert gate.begun == [picture(2), picture(8)], "those between were never decoded"
        assert ingest.gather(T0 + 9 * MS).observation.images["left"][0, 0, 0] == 8
        assert arrived.is_set() and refusals.seen == []
        counters = left.counters
        assert (counters.received, counters.accepted, counters.overwritten) == (8, 8, 7)
    finally:
        gate.open.set()
        assert ingest.stop(5.0) == []


def test_a_picture_that_a_clock_jump_overtakes_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    ingest, _ = make_ingest(**{"camera.left.transport": "compressed"})
    left = ingest.inputs["left"]
    gate, arrived = Gate(monkeypatch), threading.Event()
    ingest.start(arrived.set)
    try:
        assert ingest.offer(left, message(T0 + 5_000 * MS, picture(1)), T0 + 5_000 * MS)
        wait_until(lambda: gate.begun)
        ingest.forget()
        gate.open.set()
        wait_until(arrived.is_set)
        assert left.newest_stamp_ns() is None, "its stamp is of the time before"
        assert ingest.offer(left, message(T0, picture(2)), T0)
        wait_until(lambda: left.newest_stamp_ns() == T0)
    finally:
        ingest.stop(5.0)


def test_what_does_not_decode_is_refused_from_the_thread_which_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ingest, refusals = make_ingest(**{"camera.left.transport": "compressed"})
    left = ingest.inputs["left"]
    ingest.start(lambda: None)
    try:
        broken = picture(5)[:40] + bytes(20) + picture(5)[-12:]
        assert ingest.offer(left, message(T0, broken), T0)
        wait_until(lambda: refusals.seen)
        assert [(n, r.reason) for n, r in refusals.seen] == [("left", "decode")]
        assert (left.counters.accepted, left.counters.refused) == (0, {"decode": 1})
        real = images.decode_rgb
        monkeypatch.setattr(images, "decode_rgb", lambda *_: 1 / 0)
        assert ingest.offer(left, message(T0 + MS, picture(6)), T0 + MS)
        wait_until(lambda: len(refusals.seen) == 2)
        assert refusals.seen[1][1].text.startswith("ZeroDivisionError")
        monkeypatch.setattr(images, "decode_rgb", real)
        assert ingest.offer(left, message(T0 + 2 * MS, picture(7)), T0 + 2 * MS)
        wait_until(lambda: left.newest_stamp_ns() == T0 + 2 * MS)
    finally:
        assert ingest.stop(5.0) == []


def test_the_thread_ends_with_its_work_or_says_that_it_does_not() -> None:
    go, begun = threading.Event(), threading.Event()

    def work(_: int) -> None:
        begun.set()
        go.wait(20.0)

    thread = NewestFirst("test-decoder", work)
    thread.put(1)
    assert begun.wait(5.0)
    thread.put(2)
    assert not thread.stop(0.05)
    go.set()
    wait_until(lambda: "test-decoder" not in {t.name for t in threading.enumerate()})


@pytest.mark.parametrize(
    ("topic", "transport", "subscribed"),
    [
        ("camera/image_raw", "raw", "camera/image_raw"),
        ("camera/image_raw", "compressed", "camera/image_raw/compressed"),
        ("camera/image_raw/compressed", "compressed", "camera/image_raw/compressed"),
        ("", "compressed", ""),
    ],
)
def test_names_of_image_transport(topic: str, transport: str, subscribed: str) -> None:
    assert transport_topic(topic, transport) == subscribed


def test_joints_keep_their_order_beside_a_decoder() -> None:
    """The decoder's thread stores under the same lock: nothing of the other inputs is disturbed."""
    ingest, _ = make_ingest(**{"camera.left.transport": "compressed", "joints.max_age_s": 9.0})
    ingest.start(lambda: None)
    try:
        for k in range(200):
            stamp = T0 + k * MS
            assert ingest.offer(ingest.inputs["left"], message(stamp, picture(k)), stamp)
            assert ingest.offer(ingest.inputs["joints"], joints(stamp, ["a"], [k]), stamp)
        kept = [sample.stamp_ns for sample in ingest.inputs["joints"].candidates(T0 + 200 * MS)]
        assert kept == [T0 + k * MS for k in range(200)]
    finally:
        ingest.stop(5.0)


@pytest.mark.timed
def test_large_pictures_over_dds_do_not_slow_decisions_down(start: Callable[..., Robot]) -> None:
    """Decoding takes longer than the rest of a decision: in the decision, it would be its least."""
    data = picture(80, (3600, 4800))
    begin = time.perf_counter()
    images.decode_rgb(message(T0, data))
    decode_s = time.perf_counter() - begin
    robot = start(
        rate_hz=20.0,
        camera__front__transport="compressed",
        camera__front__max_age_s=60.0,
        joints__max_age_s=1.0,
    )
    robot.bring_up()
    robot.publish("front", jpeg(data, "png"))
    robot.feed("joints")
    robot.wait_chunks(3, 30.0)
    used = int(robot.fresh_part("input front")["used"])
    stop = threading.Event()

    def flood() -> None:
        while not stop.wait(0.1):
            robot.publish("front", jpeg(data, "png"))

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        robot.timings.clear()
        wait_until(lambda: len(robot.timings) >= 30, 60.0, "30 decisions")
    finally:
        stop.set()
        thread.join()
    ingest_s = [timing.ingest_ms / 1e3 for timing in robot.timings]
    assert np.median(ingest_s) < decode_s
    front, joint = robot.fresh_part("input front"), robot.part("input joints")
    assert int(front["used"]) > used and (joint["refused"], joint["lost"]) == ("0", "0")
    assert all(b.sequence == a.sequence + 1 for a, b in itertools.pairwise(robot.chunks))
