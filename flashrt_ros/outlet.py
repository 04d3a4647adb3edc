"""Where decisions go, and what is told of how long the parts of one took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flashrt_ros.statistics import Timing


@dataclass(frozen=True)
class Outlet:
    """Where decisions go, and what the time is.

    Attributes:
        open: whether decisions may leave the node (it is active).
        now_ns: the node's clock.
        chunk, timing: publish a message.
    """

    open: Callable[[], bool]
    now_ns: Callable[[], int]
    chunk: Callable[[Any], None]
    timing: Callable[[Any], None]


@dataclass(frozen=True)
class Marks:
    """time.perf_counter_ns() at the borders of the parts of a decision; how old its newest image
    was at the first (ns; None where no image was looked at)."""

    start: int
    ingested: int
    decided: int
    image_age_ns: int | None = None
    published: int = 0

    def timing(self, stage_ms: Mapping[str, float], age: Any) -> Timing:
        """How long the parts took, and ``age`` of the observation (a Duration message)."""
        took = dict(stage_ms)
        action_ms = took.pop("action", 0.0)
        return Timing(
            ingest_ms=_ms(self.ingested - self.start),
            context_ms=sum(took.values()),
            action_ms=action_ms,
            publish_ms=_ms(self.published - self.decided),
            total_ms=_ms(self.published - self.start),
            observation_age_ms=age.sec * 1e3 + age.nanosec * 1e-6,
        )

    def overhead_ms(self, timing: Timing) -> float | None:
        """From the newest image's stamp on, without the policy's stages; None without one."""
        if self.image_age_ns is None:
            return None
        engine_ms = timing.context_ms + timing.action_ms
        return _ms(self.image_age_ns) + timing.total_ms - engine_ms


def _ms(ns: int) -> float:
    return ns * 1e-6
