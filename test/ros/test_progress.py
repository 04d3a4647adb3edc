"""Why no chunk comes though decisions are timed: every cause by its name, and only if it lasts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from flashrt_ros import silence as module
from flashrt_ros.runtime import Runtime

PERIOD_S = 0.1
NOW_NS = 1_000_000_000_000


class Log:
    """Stands in for the EdgeLog; keeps what is lasting."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def problem(self, key: str, message: str, status: str, *, lasting: bool) -> None:
        assert key == "decisions" and lasting
        assert message.endswith(status.removeprefix("none is made"))
        self.told.append(status.removeprefix("none is made: "))


def config(replan_rows: int = 0) -> Any:
    """Rows are a second apart."""
    execution = SimpleNamespace(replan_rows=replan_rows)
    return SimpleNamespace(rate_hz=1.0 / PERIOD_S, execution=execution, action_dt_s=1.0)


def silent(seconds: float, **changes: Any) -> Runtime:
    """A runtime whose last timed decision ended that long ago, with nothing else the matter."""
    state: dict[str, Any] = {
        "_timer": object(),
        "_outlet": SimpleNamespace(now_ns=lambda: NOW_NS),
        "config": config(),
        "deciding": False,
        "decider": SimpleNamespace(episode=None),
        "worker": SimpleNamespace(waiting=0),
        "node": SimpleNamespace(get_clock=lambda: SimpleNamespace(ros_time_is_active=False)),
        "edge_log": Log(),
    } | changes
    runtime = Runtime.__new__(Runtime)
    clocks = {
        "_clock_ns": NOW_NS - 1,
        "_answered_s": time.monotonic() - seconds,
        "_answered_ns": NOW_NS - int(seconds * 1e9),
    }
    for name in clocks.keys() & state.keys():
        clocks[name] = state.pop(name)
    runtime._silence = module.Silence()
    for name, value in clocks.items():
        setattr(runtime._silence, name, value)
    for name, value in state.items():
        setattr(runtime, name, value)
    return runtime


def told(runtime: Runtime) -> list[str]:
    runtime.check_progress()
    log: Any = runtime.edge_log
    return list(log.told)


SIMULATED = SimpleNamespace(get_clock=lambda: SimpleNamespace(ros_time_is_active=True))
LONG_S = 10 * max(module._SILENT_S, module._DECISION_S, module._SILENT_PERIODS * PERIOD_S)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"deciding": True}, "a decision runs and does not end"),
        ({"worker": SimpleNamespace(waiting=3)}, "requests keep the inference thread busy"),
        ({}, "the timer has not fired"),
        (
            {"node": SIMULATED, "_clock_ns": NOW_NS},
            "use_sim_time is set and /clock stands at 1000.000 s",
        ),
        (
            {
                "node": SIMULATED,
                "_clock_ns": 0,
                "_outlet": SimpleNamespace(now_ns=lambda: 0),
                "_answered_ns": 0,
            },
            "use_sim_time is set and /clock has shown no time yet",
        ),
    ],
)
def test_the_cause_is_named(changes: dict[str, Any], cause: str) -> None:
    assert told(silent(LONG_S, **changes)) == [cause]


@pytest.mark.parametrize(
    ("seconds", "changes"),
    [
        (0.5 * module._SILENT_S, {}),
        # A first decision of a large policy may take long.
        (1.1 * module._SILENT_S, {"deciding": True}),
        # Simulated time that passes slowly: none is due yet.
        (LONG_S, {"node": SIMULATED, "_answered_ns": NOW_NS - int(0.5e9 * PERIOD_S)}),
        (LONG_S, {"_timer": None}),  # on request only
        # The schedule begins the next decision when so many rows are executed.
        (LONG_S, {"config": config(replan_rows=round(LONG_S))}),
    ],
)
def test_what_is_no_stall_is_not_reported(seconds: float, changes: dict[str, Any]) -> None:
    assert told(silent(seconds, **changes)) == []


def test_a_chunk_that_is_executed_to_its_end_is_no_silence() -> None:
    """Where decisions build on each other: five chunks of it are."""
    long = {"decider": SimpleNamespace(episode=SimpleNamespace(seconds=LONG_S / 4))}
    assert told(silent(LONG_S, **long)) == []
    assert told(silent(2 * LONG_S, **long)) == ["the timer has not fired"]
