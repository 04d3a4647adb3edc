"""What the node counts and times; written by two threads, read by diagnostics."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields

import numpy as np

PERCENTILES = (50, 95, 99)
_WINDOW = 512  # decisions that the percentiles are taken over
_OVERHEAD = (0.1, 5000)  # ms a bin, and bins


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the parts of one decision; see msg/DecisionTiming.msg."""

    ingest_ms: float
    context_ms: float
    action_ms: float
    publish_ms: float
    total_ms: float
    observation_age_ms: float


class Histogram:
    """Percentiles of all values ever added, to ``step``, in memory that does not grow.

    Args:
        step: width of a bin.
        bins: values beyond the last one count as infinite, but for the maximum.
    """

    def __init__(self, step: float, bins: int) -> None:
        self._step = step
        self._counts = np.zeros(bins + 1, np.int64)
        self.maximum = -math.inf

    def add(self, value: float) -> None:
        """Count a value; negative ones count as 0."""
        at = min(max(0, math.ceil(value / self._step)), len(self._counts) - 1)
        self._counts[at] += 1
        self.maximum = max(self.maximum, value)

    def percentile(self, percent: float) -> float:
        """The least multiple of ``step`` that so many values do not exceed, or the largest value
        where that is less; NaN without values.
        """
        total = int(self._counts.sum())
        if not total:
            return math.nan
        at = int(np.searchsorted(np.cumsum(self._counts), math.ceil(total * percent / 100)))
        return (
            min(at * self._step, max(0.0, self.maximum)) if at < len(self._counts) - 1 else math.inf
        )


class Statistics:
    """Counters by name, timings of the last decisions, and the overhead of all of an activation.

    Attributes:
        policy_cpu_s: CPU time that the inference thread spent in the policy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._timings: deque[tuple[float, ...]] = deque(maxlen=_WINDOW)
        self._overhead = Histogram(*_OVERHEAD)
        self.policy_cpu_s = 0.0

    def reset(self) -> None:
        """Start from nothing."""
        with self._lock:
            self._counts.clear()
            self._timings.clear()
            self._overhead = Histogram(*_OVERHEAD)
            self.policy_cpu_s = 0.0

    def count(self, name: str, more: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += more

    def decided(self, timing: Timing) -> None:
        """Record a published decision."""
        with self._lock:
            self._counts["decisions"] += 1
            self._timings.append(astuple(timing))

    def restart(self) -> None:
        """An activation begins: the overhead is counted from here."""
        with self._lock:
            self._overhead = Histogram(*_OVERHEAD)

    def policy_ran(self, cpu_ns: int) -> None:
        """Add CPU time of the policy."""
        with self._lock:
            self.policy_cpu_s += cpu_ns * 1e-9

    def overhead(self, value_ms: float) -> None:
        """Record what the node added to a decision: from the stamp of the newest image to the
        published chunk, without the stages of the engine."""
        with self._lock:
            self._overhead.add(value_ms)

    def overheads(self) -> dict[str, float]:
        """Percentiles and maximum of the overhead in ms since :meth:`restart`; empty before the
        first decision."""
        with self._lock:
            found = {f"p{p}": self._overhead.percentile(p) for p in PERCENTILES}
            greatest = self._overhead.maximum
        return found | {"max": greatest} if math.isfinite(greatest) else {}

    def counts(self) -> dict[str, int]:
        """All counters so far."""
        with self._lock:
            return dict(self._counts)

    def percentiles(self) -> dict[str, dict[int, float]]:
        """[part][percentile] over the last decisions; empty before the first."""
        with self._lock:
            timings = list(self._timings)
        if not timings:
            return {}
        # All at once: a call for each part holds the interpreter ten times as long.
        found = np.percentile(np.array(timings), PERCENTILES, axis=0).T.tolist()
        parts = [each.name for each in fields(Timing)]
        return {
            p: dict(zip(PERCENTILES, row, strict=True)) for p, row in zip(parts, found, strict=True)
        }


class RateMeter:
    """Events a second between two readings of a total."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def read(self, totals: Mapping[str, int]) -> dict[str, float]:
        """Rate of each total since its previous reading, in Hz; 0 at the first."""
        now = time.monotonic()
        rates: dict[str, float] = {}
        for name, total in totals.items():
            then, before = self._last.get(name, (now, total))
            # A total that fell was started anew.
            gained = total - before if total >= before else total
            rates[name] = gained / (now - then) if now > then else 0.0
            self._last[name] = (now, total)
        return rates
