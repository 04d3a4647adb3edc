"""Requests that wait for sensor data: answered by the message that completes them, or in time.

Everything here runs on the executor thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node
from rclpy.task import Future

from flashrt_core.errors import FlashRTError
from flashrt_ros.errors import BusyError

_POLL_S = 0.02  # only while something waits
_CAPACITY = 16


@dataclass(frozen=True, eq=False)
class _Waiter:
    ready: Callable[[], bool]
    late: Callable[[], FlashRTError]
    deadline: float
    future: Any


class Waiters:
    """Conditions that async services wait for.

    Args:
        node: its executor resumes the services, its (steady) timer bounds the wait.
    """

    def __init__(self, node: Node, steady_clock: Any) -> None:
        self._node = node
        self._waiters: list[_Waiter] = []
        self._timer = node.create_timer(_POLL_S, self.poll, clock=steady_clock)
        self._timer.cancel()

    async def wait(
        self, ready: Callable[[], bool], late: Callable[[], FlashRTError], timeout_s: float
    ) -> None:
        """Return once ``ready()``; after ``timeout_s`` of wall time raise ``late()``.

        Raises:
            BusyError: too many requests wait already.
        """
        if ready():
            return
        if timeout_s <= 0.0:
            raise late()
        if len(self._waiters) >= _CAPACITY:
            raise BusyError("request", expected=f"at most {_CAPACITY} waiting", got="one more")
        future = Future(executor=self._node.executor)
        self._waiters.append(_Waiter(ready, late, time.monotonic() + timeout_s, future))
        self._timer.reset()
        error = await future
        if error is not None:
            raise error

    def poll(self) -> None:
        """Release the waiters whose condition holds or whose time is up."""
        now = time.monotonic()
        for waiter in tuple(self._waiters):
            if waiter.ready():
                self._release(waiter, None)
            elif now >= waiter.deadline:
                self._release(waiter, waiter.late())
        if not self._waiters and not self._timer.is_canceled():
            self._timer.cancel()

    def fail_all(self, error: FlashRTError) -> None:
        """Release every waiter with ``error``."""
        for waiter in tuple(self._waiters):
            self._release(waiter, error)

    def close(self) -> None:
        """Destroy the timer."""
        self._node.destroy_timer(self._timer)

    def _release(self, waiter: _Waiter, error: FlashRTError | None) -> None:
        self._waiters.remove(waiter)
        waiter.future.set_result(error)
