"""The inference thread: the only thread that touches the engine.

Jobs run one after the other in the order they came. What a job returns or raises is handed back on
the executor thread: the worker rings ``notify`` (a guard condition), and the executor then calls
``deliver``. A failing job never ends the thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flashrt_ros.errors import BusyError, RequestTimeoutError, WrongStateError

T = TypeVar("T")
_YIELD_S = 30e-6  # and what the kernel adds: as long as a thread needs to wake


@dataclass(frozen=True)
class Outcome:
    """What became of a job: a value, or the exception it raised."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class _Job:
    work: Callable[[], Any]
    done: Callable[[Outcome], None]


class InferenceThread:
    """Runs jobs on a thread of its own.

    Args:
        notify: called on the inference thread when a finished job waits for :meth:`deliver`.
        capacity: jobs that may wait; one more is refused with BusyError.
    """

    def __init__(self, notify: Callable[[], None], capacity: int = 8) -> None:
        self._notify = notify
        self._capacity = capacity
        self._jobs: deque[_Job] = deque()
        self._finished: deque[tuple[_Job, Outcome]] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._stopping = False
        # A daemon, so that a job that never returns cannot keep the process alive.
        self._thread = threading.Thread(target=self._loop, name="inference", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that have not started."""
        return len(self._jobs)

    def submit(
        self, work: Callable[[], Any], done: Callable[[Outcome], None], *, urgent: bool = False
    ) -> None:
        """Queue ``work``; ``done`` gets its outcome on the executor thread.

        Args:
            work: the job.
            done: told of it.
            urgent: goes before all that waits, whose number does not bound it. For the one timed
                decision: requests must not starve the robot.

        Raises:
            BusyError: the queue is full.
            WrongStateError: the thread was stopped.
        """
        with self._changed:
            if self._stopping:
                raise WrongStateError("request", expected="a configured node", got="a teardown")
            if not urgent and len(self._jobs) >= self._capacity:
                raise BusyError(
                    "request", expected=f"at most {self._capacity} waiting", got="one more"
                )
            (self._jobs.appendleft if urgent else self._jobs.append)(_Job(work, done))
            self._changed.notify_all()
        if urgent:
            # The other thread wakes into a wait for the interpreter, which this one would keep
            # until it has nothing more to do.
            time.sleep(_YIELD_S)

    def call(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        """Run ``work`` after what is queued, wait for it, and return or raise what it did.

        For lifecycle transitions, which must answer when they are done. Not bounded by capacity.

        Raises:
            RequestTimeoutError: it did not finish in ``timeout_s``; it may still run.
        """
        finished = threading.Event()
        outcomes: list[Outcome] = []

        def record() -> None:
            try:
                outcomes.append(attempt(work))
            finally:
                finished.set()

        with self._changed:
            if self._stopping:
                raise WrongStateError("call", expected="a running thread", got="a stopped one")
            self._jobs.append(_Job(record, lambda _: None))
            self._changed.notify_all()
        if not finished.wait(timeout_s):
            raise RequestTimeoutError("work on the inference thread", expected=f"{timeout_s} s")
        outcome = outcomes[0]
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value

    def deliver(self) -> None:
        """Hand finished jobs their outcome; on the executor thread."""
        while self._finished:
            job, outcome = self._finished.popleft()
            job.done(outcome)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs or waits; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running and not self._jobs, timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the job that runs; jobs still waiting fail with WrongStateError.

        Returns whether it ended in time. Outcomes are delivered before it returns.
        """
        with self._changed:
            self._stopping = True
            error = WrongStateError("request", expected="a configured node", got="a teardown")
            while self._jobs:
                self._finished.append((self._jobs.popleft(), Outcome(error=error)))
            self._changed.notify_all()
        self._thread.join(timeout_s)
        self.deliver()
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._running = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs or self._stopping)
                if self._stopping:
                    return
                job = self._jobs.popleft()
                self._running = True
            self._finished.append((job, attempt(job.work)))
            self._notify()


def attempt(work: Callable[[], Any]) -> Outcome:
    """What becomes of ``work``."""
    try:
        return Outcome(value=work())
    except Exception as error:
        return Outcome(error=error)
