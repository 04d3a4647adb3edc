"""Requests that wait for sensor data: answered by the message that completes them, or in time.

Everything here runs on the executor thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node
from rclpy.task import Future

from flashrt_core.errors import FlashRTError
from flashrt_ros.errors import BusyError, RequestTimeoutError, StaleInputError
from flashrt_ros.ingest import Ingest

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
        self._ticking = False

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
        self._ticking = True
        error = await future
        if error is not None:
            raise error

    def poll(self) -> None:
        """Release the waiters whose condition holds or whose time is up."""
        if not self._waiters and not self._ticking:
            return  # for every message that comes
        now = time.monotonic()
        for waiter in tuple(self._waiters):
            if waiter.ready():
                self._release(waiter, None)
            elif now >= waiter.deadline:
                self._release(waiter, waiter.late())
        if not self._waiters:
            self._timer.cancel()
            self._ticking = False

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


async def wait_for_inputs(
    waiters: Waiters,
    ingest: Ingest,
    now_ns: Callable[[], int],
    not_before: Mapping[str, int],
    timeout_s: float,
) -> None:
    """Wait until every input is usable, and those named are stamped at least so (ns).

    Args:
        waiters: of the node.
        ingest: has the inputs.
        now_ns: the node's clock.
        not_before: input name -> the least stamp (ns) that will do.
        timeout_s: wall time to wait at most.

    Raises:
        RequestTimeoutError: a named input did not come in time.
        StaleInputError: all named came, but another is missing or too old, or they do not fit
            together; at once where an input that is not named has stopped the node.
        BusyError: too many requests wait already.
    """
    if stopping := ingest.stopping(now_ns(), not_before):
        raise ingest.stale_error(stopping, now_ns())
    refusals = {name: ingest.inputs[name].refusals() for name in not_before}

    def ready() -> bool:
        return not isinstance(ingest.choose(now_ns(), not_before), StaleInputError)

    def behind() -> list[str]:
        stamps = {name: ingest.inputs[name].newest_stamp_ns() for name in not_before}
        return [n for n, least in not_before.items() if (s := stamps[n]) is None or s < least]

    def late() -> FlashRTError:
        if names := behind():
            refused = [
                f"{name} {text}"
                for name in names
                if (text := ingest.inputs[name].last_refused(refusals[name]))
            ]
            return RequestTimeoutError(
                f"inputs {', '.join(names)}",
                expected=f"a stamp not before the one asked for, within {timeout_s:g} s",
                got="; ".join(["none", *refused]),
            )
        choice = ingest.choose(now_ns(), not_before)
        if isinstance(choice, StaleInputError):
            return choice
        return ingest.stale_error((), now_ns())  # it came after all, this very moment

    await waiters.wait(ready, late, timeout_s)
