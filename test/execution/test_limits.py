"""Limits, the track of a controller, and the delay of decisions."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.execution.chunk import Chunk
from flashrt_ros.execution.delay import Delay, begin_ns
from flashrt_ros.execution.limits import Limits
from flashrt_ros.execution.track import Track

MS = 1_000_000
NOW = 1_760_000_000_123_456_789


def test_range_then_step() -> None:
    limits = Limits(3, lower=[-1.0, -1.0, -1.0], upper=[1.0, 1.0, 1.0], max_step=[0.5, 0.5, 2.0])
    found = limits.apply(np.array([3.0, 0.25, -4.0]), np.array([0.0, 0.0, 0.0]))
    assert found.values.tolist() == [0.5, 0.25, -1.0]
    assert found.beyond_range.tolist() == [True, False, True]
    assert found.beyond_step.tolist() == [True, False, False]
    assert found.violated
    assert not limits.apply(np.array([0.5, -0.5, 1.0]), np.zeros(3)).violated, "just the limit"


def test_a_step_is_per_control_period() -> None:
    limits = Limits(1, max_step=[0.1])
    assert limits.apply(np.array([1.0]), np.array([0.0]), 2.5).values.tolist() == [0.25]


def test_without_a_reference_only_the_range_holds() -> None:
    limits = Limits(2, lower=[-1.0, -1.0], max_step=[0.1, 0.1])
    found = limits.apply(np.array([-5.0, 5.0]), None)
    assert found.values.tolist() == [-1.0, 5.0] and not found.beyond_step.any()
    half = limits.apply(np.array([5.0, 5.0]), np.array([np.nan, 0.0]))
    assert half.values.tolist() == [5.0, 0.1]


def test_a_robot_outside_its_range_is_led_back_step_by_step() -> None:
    limits = Limits(1, lower=[-1.0], upper=[1.0], max_step=[0.25])
    at, path = np.array([2.0]), []
    for _ in range(5):
        at = limits.apply(np.array([0.9]), at).values
        path.append(float(at[0]))
    assert path == pytest.approx([1.75, 1.5, 1.25, 1.0, 0.9])


def test_no_input_gets_through_the_limits() -> None:
    rng = np.random.default_rng(11)
    for _ in range(500):
        dim = int(rng.integers(1, 9))
        low = rng.normal(size=dim)
        high = low + rng.uniform(0.01, 3.0, dim)
        step = rng.uniform(1e-3, 1.0, dim)
        limits = Limits(dim, low.tolist(), high.tolist(), step.tolist())
        at = rng.uniform(low, high)
        for _ in range(20):
            wanted = rng.normal(size=dim) * 10.0 ** rng.uniform(-3, 6)
            periods = float(rng.uniform(0.1, 8.0))
            found = limits.apply(wanted, at, periods)
            assert (np.abs(found.values - at) <= step * periods * (1 + 1e-8)).all()
            assert (found.values >= low).all() and (found.values <= high).all()
            changed = found.values != wanted
            assert (changed <= (found.beyond_range | found.beyond_step)).all(), "every clamp counts"
            at = found.values


def test_a_track_is_straight_from_point_to_point() -> None:
    track = Track()
    assert track.at(NOW) is None
    a, b, c = (np.array([v]) for v in (0.0, 1.0, 3.0))
    track.replace(NOW, a, [(NOW + 10 * MS, b), (NOW + 30 * MS, c)])
    at = [float(track.at(NOW + t * MS)[0]) for t in (0, 5, 10, 20, 30, 999)]  # type: ignore[index]
    assert track.at(NOW - 1) is None, "the clock went back"
    assert at == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    track.replace(NOW, None, [(NOW + 10 * MS, b)])
    assert track.at(NOW) is None and track.at(NOW + 10 * MS) == b, "it began anywhere"
    track.clear()
    assert track.at(NOW) is None


def test_a_measured_delay_is_a_quantile_and_the_warm_up_until_there_is_one() -> None:
    delay = Delay(0, 0.9)
    assert delay.ns == 0
    delay.measured(300 * MS)
    assert delay.ns == 300 * MS, "nothing better is known"
    for ms in range(1, 11):
        delay.measured(ms * MS)
    assert delay.ns == 9 * MS
    delay.measured(-5)
    assert delay.ns == 9 * MS
    for _ in range(64):
        delay.measured(3 * MS)
    assert delay.ns == 3 * MS, "the window has moved on"
    delay.restart()
    assert delay.ns == 0
    delay.measured(200 * MS)
    assert delay.ns == 200 * MS
    delay.measured(2 * MS)
    assert delay.ns == 2 * MS, "the warm-up is not believed any longer"
    half = Delay(0, 0.5, warm_up=0)
    for sample in (3, 1, 2):
        half.measured(sample)
    assert half.ns == 2, "half of the samples do not exceed it"
    fixed = Delay(7, 0.5)
    fixed.measured(1)
    fixed.measured(1)
    assert fixed.ns == 7


def test_a_decision_begins_so_that_its_chunk_is_there_in_time() -> None:
    chunk = Chunk(NOW, 20 * MS, np.zeros((10, 1)))
    assert begin_ns(chunk, 5, 30 * MS) == NOW + 70 * MS
    assert begin_ns(chunk, 99, 30 * MS) == NOW + 170 * MS, "the end of the chunk at the latest"
