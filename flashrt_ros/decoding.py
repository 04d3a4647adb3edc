"""Compressed pictures are decoded on a thread of their own, and only the newest of them.

A picture of a camera takes milliseconds, a large one more than a decision; neither the thread that
takes messages nor the one that decides may wait for it. What a newer picture overtakes before its
turn is never decoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class NewestFirst(Generic[T]):
    """Runs ``work`` on the newest of what it is given, on a thread of its own.

    Args:
        name: of the thread.
        work: called with one thing at a time; must not raise.
    """

    def __init__(self, name: str, work: Callable[[T], None]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._waiting: T | None = None
        self._stopping = False
        # A daemon, so that a picture that never ends cannot keep the process alive.
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Take ``item``, in place of one that still waits; returns at once."""
        with self._changed:
            self._waiting = item
            self._changed.notify()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the work at hand; whether it ended in time."""
        with self._changed:
            self._stopping, self._waiting = True, None
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._stopping)
                item, self._waiting = self._waiting, None
            if item is None:
                return
            self._work(item)
