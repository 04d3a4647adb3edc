"""What successes over a number of starts say: intervals, and two ways on the same starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

_RESAMPLED = 4000
Z95 = 1.959963984540054  # of the normal distribution, 95 % within


@dataclass(frozen=True)
class Rate:
    """A success rate and its 95 % interval, all in 0..1."""

    successes: int
    total: int
    rate: float
    low: float
    high: float


def wilson(successes: int, total: int) -> Rate:
    """The rate with Wilson's score interval (Wilson 1927), which holds near 0 and 1 as well.

    Of no starts nothing is known: a rate of 0 in an interval of 0 to 1.
    """
    if not total:
        return Rate(0, 0, 0.0, 0.0, 1.0)
    p, z2 = successes / total, Z95**2
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * sqrt(p * (1 - p) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    # At the ends the interval touches them, whatever rounding says.
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == total else middle + half
    return Rate(successes, total, p, low, high)


@dataclass(frozen=True)
class Mean:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def bootstrapped(values: Sequence[float]) -> Mean:
    """The mean of differences, start by start, with the interval of 4000 resampled means (Efron's
    percentile interval; of a fixed seed, so that the same values give the same interval).
    """
    if not values:
        return Mean(0.0, 0.0, 0.0)
    given = np.asarray(values, np.float64)
    chosen = np.random.default_rng(0).integers(len(given), size=(_RESAMPLED, len(given)))
    low, high = np.percentile(given[chosen].mean(axis=1), (2.5, 97.5))
    return Mean(float(given.mean()), float(low), float(high))


@dataclass(frozen=True)
class Paired:
    """Two ways to decide, on the same starts.

    Attributes:
        both, only_first, only_second, neither: starts by who succeeded.
        difference: rate of the second less that of the first.
        low, high: 95 % interval of that (Newcombe 1998, method 10).
        p_value: exact McNemar test, two-sided, of no difference.
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    difference: float
    low: float
    high: float
    p_value: float


def compare(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """Compare successes of two ways, start by start; ValueError where they are not as many."""
    counts = [0, 0, 0, 0]
    for one, two in zip(first, second, strict=True):
        counts[(0 if two else 1) if one else (2 if two else 3)] += 1
    both, only_first, only_second, neither = counts
    low, high = _difference(both, only_first, only_second, neither)
    return Paired(
        both,
        only_first,
        only_second,
        neither,
        (only_second - only_first) / max(1, len(first)),
        low,
        high,
        mcnemar(only_first, only_second),
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p of as uneven a split of the starts that differ, were both ways equal."""
    differ, least = only_first + only_second, min(only_first, only_second)
    tail = sum(comb(differ, k) for k in range(least + 1))
    return min(1.0, 2.0 * tail / 2**differ)


def _difference(a: int, b: int, c: int, d: int) -> tuple[float, float]:
    """Interval of second less first: ``a`` both, ``b`` the first only, ``c`` the second only."""
    n = a + b + c + d
    if not n:
        return -1.0, 1.0
    one, two = wilson(a + c, n), wilson(a + b, n)
    spread = (a + b) * (c + d) * (a + c) * (b + d)
    excess = float(a * d - b * c)
    if excess > 0:  # continuity correction
        excess = max(0.0, excess - n / 2)
    phi = excess / sqrt(spread) if spread else 0.0
    difference = (c - b) / n

    def half(x: float, y: float) -> float:
        return sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    low = difference - half(one.rate - one.low, two.high - two.rate)
    high = difference + half(one.high - one.rate, two.rate - two.low)
    return max(-1.0, low), min(1.0, high)
