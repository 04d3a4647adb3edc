"""Whether timed decisions end, good or bad, and why not."""

from __future__ import annotations

import time

from flashrt_ros.stamps import in_seconds

# Nothing decided for so many periods, and so many seconds, is a fault worth a line.
_SILENT_PERIODS, _SILENT_S = 5, 2.0
_DECISION_S = 10.0  # and so long for a decision that runs: on small machines one takes seconds


class Silence:
    """When a timed decision last ended, on two clocks."""

    def __init__(self) -> None:
        self._answered_s = 0.0  # steady time and node's time
        self._answered_ns = 0
        self._clock_ns = -1  # the node's time at the last look

    def broken(self, now_ns: int) -> None:
        """One ended now (the node's clock), or the first may begin."""
        self._answered_s, self._answered_ns = time.monotonic(), now_ns

    def look(
        self, now_ns: int, period_s: float, simulated: bool, deciding: bool, waiting: int
    ) -> tuple[float, str] | None:
        """For how many seconds none ended, and why; None while that is no fault.

        Args:
            now_ns: the node's clock.
            period_s: in which one is due.
            simulated: whether that clock is /clock.
            deciding: whether a decision runs.
            waiting: jobs before the next one.
        """
        before_ns, self._clock_ns = self._clock_ns, now_ns
        silent_s = time.monotonic() - self._answered_s
        if silent_s < max(_SILENT_PERIODS * period_s, _DECISION_S if deciding else _SILENT_S):
            return None
        if deciding:
            return silent_s, "a decision runs and does not end"
        if simulated and now_ns == before_ns:
            state = f"stands at {in_seconds(now_ns)}" if now_ns else "has shown no time yet"
            return silent_s, f"use_sim_time is set and /clock {state}"
        if now_ns - self._answered_ns < period_s * 1e9:
            return None  # simulated time that passes slowly: none is due
        if waiting:
            return silent_s, "requests keep the inference thread busy"
        return silent_s, "the timer has not fired"
