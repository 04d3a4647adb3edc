"""Chunks on the time axis, strategies and the schedule, with exact expected values."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from flashrt_ros.execution.chunk import HOLD, LINEAR, Chunk
from flashrt_ros.execution.schedule import Schedule
from flashrt_ros.execution.strategies import (
    REAL_TIME_CHUNKING,
    REPLACE,
    STRATEGIES,
    TEMPORAL_ENSEMBLE,
    Replace,
    TemporalEnsemble,
    strategy,
)

MS = 1_000_000
# An epoch in nanoseconds is beyond the whole numbers of a float64: 2**53 is 9.0e15.
NOW = 1_760_000_000_123_456_789


def chunk(first_ns: int, values: list[float], dt_ns: int = 20 * MS, sequence: int = 0) -> Chunk:
    """Two actions: the values, and their negatives."""
    rows = np.array([[v, -v] for v in values], np.float64)
    return Chunk(first_ns, dt_ns, rows, sequence)


def first(action: np.ndarray | None) -> float | None:
    return None if action is None else float(action[0])


def test_a_row_is_due_from_its_time_until_the_next_ones() -> None:
    c = chunk(NOW, [0.0, 1.0, 2.0])
    assert c.end_ns == NOW + 60 * MS
    expected = {
        -1: None,
        0: 0,
        20 * MS - 1: 0,
        20 * MS: 1,
        40 * MS - 1: 1,
        40 * MS: 2,
        60 * MS - 1: 2,
        60 * MS: None,
    }
    assert {t: c.row_at(NOW + t) for t in expected} == expected


def test_a_late_chunk_is_entered_at_the_right_row_for_any_delay() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        first_ns = NOW + rng.randrange(10**12)
        dt_ns, horizon = (
            rng.choice([1, 3, 333_333_333, rng.randrange(1, 10**9)]),
            rng.randrange(1, 64),
        )
        c = chunk(first_ns, [float(i) for i in range(horizon)], dt_ns)
        row, rest = rng.randrange(-2, horizon + 2), rng.randrange(dt_ns)
        time_ns = first_ns + row * dt_ns + rest
        inside = 0 <= row < horizon
        assert c.row_at(time_ns) == (row if inside else None)
        assert first(c.at(time_ns, HOLD)) == (float(row) if inside else None)
        coming = c.rows_from(time_ns)
        assert [c.due_ns(i) >= time_ns for i in range(horizon)] == [
            i in coming for i in range(horizon)
        ]


def test_linear_goes_from_row_to_row_and_holds_the_last() -> None:
    c = chunk(NOW, [0.0, 1.0, 3.0])
    assert first(c.at(NOW + 5 * MS, LINEAR)) == 0.25
    assert first(c.at(NOW + 20 * MS, LINEAR)) == 1.0
    assert first(c.at(NOW + 35 * MS, LINEAR)) == 2.5
    assert first(c.at(NOW + 59 * MS, LINEAR)) == 3.0
    assert first(c.at(NOW + 35 * MS, HOLD)) == 1.0
    assert c.at(NOW + 60 * MS, LINEAR) is None


@pytest.mark.parametrize("bad", [(0, 1), (-5, 1), (20 * MS, 0)])
def test_what_is_no_chunk_is_refused(bad: tuple[int, int]) -> None:
    dt_ns, rows = bad
    with pytest.raises(ValueError, match="no chunk"):
        Chunk(NOW, dt_ns, np.zeros((rows, 2)))


def test_replace_takes_the_newest_that_covers_the_time() -> None:
    s = Replace(HOLD)
    assert s.at(NOW) is None and s.end_ns() is None
    s.add(chunk(NOW, [1.0, 2.0, 3.0]))
    s.add(chunk(NOW + 30 * MS, [10.0, 20.0]))
    said = [first(s.at(NOW + t * MS)) for t in (0, 20, 29, 30, 49, 50, 69, 70)]
    assert said == [1.0, 2.0, 2.0, 10.0, 10.0, 20.0, 20.0, None]
    assert s.end_ns() == NOW + 70 * MS
    s.prune(NOW + 60 * MS)
    assert s.at(NOW) is None, "the first is exhausted and forgotten"
    assert first(s.at(NOW + 60 * MS)) == 20.0


def test_the_ensemble_weighs_as_act_does() -> None:
    s = TemporalEnsemble(HOLD, decay=0.5)
    for k, value in enumerate([1.0, 2.0, 4.0]):
        s.add(chunk(NOW + k * 20 * MS, [value] * 4))
    w = [1.0, math.exp(-0.5), math.exp(-1.0)]
    expected = (w[0] * 1.0 + w[1] * 2.0 + w[2] * 4.0) / sum(w)
    assert first(s.at(NOW + 40 * MS)) == pytest.approx(expected, rel=1e-15)
    assert first(s.at(NOW)) == 1.0, "one chunk covers it"
    assert first(s.at(NOW + 20 * MS)) == pytest.approx((1.0 + w[1] * 2.0) / (1.0 + w[1]), rel=1e-15)
    # The oldest is over: the second is now the oldest, with weight 1.
    assert first(s.at(NOW + 80 * MS)) == pytest.approx((2.0 + w[1] * 4.0) / (1.0 + w[1]), rel=1e-15)
    assert first(s.at(NOW + 119 * MS)) == 4.0
    assert s.at(NOW + 120 * MS) is None


def test_the_ensemble_is_a_mean_of_each_action_and_never_overflows() -> None:
    rng = np.random.default_rng(3)
    for decay in (-10.0, -0.3, 0.0, 0.01, 10.0):
        s = TemporalEnsemble(LINEAR, decay)
        chunks = [Chunk(NOW + k * MS, 10 * MS, rng.normal(size=(200, 3))) for k in range(300)]
        for c in chunks:
            s.add(c)
        for t in rng.integers(300 * MS, 2000 * MS, 20):
            said = np.stack([a for c in chunks if (a := c.at(NOW + int(t), LINEAR)) is not None])
            mean = s.at(NOW + int(t))
            assert mean is not None and np.isfinite(mean).all()
            assert (mean >= said.min(0) - 1e-12).all() and (mean <= said.max(0) + 1e-12).all()
            if decay == 0.0:
                np.testing.assert_allclose(mean, said.mean(0), rtol=1e-12)
            if decay == 10.0:
                np.testing.assert_allclose(mean, said[0], atol=1e-3)


def test_strategies_by_name() -> None:
    assert set(STRATEGIES) == {REPLACE, TEMPORAL_ENSEMBLE, REAL_TIME_CHUNKING}
    made = strategy(TEMPORAL_ENSEMBLE, HOLD, 0.25)
    assert isinstance(made, TemporalEnsemble) and made.decay == 0.25 and made.interpolation == HOLD
    for name in (REPLACE, REAL_TIME_CHUNKING):
        assert isinstance(strategy(name, LINEAR, 0.0), Replace)


def test_a_schedule_says_how_a_chunk_entered() -> None:
    s = Schedule(Replace(HOLD))
    entry = s.add(chunk(NOW, [1.0, 2.0, 3.0]), NOW + 1)
    assert (entry.late, entry.skipped, entry.jump) == (False, 0, None)
    entry = s.add(chunk(NOW + 10 * MS, [5.0, 7.0, 9.0]), NOW + 55 * MS)
    assert (entry.late, entry.skipped) == (False, 2)
    assert entry.jump is not None and entry.jump.tolist() == [6.0, 6.0], "from 3 to 9, and back"
    entry = s.add(chunk(NOW, [50.0, 50.0, 50.0]), NOW + 60 * MS)
    assert (entry.late, entry.skipped, entry.jump) == (True, 3, None)
    assert first(s.at(NOW + 60 * MS)) == 9.0, "a chunk that is wholly past changes nothing"
    s.clear()
    assert s.at(NOW + 60 * MS) is None and s.newest is None


def test_what_is_coming_lies_on_the_rows_of_the_newest_chunk() -> None:
    s = Schedule(TemporalEnsemble(LINEAR, decay=0.0))
    s.add(chunk(NOW, [0.0, 1.0, 2.0, 3.0]), NOW)
    s.add(chunk(NOW + 10 * MS, [2.5, 3.5, 4.5, 5.5]), NOW + 15 * MS)
    coming = [(t - NOW, float(a[0])) for t, a in s.coming(NOW + 31 * MS)]
    # The old chunk says 2.5 at 50 ms, holds 3 at 70 ms, and is over at 80 ms.
    assert coming == [(50 * MS, 3.5), (70 * MS, 4.25)]
    assert s.coming(NOW + 70 * MS)[0][0] == NOW + 70 * MS, "due just then counts"
    assert s.coming(NOW + 71 * MS) == []


def test_real_time_chunking_gets_what_will_be_executed_and_the_rest() -> None:
    s = Schedule(Replace(HOLD))
    assert s.remainder(NOW, NOW).rows.size == 0
    s.add(chunk(NOW, [float(i) for i in range(10)]), NOW)
    # The next chunk begins at row 4; 50 ms later it is there, and rows 4, 5 and 6 have begun.
    left = s.remainder(NOW + 80 * MS, NOW + 130 * MS)
    assert left.rows[:, 0].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert left.frozen == 3
    assert s.remainder(NOW + 80 * MS, NOW + 120 * MS).frozen == 2, "row 6 begins just then"
    assert s.remainder(NOW + 80 * MS, NOW + 80 * MS).frozen == 0
    assert s.remainder(NOW + 80 * MS, NOW + 10**12).frozen == 6, "no more than there are"
    assert s.remainder(NOW + 200 * MS, NOW + 300 * MS).rows.size == 0


def test_on_a_straight_line_the_row_ahead_is_kept_too() -> None:
    s = Schedule(Replace(LINEAR))
    s.add(chunk(NOW, [float(i) for i in range(10)]), NOW)
    # At 130 ms the robot is between rows 6 and 7, at 120 ms just at row 6.
    assert s.remainder(NOW + 80 * MS, NOW + 130 * MS).frozen == 4
    assert s.remainder(NOW + 80 * MS, NOW + 120 * MS).frozen == 3
    assert s.remainder(NOW + 80 * MS, NOW + 60 * MS).frozen == 0
    left = s.remainder(NOW + 90 * MS, NOW + 130 * MS)  # rows between those of the last chunk
    assert left.rows[:3, 0].tolist() == [4.5, 5.5, 6.5] and left.frozen == 3


def test_a_copy_goes_on_saying_what_was_so() -> None:
    s = Schedule(Replace(HOLD))
    s.add(chunk(NOW, [1.0] * 5), NOW)
    kept = s.copy()
    s.add(chunk(NOW, [2.0] * 5), NOW)
    assert first(s.at(NOW)) == 2.0 and first(kept.at(NOW)) == 1.0
    s.clear()
    assert first(kept.at(NOW)) == 1.0 and kept.newest is not None
    assert kept.remainder(NOW, NOW).rows.shape == (5, 2)
