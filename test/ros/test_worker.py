"""The inference thread, the edge log and the statistics, without ROS."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from flashrt_ros.edge_log import EdgeLog
from flashrt_ros.errors import BusyError, RequestTimeoutError, WrongStateError
from flashrt_ros.statistics import RateMeter, Statistics, Timing
from flashrt_ros.worker import InferenceThread, Outcome


class Executor:
    """Stands for the ROS executor: the thread of the test delivers when the worker rings."""

    def __init__(self, capacity: int = 8) -> None:
        self.rung = threading.Semaphore(0)
        self.worker = InferenceThread(self.rung.release, capacity)

    def deliver_next(self) -> None:
        assert self.rung.acquire(timeout=5.0)
        self.worker.deliver()


def test_jobs_run_in_order_and_outcomes_come_back_on_the_callers_thread() -> None:
    executor, seen = Executor(), []
    for k in range(3):
        executor.worker.submit(
            lambda k=k: (k, threading.current_thread().name),
            lambda outcome: seen.append((outcome.value, threading.current_thread().name)),
        )
    for _ in range(3):
        executor.deliver_next()
    here = threading.current_thread().name
    assert seen == [((k, "inference"), here) for k in range(3)]
    assert executor.worker.stop(5.0)


def test_a_failing_job_is_reported_and_the_thread_lives() -> None:
    executor, seen = Executor(), []

    def fail() -> None:
        raise ZeroDivisionError("by design")

    executor.worker.submit(fail, seen.append)
    executor.deliver_next()
    assert isinstance(seen[0].error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="by design"):
        executor.worker.call(fail)
    assert executor.worker.call(lambda: 5) == 5
    assert executor.worker.stop(5.0)


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    executor, gate, seen = Executor(capacity=2), threading.Event(), []
    executor.worker.submit(gate.wait, seen.append)
    while executor.worker.waiting:
        time.sleep(0.001)
    for _ in range(2):
        executor.worker.submit(lambda: "done", seen.append)
    with pytest.raises(BusyError, match="at most 2 waiting"):
        executor.worker.submit(lambda: "too much", seen.append)
    gate.set()
    for _ in range(3):
        executor.deliver_next()
    assert [outcome.value for outcome in seen] == [True, "done", "done"]
    assert executor.worker.stop(5.0)


def test_an_urgent_job_goes_before_a_full_queue() -> None:
    executor, gate, seen = Executor(capacity=2), threading.Event(), []
    executor.worker.submit(gate.wait, seen.append)
    while executor.worker.waiting:
        time.sleep(0.001)
    for k in range(2):
        executor.worker.submit(lambda k=k: k, seen.append)
    executor.worker.submit(lambda: "the robot", seen.append, urgent=True)
    gate.set()
    for _ in range(4):
        executor.deliver_next()
    assert [outcome.value for outcome in seen] == [True, "the robot", 0, 1]
    assert executor.worker.stop(5.0)


def test_stopping_finishes_the_running_job_and_fails_the_waiting_ones() -> None:
    executor, gate, seen = Executor(), threading.Event(), []
    executor.worker.submit(gate.wait, seen.append)
    while executor.worker.waiting:
        time.sleep(0.001)
    executor.worker.submit(lambda: None, seen.append)
    assert not executor.worker.stop(0.05), "the job holds it"
    gate.set()
    assert executor.worker.stop(5.0)
    assert isinstance(seen[0].error, WrongStateError) and seen[1] == Outcome(value=True)
    with pytest.raises(WrongStateError):
        executor.worker.submit(lambda: None, seen.append)
    assert not any(t.name == "inference" for t in threading.enumerate())


def test_waiting_for_work_is_bounded() -> None:
    executor, gate = Executor(), threading.Event()
    with pytest.raises(RequestTimeoutError):
        executor.worker.call(gate.wait, timeout_s=0.05)
    assert not executor.worker.wait_idle(0.05)
    gate.set()
    assert executor.worker.wait_idle(5.0)
    assert executor.worker.stop(5.0)


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, text: str) -> None:
        self.lines.append("W " + text)

    def info(self, text: str) -> None:
        self.lines.append("I " + text)


def test_a_lasting_problem_is_two_lines() -> None:
    log, now = Log(), [0.0]
    edges = EdgeLog(log, quiet_s=5.0, clock=lambda: now[0])
    for k in range(100):
        now[0] = k / 30
        edges.problem("front", f"bad frame {k}", "encoding")
        edges.settle()
    assert log.lines == ["W front: bad frame 0"]
    assert edges.open_problems() == {"front": "encoding"}
    now[0] += 5.1
    edges.settle()
    assert log.lines[1:] == ["I front: over, seen 100 times"]
    assert edges.open_problems() == {}
    edges.problem("front", "again", "encoding")
    assert log.lines[-1] == "W front: again"
    edges.clear("front")
    edges.clear("front")
    assert len(log.lines) == 4


def test_alternating_and_flickering_problems_are_throttled() -> None:
    log, now = Log(), [0.0]
    edges = EdgeLog(log, quiet_s=5.0, clock=lambda: now[0])
    for k in range(299):
        now[0] = k / 30
        edges.problem("front", f"kind {k % 2}")
    assert len(log.lines) == 2
    log.lines.clear()
    for k in range(299):
        now[0] = 100.0 + k / 30
        edges.problem("wrist", "gone")
        edges.clear("wrist")
    assert log.lines == ["W wrist: gone", "I wrist: over, seen once"] * 2


def test_what_nobody_looks_at_any_more_is_not_over() -> None:
    log, now = Log(), [0.0]
    edges = EdgeLog(log, quiet_s=5.0, clock=lambda: now[0])
    edges.problem("decisions", "none")
    edges.problem("front", "bad")
    edges.drop("decisions")
    edges.clear("decisions")
    assert list(edges.open_problems()) == ["front"]
    edges.drop()
    now[0] += 60.0
    edges.settle()
    assert log.lines == ["W decisions: none", "W front: bad"]
    edges.problem("decisions", "none")
    assert log.lines[2:] == ["W decisions: none"], "a new beginning"


def test_silence_does_not_end_a_problem_that_lasts() -> None:
    log, now = Log(), [0.0]
    edges = EdgeLog(log, quiet_s=5.0, clock=lambda: now[0])
    edges.problem("publisher", "does not fit", lasting=True)
    now[0] += 60.0
    edges.settle()
    assert list(edges.open_problems()) == ["publisher"] and len(log.lines) == 1
    edges.clear("publisher")
    assert log.lines[1:] == ["I publisher: over, seen once"]


def timing(ms: float) -> Timing:
    return Timing(ms, 2 * ms, 3 * ms, 4 * ms, 10 * ms, 20 * ms)


def test_statistics() -> None:
    statistics = Statistics()
    assert statistics.percentiles() == {}
    for k in range(101):
        statistics.decided(timing(float(k)))
    statistics.count("stale")
    assert statistics.counts() == {"decisions": 101, "stale": 1}
    found = statistics.percentiles()
    assert found["ingest_ms"] == {50: 50.0, 95: 95.0, 99: 99.0}
    assert found["total_ms"][95] == 950.0
    statistics.reset()
    assert statistics.counts() == {} and statistics.percentiles() == {}


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[Any] = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    meter = RateMeter()
    assert meter.read({"a": 5}) == {"a": 0.0}
    now[0] = 12.0
    assert meter.read({"a": 65}) == {"a": 30.0}
    now[0] = 13.0
    assert meter.read({"a": 7}) == {"a": 7.0}, "started anew"
