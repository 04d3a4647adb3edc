"""Decisions that build on each other, in the node's decider: pictures, and what was executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_core.errors import CapsuleError, NumericsError
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from flashrt_ros.decider import Decider, Outlet
from flashrt_ros.episode import Episode
from flashrt_ros.execution.told import Told
from flashrt_ros.ingest import Gathered
from flashrt_ros.statistics import Statistics

pytestmark = pytest.mark.ros

MS = 1_000_000
DT = 20 * MS
OPTIONS = LoadOptions(
    policy="lingbot_va",
    preset="tiny",
    device="cpu",
    views=("view_0",),
    state_dim=0,
    action_dim=3,
    prompt="wave",
    threads=1,
    steps=1,
    precision="fp32",
    extra={"action_steps": 1},
)


def picture(stamp_ns: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(stamp_ns // MS).integers(0, 256, (32, 32, 3), dtype=np.uint8)


@dataclass
class Camera:
    """An ingest with one camera that has a picture every ``every_ns``."""

    every_ns: int = 5 * MS
    asked: list[int] = field(default_factory=list)
    cameras: tuple[Any, ...] = (SimpleNamespace(name="front"),)

    def gather(self, now_ns: int, not_before: Mapping[str, int] | None = None) -> Gathered:
        stamp = now_ns - now_ns % self.every_ns
        self.asked.append((not_before or {}).get("front", 0))
        return Gathered(Observation({"view_0": picture(stamp)}, None, stamp), stamp, stamp)


class Bench:
    """A decider on a clock that is set by hand."""

    def __init__(self, session: Session) -> None:
        self.now_ns, self.chunks = 1_000 * MS, []  # type: ignore[var-annotated]
        outlet = Outlet(lambda: True, lambda: self.now_ns, self.chunks.append, lambda _timing: None)
        config: Any = SimpleNamespace(
            policy="lingbot_va",
            action_names=("a", "b", "c"),
            action_kind="absolute",
            action_dt_s=0.02,
        )
        self.camera, self.statistics = Camera(), Statistics()
        self.decider = Decider(session, self.camera, config, outlet, self.statistics)  # type: ignore[arg-type]
        self.session = session

    @property
    def episode(self) -> Episode:
        assert self.decider.episode is not None
        return self.decider.episode

    def through(self, look: bool = True) -> None:
        """To the end of the chunk, looking whenever a picture is due."""
        end_ns = self.episode.row_ends_ns[-1]
        while look and (wanted_ns := self.episode.wanted_ns()) is not None:
            self.now_ns = -(-wanted_ns // self.camera.every_ns) * self.camera.every_ns
            if self.now_ns > end_ns:
                break
            self.decider.look()
        self.now_ns = end_ns


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
    first = bench.decider.decide()
    bench.session.snapshot("mark")
    bench.now_ns = bench.episode.row_ends_ns[0]
    bench.decider.look()
    with pytest.raises(CapsuleError, match="at the end of a chunk"):
        bench.session.snapshot("late")
    bench.through()
    expected = bench.decider.decide().data
    bench.through()
    bench.session.restore("mark")
    bench.decider.forget_ages("main")
    again = bench.decider.decide()  # the robot gets the capsule's chunk first
    assert (again.sequence, again.data) == (first.sequence, first.data)
    # From here on all is as it was, were the camera to see the same.
    bench.through()
    assert bench.decider.decide().data != expected


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


def test_what_was_told_counts_as_executed() -> None:
    now = [0]
    sink = SimpleNamespace(
        command=lambda _v: None, trajectory=lambda *_a: None, stop=lambda *_a: None
    )
    told = Told(sink, lambda: now[0])
    assert told.at(5) is None
    for moment in (10, 20, 30):
        now[0] = moment
        told.command(np.array([float(moment)]))
    assert [told.at(t) for t in (20, 21, 99)] == [[10.0], [20.0], [30.0]]
    told.clear()
    told.trajectory(100, [(200, np.array([1.0])), (300, np.array([2.0]))])
    assert told.at(201) == [1.0] and told.at(251) == [1.5] and told.at(400) == [2.0]
