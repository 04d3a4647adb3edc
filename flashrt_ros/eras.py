"""Eras of the node's clock: each jump of it ends one, and with it whatever was under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flashrt_ros.errors import ClockJumpError


class Eras:
    """Counts them. Ended on the executor thread; asked on the inference thread, too.

    Attributes:
        now: the number of this one.
    """

    def __init__(self) -> None:
        self.now = 0
        self._lock = threading.Lock()

    def end(self) -> None:
        """The clock is about to jump, or has jumped; what lasts is waited for."""
        with self._lock:
            self.now += 1

    @contextmanager
    def lasting(self, era: int) -> Iterator[None]:
        """What is done meanwhile is done wholly in that era; ClockJumpError where it is over."""
        with self._lock:
            if era != self.now:
                raise ClockJumpError(
                    "decision",
                    expected="a clock of the node that runs on to its end",
                    got="one that jumped meanwhile: nobody knows how old its inputs are",
                    remedy="decide again",
                )
            yield
