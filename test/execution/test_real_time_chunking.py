"""Real-time chunking from end to end without ROS: the tiny policy, a schedule, exact time.

A simulated arm follows what is due at every control period. Decisions take a known time, in which
it goes on with the chunk before. Each has other noise: chunks that know nothing of each other
differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from flashrt_ros.execution.chunk import Chunk
from flashrt_ros.execution.machine import Facts, Machine
from flashrt_ros.execution.strategies import REAL_TIME_CHUNKING, REPLACE, STRATEGIES
from flashrt_ros.parameters import build_config

from .test_machine import MINIMAL, MS, NOW

VIEW = "base_0_rgb"
DT_NS, PERIOD_NS, HORIZON = 50 * MS, 10 * MS, 20
OLD_NS = 20 * MS  # age of an observation when a decision begins
SECONDS = 6.0


class Arm:
    """Where it was commanded to be, at every period."""

    def __init__(self) -> None:
        self.path: list[np.ndarray] = []

    def command(self, now_ns: int, values: np.ndarray) -> None:
        self.path.append(values)

    def trajectory(self, *_: Any) -> None:
        raise AssertionError("no trajectories here")

    stop = trajectory

    def steps(self) -> np.ndarray:
        """[periods, 2] how far each joint moved in one."""
        return np.abs(np.diff(np.stack(self.path), axis=0))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    made = load(
        LoadOptions(
            real_time_chunking=True,
            views=(VIEW,),
            state_dim=2,
            action_dim=2,
            horizon=HORIZON,
            steps=5,
            prompt_buckets=(32,),
            prompt="wave",
            threads=1,
        )
    )
    yield made
    made.engine.close()


def observe(time_ns: int) -> Observation:
    """A scene that brightens slowly."""
    level = 100 + (time_ns - NOW) // (200 * MS)
    image = np.full((56, 56, 3), level % 256, np.uint8)
    return Observation({VIEW: image}, np.zeros(2, np.float32), stamp_ns=time_ns)


def drive(
    session: Session,
    delay_ns: int,
    expected_ns: int | None = None,
    **execution: Any,
) -> tuple[Machine, Arm, int]:
    """Some seconds of execution; the machine, its arm, and how many decisions were guided."""
    session.resume(replace(session.host_state(), decisions=0))
    parameters = MINIMAL | {
        "output.commands.topic": "commands",
        "execution.interpolation": "linear",
        "execution.replan_rows": 10,
        "execution.delay_s": (delay_ns if expected_ns is None else expected_ns) * 1e-9,
    }
    parameters |= {f"execution.{name.replace('__', '.')}": v for name, v in execution.items()}
    arm, facts, guided = Arm(), Facts(measured=np.zeros(2)), 0
    machine = Machine(build_config(parameters).execution, arm)
    machine.start()
    coming: tuple[int, Chunk] | None = None
    for now_ns in range(NOW, NOW + int(SECONDS * 1e9), PERIOD_NS):
        if coming is not None and now_ns >= coming[0]:
            machine.take(coming[1], now_ns, facts)
            coming = None
        machine.tick(now_ns, facts)
        first = machine.schedule.newest is None
        if coming is None and (first or machine.decision_due(now_ns)):
            stamp_ns = now_ns - OLD_NS
            continuation = machine.continuation(now_ns)
            previous = continuation and continuation.previous(stamp_ns, HORIZON)
            guided += previous is not None
            decision = session.decide(observe(stamp_ns), previous=previous)
            rows = decision.actions.astype(np.float64)
            coming = now_ns + delay_ns, Chunk(stamp_ns, DT_NS, rows, decision.index)
    assert machine.state == "running" and not machine.counters.safe
    assert machine.counters.chunks > 10
    return machine, arm, guided


def mean_jump(machine: Machine) -> float:
    """Of the action that was due when a chunk came."""
    return float(np.stack(machine.counters.jumps).mean())


@pytest.mark.parametrize("delay_ms", [30, 130, 280])
def test_the_arm_does_not_jump_where_chunks_meet(session: Session, delay_ms: int) -> None:
    """With delays that put the rows of all chunks on one grid."""
    runs = {name: drive(session, delay_ms * MS, strategy=name) for name in STRATEGIES}
    print({"delay_ms": delay_ms} | {name: mean_jump(run[0]) for name, run in runs.items()})
    plain, loose, none = runs[REPLACE]
    guided, tight, some = runs[REAL_TIME_CHUNKING]
    assert none == 0 and some >= guided.counters.chunks - 1, "all but the first"
    assert plain.counters.jump_max.min() > 0.2, "chunks of other noise differ: the test can fail"
    assert guided.counters.jump_max.max() < 1e-5, "what was kept is what goes on"
    assert tight.steps().max() < loose.steps().max()


def test_rows_at_other_times_than_those_before_are_met_less_exactly(session: Session) -> None:
    """Between its rows a chunk is straight, and other chunks have theirs there. The rows of random
    weights are as rough as noise, so this is the worst that it does.
    """
    jumps = {name: mean_jump(drive(session, 120 * MS, strategy=name)[0]) for name in STRATEGIES}
    print({"delay_ms": 120} | jumps)
    assert 1e-3 < jumps[REAL_TIME_CHUNKING] < 0.5 * jumps[REPLACE]


def test_a_decision_that_is_later_than_expected_jumps_less_than_an_unguided_one(
    session: Session,
) -> None:
    """Four rows late: the rows behind the kept ones still are near to those before."""
    late, soon = 280 * MS, 80 * MS
    jumps = {
        decay: mean_jump(
            drive(session, late, soon, strategy=REAL_TIME_CHUNKING, rtc__decay=decay)[0]
        )
        for decay in ("ones", "linear", "exponential", "zeros")
    }
    others = {
        name: mean_jump(drive(session, late, soon, strategy=name)[0])
        for name in STRATEGIES
        if name != REAL_TIME_CHUNKING
    }
    print({"delay_ms": 280, "expected_ms": 80} | others | jumps)
    assert list(jumps.values()) == sorted(jumps.values())
    assert jumps["ones"] < 1e-5 and jumps["exponential"] < 0.6 * others[REPLACE]


def test_what_is_scheduled_when_it_begins_counts(session: Session) -> None:
    """A continuation is a copy, and the safe action leaves nothing to continue."""
    machine, _, _ = drive(session, 30 * MS, strategy=REAL_TIME_CHUNKING)
    end_ns = NOW + int(SECONDS * 1e9)
    kept = machine.continuation(end_ns)
    assert kept is not None and kept.ready_ns == end_ns + 30 * MS
    before = kept.previous(end_ns, HORIZON)
    machine.forget()
    assert machine.continuation(end_ns) is None
    after = kept.previous(end_ns, HORIZON)
    assert before is not None and after is not None
    assert np.array_equal(before.rows, after.rows)
    assert kept.previous(end_ns + 10**11, HORIZON) is None, "the schedule does not reach so far"
    assert len(kept.previous(end_ns, 3).rows) == 3  # type: ignore[union-attr]
