"""What the node counts and times; written by two threads, read by diagnostics."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

PERCENTILES = (50, 95, 99)
_WINDOW = 512  # decisions that the percentiles are taken over


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the parts of one decision; see msg/DecisionTiming.msg."""

    ingest_ms: float
    context_ms: float
    action_ms: float
    publish_ms: float
    total_ms: float
    observation_age_ms: float


class Statistics:
    """Counters by name, and timings of the last decisions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._timings: deque[Timing] = deque(maxlen=_WINDOW)

    def reset(self) -> None:
        """Start from nothing."""
        with self._lock:
            self._counts.clear()
            self._timings.clear()

    def count(self, name: str) -> None:
        """Add one to a counter."""
        with self._lock:
            self._counts[name] += 1

    def decided(self, timing: Timing) -> None:
        """Record a published decision."""
        with self._lock:
            self._counts["decisions"] += 1
            self._timings.append(timing)

    def counts(self) -> dict[str, int]:
        """All counters so far."""
        with self._lock:
            return dict(self._counts)

    def percentiles(self) -> dict[str, dict[int, float]]:
        """[part][percentile] over the last decisions; empty before the first."""
        with self._lock:
            timings = [asdict(timing) for timing in self._timings]
        if not timings:
            return {}
        return {part: _percentiles(timing[part] for timing in timings) for part in timings[0]}


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


def _percentiles(values: Iterable[float]) -> dict[int, float]:
    found = np.percentile(np.fromiter(values, float), PERCENTILES)
    return dict(zip(PERCENTILES, found.tolist(), strict=True))
