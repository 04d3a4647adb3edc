"""What must not go out: a restored chunk that is outdated, and what runs while the clock jumps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_core.errors import StaleStateError
from flashrt_core.load import load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from flashrt_ros.errors import ClockJumpError, StaleInputError
from flashrt_ros.stamps import to_ns

from .episode_bench import MS, OPTIONS, Bench, picture

pytestmark = pytest.mark.ros


@pytest.fixture
def bench() -> Iterator[Bench]:
    session = load(OPTIONS)
    yield Bench(session)
    session.engine.close()


def restored(bench: Bench, session: str = "main") -> Any:
    """The chunk of a capsule of 0.24 s ago that was brought back into a session."""
    bench.decider.decide()
    bench.through()
    kept = bench.decider.decide()
    bench.session.snapshot("mark")
    bench.through()
    bench.decider.decide()
    if session == "main":
        bench.session.restore("mark")
    else:
        bench.session.engine.fork(session, capsule="mark")
    bench.decider.forget_chunk(session)
    bench.chunks.clear()
    return kept


@pytest.mark.parametrize("reuse", [False, True])
def test_a_restored_chunk_goes_out_while_its_inputs_are_current(bench: Bench, reuse: bool) -> None:
    kept = restored(bench)
    bench.now_ns = to_ns(kept.header.stamp) + 1_200 * MS
    bench.camera.dead = True
    again = bench.decider.decide(reuse_context=reuse)
    assert (again.sequence, again.data) == (kept.sequence, kept.data)
    assert bench.chunks == [again] and to_ns(again.observation_age) == 1_200 * MS
    assert "dropped_chunks" not in bench.statistics.counts()


def test_a_restored_chunk_that_is_too_old_is_dropped(bench: Bench) -> None:
    kept = restored(bench)
    bench.now_ns, bench.camera.dead = to_ns(kept.header.stamp) + 1_200 * MS + 1, True
    for _ in range(2):
        with pytest.raises(StaleInputError, match=r"at most 1\.200 s, got one of 1\.200 s"):
            bench.decider.decide(reuse_context=True)
    with pytest.raises(StaleInputError, match="'front': expected a picture"):
        bench.decider.decide()
    assert bench.chunks == [] and bench.session.turn == 0
    bench.camera.dead = False
    new = bench.decider.decide()
    assert (new.sequence, new.horizon) == (kept.sequence + 1, 4), "an episode begins"
    assert bench.chunks == [new] and to_ns(new.observation_age) < 5 * MS
    assert bench.statistics.counts()["dropped_chunks"] == 1


@pytest.mark.parametrize("session", ["main", "fork"])
@pytest.mark.parametrize("before", [True, False])
def test_a_chunk_of_another_prompt_is_dropped(bench: Bench, session: str, before: bool) -> None:
    kept = restored(bench, session)
    own = bench.session.engine.session(session)
    own.set_prompt("put everything down")
    if before:  # what is stale stays so in a capsule
        own.snapshot("other")
        own.restore("other")
    with pytest.raises(StaleStateError, match="before the prompt was changed"):
        bench.decider.decide(session, reuse_context=True)
    new = bench.decider.decide(session)
    reference = load(replace(OPTIONS, prompt="put everything down"))
    reference.resume(replace(reference.host_state(), decisions=kept.sequence + 1))
    wanted = reference.decide(Observation({"view_0": picture(bench.now_ns)}))
    assert np.array_equal(np.asarray(new.data, np.float32), wanted.actions.flatten())
    assert (new.sequence, new.horizon) == (kept.sequence + 1, 4)
    assert len(bench.chunks) == (session == "main")
    reference.engine.close()


def test_a_fork_answers_with_its_chunk_however_old(bench: Bench) -> None:
    kept = restored(bench, "fork")
    bench.now_ns += 3_600_000 * MS
    assert bench.decider.decide("fork").data == kept.data and bench.chunks == []


@pytest.mark.parametrize("session", ["main", "fork"])
def test_what_runs_while_the_clock_jumps_does_not_go_out(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.decider.decide()
    bench.session.engine.fork("fork", source="main")
    bench.decider.forked("fork", "main")
    bench.through()
    decide, era = Session.decide, bench.decider.eras.now

    def jumping(self: Session, *args: Any, **kwargs: Any) -> Any:
        decision = decide(self, *args, **kwargs)
        bench.decider.eras.end()
        return decision

    bench.chunks.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Session, "decide", jumping)
        with pytest.raises(ClockJumpError, match="jumped meanwhile"):
            bench.decider.decide(session)
    with pytest.raises(ClockJumpError):  # one that waited for its turn since then
        bench.decider.decide(session, era=era)
    assert bench.chunks == []
    assert bench.decider.decide(session).horizon == 4, "an episode begins"
