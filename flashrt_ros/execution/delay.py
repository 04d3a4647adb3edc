"""How long a decision takes, and when the next one must begin."""

from __future__ import annotations

import math
from collections import deque

from flashrt_ros.execution.chunk import Chunk

_WINDOW = 64


class Delay:
    """Time from the beginning of a decision to its chunk being there.

    Args:
        fixed_ns: take this; 0 measures.
        quantile: of the last measured ones, in (0, 1].
        warm_up: so many measurements count only until there is a later one: the first decision
            after a start takes longer than any other, and would be believed for a whole window.
    """

    def __init__(self, fixed_ns: int, quantile: float, warm_up: int = 1) -> None:
        self._fixed_ns = fixed_ns
        self._quantile = quantile
        self._warm_up = warm_up
        self._left = warm_up
        self._warm_up_ns = 0  # the last of those
        self._samples: deque[int] = deque(maxlen=_WINDOW)

    def measured(self, delay_ns: int) -> None:
        """Tell of a decision. A negative one (the clock went back) is not believed."""
        if delay_ns < 0:
            return
        if self._left:
            self._left -= 1
            self._warm_up_ns = delay_ns
            return
        self._samples.append(delay_ns)

    def restart(self) -> None:
        """Measure anew, warm-up included."""
        self._left = self._warm_up
        self._warm_up_ns = 0
        self._samples.clear()

    @property
    def ns(self) -> int:
        """The delay to expect: fixed, or the least sample that the quantile does not exceed; before
        the first that of the warm-up, which is too long rather than too short; 0 before that.
        """
        if self._fixed_ns:
            return self._fixed_ns
        if not self._samples:
            return self._warm_up_ns
        ordered = sorted(self._samples)
        return ordered[max(0, math.ceil(self._quantile * len(ordered)) - 1)]


def begin_ns(chunk: Chunk, replan_rows: int, delay_ns: int) -> int:
    """When a decision must begin so that its chunk is there when row ``replan_rows`` is due."""
    return chunk.due_ns(min(replan_rows, len(chunk.rows))) - delay_ns
