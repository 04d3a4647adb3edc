"""Decisions that build on each other, in the node's decider: pictures, and what was executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_core.errors import CapsuleError, NumericsError
from flashrt_core.load import load
from flashrt_core.policies.base import Observation
from flashrt_ros.errors import StaleInputError
from flashrt_ros.execution.chunk import Chunk
from flashrt_ros.execution.machine import RUNNING, SAFE, Facts, Machine
from flashrt_ros.execution.told import Told
from flashrt_ros.parameters import build_config
from flashrt_ros.stamps import to_ns

from .episode_bench import DT, MS, OPTIONS, Bench, picture

pytestmark = pytest.mark.ros


@pytest.fixture
def bench() -> Iterator[Bench]:
    session = load(OPTIONS)
    yield Bench(session)
    session.engine.close()


def test_chunks_follow_each_other_and_show_the_policy_what_happened(bench: Bench) -> None:
    own, at = load(OPTIONS), [bench.now_ns]
    expected = [own.decide(Observation({"view_0": picture(bench.now_ns)}))]
    done = np.full((8, 3), 0.5, np.float32)
    for turn in range(4):
        executed = done[: (4, 8)[turn > 1]] if turn in (1, 3) else None
        chunk = bench.decider.decide(executed=executed)
        assert chunk.horizon == (8 if turn else 4)
        assert np.array_equal(np.asarray(chunk.data, np.float32), expected[turn].actions.flatten())
        # The robot starts it when it is there, and executes all of it.
        stamp = chunk.first_action_stamp
        assert stamp.sec * 10**9 + stamp.nanosec == bench.now_ns
        assert not bench.episode.over(bench.now_ns)
        start_ns = bench.now_ns
        bench.through()
        assert bench.now_ns == start_ns + chunk.horizon * DT and bench.episode.over(bench.now_ns)
        pictures = [start_ns + k * DT for k in range(1, chunk.horizon + 1)]
        for stamp_ns in pictures[:-1]:
            own.record({"view_0": picture(stamp_ns)})
        executed = done[: chunk.horizon] if turn + 1 in (1, 3) else None
        seen = Observation({"view_0": picture(pictures[-1])})
        expected.append(own.decide(seen, executed=executed))
        at.append(bench.now_ns)
    assert "late_pictures" not in bench.statistics.counts()
    own.engine.close()


def test_a_camera_that_stalls_is_counted_and_does_not_stop_the_robot(bench: Bench) -> None:
    bench.decider.decide()
    bench.through(look=False)
    bench.decider.decide()
    assert bench.statistics.counts()["late_pictures"] == 3
    bench.camera.every_ns = 3 * DT  # slower than pictures are due: one serves for several
    bench.through()
    bench.decider.decide()
    assert len(bench.chunks) == 3


def test_capsules_are_of_chunks_ends(bench: Bench) -> None:
    bench.camera.late_ns = 7 * MS
    first = bench.decider.decide()
    bench.session.snapshot("mark")
    bench.now_ns = bench.now_ns + DT
    bench.decider.look()
    with pytest.raises(CapsuleError, match="at the end of a chunk"):
        bench.session.snapshot("late")
    bench.through()
    expected = bench.decider.decide().data
    bench.through()
    bench.session.restore("mark")
    bench.decider.forget_chunk("main")
    with pytest.raises(StaleInputError, match=r"stamped 0\.007 s before it; decide without not_b"):
        bench.decider.decide(not_before={"front": 1_000 * MS})
    again = bench.decider.decide()  # the robot gets the capsule's chunk first
    assert to_ns(first.observation_age) == 7 * MS
    assert to_ns(again.observation_age) == bench.now_ns - 993 * MS, "as old as it is"
    assert (again.sequence, again.data) == (first.sequence, first.data)
    # From here on all is as it was, were the camera to see the same.
    bench.through()
    assert bench.decider.decide().data != expected


def test_of_unknown_age_is_as_old_as_can_be(bench: Bench) -> None:
    bench.camera.tells = False
    assert to_ns(bench.decider.decide().observation_age) == bench.now_ns
    bench.session.snapshot("mark")
    bench.session.restore("mark")
    bench.decider.forget_chunk("main")
    with pytest.raises(StaleInputError, match="got one of unknown age"):
        bench.decider.decide(reuse_context=True)
    new = bench.decider.decide()
    assert (new.sequence, new.horizon) == (1, 4), "an episode, as the capsule's chunk is dropped"


def test_a_restart_begins_an_episode(bench: Bench) -> None:
    first = bench.decider.decide()
    bench.through()
    bench.decider.decide()
    bench.decider.restart()
    bench.now_ns = 1_000 * MS
    assert bench.episode.over(bench.now_ns) and not bench.episode.under_way
    assert bench.decider.decide().data == first.data


def test_a_failure_begins_an_episode(bench: Bench) -> None:
    bench.decider.decide()
    bench.through()
    weight = bench.session.buffers["net.action_out_bias"]
    before = weight.clone()
    weight.fill_(float("nan"))
    with pytest.raises(NumericsError):
        bench.decider.decide()
    weight.copy_(before)
    assert bench.decider.decide().horizon == 4 and bench.session.turn == 1


def test_where_the_network_cannot_say_what_was_done_an_episode_begins(bench: Bench) -> None:
    bench.decider.decide()
    bench.through()
    assert bench.decider.decide(executed=np.full((4, 3), 1e30)).horizon == 4
    assert bench.statistics.counts()["beyond_network"] == 1


def test_a_chunk_that_is_late_is_found_so_once(bench: Bench) -> None:
    assert not bench.episode.overdue(bench.now_ns, 100), "none was begun"
    bench.decider.decide()
    end_ns = bench.episode.end_ns
    found = [bench.episode.overdue(end_ns + late_ns, 100) for late_ns in (-1, 0, 99, 100, 101)]
    assert found == [False, False, False, True, False]


def test_a_fork_learns_what_was_done_though_it_decides_later(bench: Bench) -> None:
    bench.decider.decide()
    bench.session.engine.fork("fork", source="main")
    bench.decider.forked("fork", "main")
    bench.through()
    done = np.full((4, 3), 0.5)
    main = bench.decider.decide(executed=done)
    late = bench.decider.decide("fork")  # on the same pictures, at the same moment
    assert late.data == main.data and late.session == "fork"
    assert len(bench.chunks) == 2, "a fork's chunk is not published"


@pytest.mark.parametrize("interpolation", ["linear", "hold"])
@pytest.mark.parametrize("period_ms", [1, 7, 50])
def test_a_chunk_counts_as_decided_whatever_the_control_rate(
    interpolation: str, period_ms: int
) -> None:
    control = Execution(interpolation, period_ms)
    rows = np.random.default_rng(0).normal(size=(400, 2))
    assert np.array_equal(control.execute(rows), rows)  # 8 s: 8000 commands at 1000 Hz
    assert np.array_equal(control.execute(-rows[:7]), -rows[:7])


@pytest.mark.parametrize("interpolation", ["linear", "hold"])
def test_a_clamped_chunk_counts_as_clamped(interpolation: str) -> None:
    rows = np.array([[0.1, 0.2], [0.9, 0.3], [0.3, -0.9], [0.4, 0.4]])
    limits = {"limits.lower": [-0.5, -0.5], "limits.upper": [0.5, 0.5]}
    for more in ({}, {"output.trajectory.topic": "t", "output.commands.topic": ""}):
        control = Execution(interpolation, 5, limits | more)
        assert np.array_equal(control.execute(rows), np.clip(rows, -0.5, 0.5))
    # A step limit: 0.01 in 5 ms, 0.04 in a row, from where the joints are; then it has come to it.
    control = Execution(interpolation, 5, {"limits.max_step": [0.01, 0.01]})
    done = control.execute(np.full((4, 2), 0.1))
    first = np.array(
        [0.01, 0.05, 0.09, 0.1] if interpolation == "linear" else [0.04, 0.08, 0.1, 0.1]
    )
    assert np.allclose(done, first[:, None], atol=1e-12)


@pytest.mark.parametrize("action", ["hold", "stop"])
def test_where_the_safe_action_was_taken_counts_as_executed(action: str) -> None:
    control = Execution("linear", 5, {"safe.action": action})
    rows = np.arange(16.0).reshape(8, 2)
    done = control.execute(rows, fails_at_ms=50)  # half-way from row 2 to row 3
    assert np.array_equal(done[:3], rows[:3])
    held = rows[2] + (rows[3] - rows[2]) * (0.5 if action == "hold" else 0.25)
    assert np.abs(done[3:] - held).max() < 0.51 and len(np.unique(done[3:], axis=0)) == 1


class Execution:
    """A machine, and what it tells, on a clock that is set by hand."""

    def __init__(
        self, interpolation: str, period_ms: int, parameters: Mapping[str, Any] | None = None
    ) -> None:
        config = build_config(
            {
                "cameras": ["front"],
                "camera.front.topic": "image",
                "joints.names": ["a", "b"],
                "execution.interpolation": interpolation,
                "output.commands.topic": "commands",
                "output.rate_hz": 1000.0 / period_ms,
                **(parameters or {}),
            }
        ).execution
        nothing: Any = lambda *_: None  # noqa: E731
        sink = SimpleNamespace(command=nothing, trajectory=nothing, stop=nothing)
        self.told, self.period_ns, self.now_ns = Told(sink, config), period_ms * MS, 1_000 * MS
        self.machine = Machine(config, self.told)
        self.machine.gap_ns = 100 * MS
        self.machine.start()

    def execute(self, rows: np.ndarray, fails_at_ms: int | None = None) -> np.ndarray:
        """What was done with a chunk of 20 ms rows, at its end."""
        chunk, start_ns = Chunk(self.now_ns, DT, rows), self.now_ns
        self.told.begin(chunk)
        facts = Facts(measured=np.zeros(2))
        self.machine.take(chunk, self.now_ns, facts)
        while self.now_ns < chunk.end_ns:
            if fails_at_ms is not None and self.now_ns - start_ns >= fails_at_ms * MS:
                self.machine.fail("failed", "by design")
            self.machine.tick(self.now_ns, facts)
            self.now_ns += self.period_ns
        self.machine.tick(self.now_ns, facts)
        assert self.machine.state == (RUNNING if fails_at_ms is None else SAFE)
        done = self.told.executed(chunk.end_ns, self.machine.state == SAFE)
        assert done is not None and self.told.executed(chunk.end_ns + 1, False) is None
        return done
