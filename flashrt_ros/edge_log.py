"""Log lines at the edges of a condition, not one a message: 30 bad frames a second are one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class _Open:
    kind: str
    seen: float
    announced: bool
    lasting: bool
    count: int = 1


class EdgeLog:
    """Warns when a condition begins or changes, and says when it has ended.

    A condition that comes and goes gets a line only so often. Usable from any thread.

    Args:
        logger: has ``warning`` and ``info``.
        quiet_s: a condition not seen for so long has ended; also the shortest time between two
            lines of one condition.
        clock: seconds, monotonic.
    """

    def __init__(
        self, logger: Any, quiet_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._quiet_s = quiet_s
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._said: dict[str, float] = {}  # when a condition last got a line

    def problem(self, key: str, text: str, kind: str = "", lasting: bool = False) -> None:
        """Condition ``key`` holds.

        Args:
            key: names the condition.
            text: what to say of it.
            kind: what must differ for another line; the text by default.
            lasting: silence does not end it, only :meth:`clear` and :meth:`drop` do.
        """
        kind = kind or text
        now = self._clock()
        with self._lock:
            entry = self._open.get(key)
            may_say = now - self._said.get(key, -self._quiet_s) >= self._quiet_s
            if entry is None:
                entry = self._open[key] = _Open(kind, now, False, lasting)
            else:
                entry.seen = now
                entry.count += 1
                may_say = may_say and not (entry.announced and entry.kind == kind)
            if not may_say:
                return
            entry.kind, entry.announced, self._said[key] = kind, True, now
        self._logger.warning(f"{key}: {text}")

    def clear(self, key: str) -> None:
        """Condition ``key`` has ended; said only if its beginning was."""
        with self._lock:
            entry = self._open.pop(key, None)
        if entry is not None and entry.announced:
            times = "once" if entry.count == 1 else f"{entry.count} times"
            self._logger.info(f"{key}: over, seen {times}")

    def drop(self, key: str | None = None) -> None:
        """Forget condition ``key``, or all, without a word: nobody looks any more, none is over."""
        with self._lock:
            if key is None:
                self._open.clear()
            else:
                self._open.pop(key, None)

    def settle(self) -> None:
        """End the conditions that were not seen for a while; call about once a second."""
        limit = self._clock() - self._quiet_s
        with self._lock:
            ended = [
                key for key, entry in self._open.items() if entry.seen < limit and not entry.lasting
            ]
        for key in ended:
            self.clear(key)

    def open_problems(self) -> dict[str, str]:
        """What holds now, by key."""
        with self._lock:
            return {key: entry.kind for key, entry in self._open.items()}
