"""Random faults, chunks and positions: what leaves is within the limits, and safe in time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from flashrt_ros.execution.chunk import Chunk
from flashrt_ros.execution.machine import IDLE, RUNNING, SAFE, Facts, Machine
from flashrt_ros.execution.strategies import REAL_TIME_CHUNKING, STRATEGIES
from flashrt_ros.parameters import build_config

from .test_machine import COMMANDS, MS, NOW


class Recorder:
    """A sink that holds every command to the limits, as it leaves."""

    def __init__(self, low: float, high: float, step: float) -> None:
        self.low, self.high, self.step = low, high, step
        self.open = False
        self.last: np.ndarray | None = None
        self.commands = 0

    def command(self, now_ns: int, values: np.ndarray) -> None:
        assert self.open, "nothing leaves while the node is not active"
        assert np.isfinite(values).all()
        if self.last is not None:
            assert (np.abs(values - self.last) <= self.step * (1 + 1e-8)).all()
        assert (values >= self.low).all() and (values <= self.high).all()
        self.last = values
        self.commands += 1

    def trajectory(self, now_ns: int, points: Sequence[tuple[int, np.ndarray]]) -> None:
        assert self.open
        before = now_ns
        for time_ns, position in points:
            assert time_ns > before, "in the future, and in order"
            assert np.isfinite(position).all()
            assert (position >= self.low).all() and (position <= self.high).all()
            before = time_ns

    def stop(self, now_ns: int, position: np.ndarray) -> None:
        assert self.open and np.isfinite(position).all()


def check_pace(machine: Machine, now_ns: int) -> None:
    """Ask for the next decision; what it would continue is what one can."""
    machine.decision_due(now_ns)
    continuation = machine.continuation(now_ns)
    assert continuation is None or machine.config.strategy == REAL_TIME_CHUNKING
    if continuation and (previous := continuation.previous(now_ns - 5 * MS, 8)):
        assert 0 <= previous.frozen <= len(previous.rows) <= 8
        assert np.isfinite(previous.rows).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("safe_action", ["hold", "stop", "stop_trajectory"])
def test_whatever_happens_the_limits_hold_and_the_safe_action_is_in_time(
    strategy: str, safe_action: str
) -> None:
    rng, commands = np.random.default_rng(5), 0
    for _ in range(40):
        step = float(rng.uniform(0.01, 0.5))
        sink = Recorder(-1.0, 1.0, step)
        parameters = COMMANDS | {
            "output.trajectory.topic": "trajectory",
            "execution.strategy": strategy,
            "execution.interpolation": str(rng.choice(["hold", "linear"])),
            "execution.replan_rows": int(rng.integers(0, 8)),
            "limits.lower": [-1.0, -1.0],
            "limits.upper": [1.0, 1.0],
            "limits.max_step": [step, step],
            "safe.action": safe_action,
        }
        machine = Machine(build_config(parameters).execution, sink)
        now_ns, measured = NOW, rng.uniform(-0.9, 0.9, 2)
        machine.start()
        sink.open, ended = True, False
        for _ in range(150):
            now_ns += int(rng.integers(1, 20 * MS))
            facts = Facts(
                measured=None if rng.random() < 0.1 else measured,
                stale="old" if rng.random() < 0.05 else "",
                controller="",
            )
            event = rng.random()
            if event < 0.25:
                rows = rng.normal(size=(int(rng.integers(1, 12)), 2)) * 10.0 ** rng.uniform(-2, 3)
                if rng.random() < 0.1:
                    rows[rng.integers(len(rows)), 0] = rng.choice([np.nan, np.inf, -np.inf])
                begin_ns = now_ns - int(rng.integers(-50 * MS, 300 * MS))
                machine.take(Chunk(begin_ns, int(rng.integers(1, 60 * MS)), rows), now_ns, facts)
            elif event < 0.3:
                machine.fail(str(rng.choice(["stale", "failed"])), "by design")
            elif event < 0.32:
                machine.forget()
            elif event < 0.34:
                machine.finish(now_ns, facts, "deactivated")
                sink.open = False
                machine.tick(now_ns, facts)
                machine.start()
                sink.open, sink.last, ended = True, None, False
            else:
                idle, failed = machine.state == IDLE, machine.counters.safe["failed"]
                if ended:  # it goes on from the measured joints
                    sink.last = facts.measured
                sent = sink.commands
                machine.tick(now_ns, facts)
                ended = ended and sink.commands == sent
                due = machine.schedule.at(now_ns) is not None
                if not idle:
                    assert machine.state == (RUNNING if due and not facts.stale else SAFE)
                assert machine.counters.safe["failed"] <= failed + 1
            ended = ended or (machine.state == SAFE and safe_action != "hold")
            check_pace(machine, now_ns)
        commands += sink.commands
    assert commands > 500
