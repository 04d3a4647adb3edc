"""Intervals and tests, against published values and brute force."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest

from flashrt_core.evaluation.statistics import bootstrapped, compare, mcnemar, wilson


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [  # Newcombe 1998, "Interval estimation for the single proportion", table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_is_that_of_the_literature(
    successes: int, total: int, low: float, high: float
) -> None:
    found = wilson(successes, total)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    mirrored = wilson(total - successes, total)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - found.high, 1 - found.low))


def test_the_interval_covers_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    for p in (0.5, 0.9, 0.97):
        hits = [wilson(int(n), 200) for n in draw.binomial(200, p, 2000)]
        assert 0.93 < np.mean([one.low <= p <= one.high for one in hits]) < 0.975


def test_of_nothing_nothing_is_known() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    empty = compare([], [])
    assert (empty.low, empty.high, empty.p_value) == (-1.0, 1.0, 1.0)


def test_mcnemar_counts_what_is_as_uneven() -> None:
    for first, second in itertools.product(range(7), range(7)):
        n = first + second
        uneven = sum(comb(n, k) for k in range(n + 1) if abs(2 * k - n) >= abs(first - second))
        assert mcnemar(first, second) == pytest.approx(uneven / 2**n)


def test_pairs_are_counted_start_by_start() -> None:
    found = compare([True] * 36 + [False] * 14, [True] * 34 + [False] * 16)
    assert (found.both, found.only_first, found.only_second, found.neither) == (34, 2, 0, 14)
    assert found.difference == pytest.approx(-0.04)
    assert found.low < found.difference < found.high
    with pytest.raises(ValueError):
        compare([True], [])


def test_the_paired_interval_is_that_of_the_literature() -> None:
    # Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions
    # based on paired data", table III: a, b, c, d = 36, 12, 2, 0, method 10; ours is second less
    # first.
    first = [True] * 48 + [False] * 2
    second = [True] * 36 + [False] * 12 + [True] * 2
    found = compare(first, second)
    assert (round(-found.high, 4), round(-found.low, 4)) == (0.0569, 0.3404)


def test_the_interval_of_a_mean_covers_as_often_as_it_says() -> None:
    draw = np.random.default_rng(2)
    found = [bootstrapped(draw.uniform(0.0, 2.0, 60).tolist()) for _ in range(300)]
    assert 0.9 < np.mean([one.low <= 1.0 <= one.high for one in found]) < 0.98
    assert bootstrapped([2.0] * 5) == bootstrapped([2.0]) and bootstrapped([]).mean == 0.0


def test_the_paired_interval_covers_as_often_as_it_says() -> None:
    draw, hits = np.random.default_rng(1), []
    for _ in range(600):
        either, flips = draw.random(100) < 0.9, draw.random(100)
        first, second = either ^ (flips < 0.03), either ^ (flips > 0.95)
        found = compare(first.tolist(), second.tolist())
        truth = (0.9 * 0.95 + 0.1 * 0.05) - (0.9 * 0.97 + 0.1 * 0.03)
        hits.append(found.low <= truth <= found.high)
    assert np.mean(hits) > 0.93
