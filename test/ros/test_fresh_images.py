"""A decision that waits for new images: of every camera that has any, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_core.errors import OptionError
from flashrt_ros.fresh_images import FreshImages
from flashrt_ros.parameters import build_config
from flashrt_ros.stamps import to_ns

from .harness import Robot, wait_until
from .test_inputs import MS, T0, camera, image

pytestmark = pytest.mark.ros


class Worker:
    """Stands in for the inference thread: works at once, unless it is to be late."""

    def __init__(self) -> None:
        self.late: list[Callable[[], Any]] | None = None

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None], *, urgent: bool) -> None:
        assert urgent
        if self.late is None:
            work()
        else:
            self.late.append(work)


class Timers:
    """Stands in for a node; ``running`` is whether its one timer would fire."""

    def __init__(self) -> None:
        self.running = False
        self.made: list[float] = []
        self.fire: Callable[[], None] = lambda: None

    def create_timer(self, period_s: float, callback: Callable[[], None], clock: Any) -> Timers:
        self.made.append(period_s)
        self.fire, self.running = callback, True
        return self

    def destroy_timer(self, timer: Timers) -> None:
        assert timer is self
        self.running = False
        self.made.clear()

    def reset(self) -> None:
        self.running = True

    def cancel(self) -> None:
        self.running = False


@pytest.fixture
def begun() -> list[int]:
    return []


def waiting(
    begun: list[int],
    limit_s: float = 0.05,
    worker: Worker | None = None,
    prepare: Callable[[Any], None] = lambda camera: None,
) -> tuple[FreshImages, list[Any], Timers]:
    timers, cameras = Timers(), [camera(), camera()]
    begin = partial(begun.append, 1)
    fresh = FreshImages(timers, cameras, limit_s, begin, worker or Worker(), prepare)  # type: ignore[arg-type]
    fresh.start(None)
    assert not timers.running, "nothing is due yet"
    for item in cameras:
        assert item.offer(image(T0, 1), T0) is None
    return fresh, cameras, timers


def test_it_begins_with_the_last_of_the_new_images(begun: list[int]) -> None:
    fresh, cameras, timers = waiting(begun)
    for round_ns in (10 * MS, 40 * MS):
        count = len(begun)
        fresh.due(T0 + round_ns)
        fresh.poll()
        assert timers.running and len(begun) == count, "what is there is not new"
        fresh.due(T0 + round_ns)  # due again meanwhile: one decision answers both
        for item, wanted in zip(cameras, (count, count + 1), strict=True):
            assert item.offer(image(T0 + round_ns, 1), T0 + round_ns) is None
            fresh.poll()
            assert len(begun) == wanted
        assert not timers.running
    fresh.poll()
    assert len(begun) == 2, "nothing is due"


def test_images_before_the_last_one_are_made_ready(begun: list[int]) -> None:
    worker, ready = Worker(), []
    fresh, (first, second), _ = waiting(begun, worker=worker, prepare=ready.append)
    assert first.offer(image(T0 + MS, 1), T0 + MS) is None
    fresh.poll()
    assert ready == [], "nobody waits"
    fresh.due(T0 + 2 * MS)
    for stamp in (3, 4):  # another one of the same camera: the first one may do
        assert first.offer(image(T0 + stamp * MS, 1), T0 + stamp * MS) is None
        fresh.poll()
        assert ready == [first] and begun == []
    assert second.offer(image(T0 + 5 * MS, 1), T0 + 5 * MS) is None
    fresh.poll()
    assert ready == [first] and begun == [1], "the last one is the decision's own"
    worker.late = []
    fresh.due(T0 + 6 * MS)
    assert second.offer(image(T0 + 7 * MS, 1), T0 + 7 * MS) is None
    fresh.poll()
    assert first.offer(image(T0 + 8 * MS, 1), T0 + 8 * MS) is None
    fresh.poll()
    for work in worker.late:  # behind the decision
        work()
    assert ready == [first] and begun == [1, 1]


def test_time_is_up(begun: list[int]) -> None:
    fresh, cameras, timers = waiting(begun)
    assert timers.made == [0.05]
    fresh.due(T0 + MS)
    assert cameras[0].offer(image(T0 + 2 * MS, 1), T0 + 2 * MS) is None
    fresh.poll()
    assert begun == []
    timers.fire()
    assert begun == [1] and not timers.running


def test_a_dead_camera_is_not_waited_for(begun: list[int]) -> None:
    fresh, cameras, _ = waiting(begun)
    later = T0 + 10_000 * MS
    assert cameras[1].offer(image(later, 1), later) is None
    fresh.due(later)
    assert cameras[1].offer(image(later + MS, 1), later + MS) is None
    fresh.poll()
    assert begun == [1]
    fresh.due(later + 10_000 * MS)
    assert begun == [1, 1], "none alive: at once, so that the reason is told"


def test_cancelled_and_stopped(begun: list[int]) -> None:
    fresh, cameras, timers = waiting(begun)
    fresh.due(T0)
    fresh.cancel()  # the clock jumped
    for item in cameras:
        assert item.offer(image(T0 + MS, 1), T0 + MS) is None
    fresh.poll()
    fresh.due(T0 + MS)
    fresh.stop()
    fresh.poll()
    assert begun == [] and timers.made == []


def test_without_a_limit_nothing_waits(begun: list[int]) -> None:
    fresh, _, timers = waiting(begun, 0.0)
    fresh.due(T0)
    assert begun == [1] and timers.made == []


def test_a_wait_that_does_not_fit_the_rate_is_refused() -> None:
    values = {"cameras": ["a"], "camera.a.topic": "a", "joints.names": ["j"], "rate_hz": 10.0}
    build_config(values | {"sync.fresh_images_s": 0.09})
    build_config(values | {"sync.fresh_images_s": 5.0, "rate_hz": 0.0})
    with pytest.raises(OptionError, match="less than the period of rate_hz, 0.1 s"):
        build_config(values | {"sync.fresh_images_s": 0.1})


@pytest.mark.timed
def test_decisions_use_images_that_came_after_they_were_due(start: Callable[..., Robot]) -> None:
    robot = start(rate_hz=8.0, sync__fresh_images_s=0.12, joints__max_age_s=60.0)
    robot.bring_up()
    robot.feed("joints")
    robot.feeding = set()
    with robot.publishing("front", lambda: robot.good("front"), 0.1):
        robot.wait_chunks(8, 20.0)
        part = robot.fresh_part("decisions")
    ages = [to_ns(chunk.generated) - to_ns(chunk.header.stamp) for chunk in robot.chunks[1:]]
    assert sorted(ages)[len(ages) // 2] < 50 * MS, "without the wait anything up to 100 ms"
    assert part["deadline_missed"] == "0" and float(part["overhead_ms.p50"]) < 50.0
    made = len(robot.chunks)
    wait_until(lambda: len(robot.chunks) > made, 3.0)  # time is up, and the image still good
    assert robot.target.stop() == 0
