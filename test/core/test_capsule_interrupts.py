"""An interrupt at any point of what changes sessions or capsules: no slot is lost, none has two
owners, and what is still there is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from flashrt_core.capsule.state import CapsuleImage, Place
from flashrt_core.drawing import noise_for
from flashrt_core.engine import Engine
from flashrt_core.errors import CapsuleStoreFullError, SessionError
from flashrt_core.session import Session
from flashrt_core.snapshots import meanwhile

from . import toy
from .cut import Cut

SEED, OLD, NEW, LATER = 7, 3, 5, 9
BOTH = {"a": OLD, "b": NEW}
Call = Callable[[Session, dict[str, CapsuleImage]], Any]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return toy.engine(capsule_slots=2, host_slots=1, max_sessions=3)


@pytest.fixture(scope="module")
def images(engine: Engine) -> dict[str, CapsuleImage]:
    """What came from elsewhere: capsules "a" and "b", made later than the one that is there."""
    main = begin(engine)
    found = {}
    for name in ("a", "b"):
        main.snapshot(name)
        found[name] = engine.store.export(name)
    return found


def begin(engine: Engine) -> Session:
    """A session that has saved "a" and seen something else since."""
    for name in list(engine.sessions):
        engine.drop_session(name)
    for info in engine.store.list():
        engine.store.drop(info.name)
    main = engine.create_session("main", seed=SEED, prompt="ab")
    main.decide(toy.see(OLD))
    main.snapshot("a")
    main.decide(toy.see(NEW))
    return main


def each_cut(
    engine: Engine, call: Callable[[Session], Any], first: Callable[[Session], Any] | None = None
) -> Iterator[tuple[Session, bool]]:
    """The main session behind every cut of ``call``, and at last behind all of it."""
    for number in count(1):
        main = begin(engine)
        if first is not None:
            first(main)
        with Cut(number) as cut:
            call(main)
        yield main, cut.done
        if cut.done:
            assert number > 10, "something was cut"
            return


def check_slots(engine: Engine) -> None:
    """Every slot of capsules and sessions is there once."""
    slots = engine.capsules.slots()
    assert len({id(slot) for _, slot, _ in slots}) == len(slots) == 3
    free = {id(slot) for _, slot, held in slots if held is None}
    assert {id(slot) for spare in engine.capsules._spare.values() for slot in spare} <= free
    seats = [*engine.parking.values(), *engine.free_parking]
    assert len({id(seat) for seat in seats}) == len(seats) == 3
    assert engine.parking.keys() == engine.sessions.keys()
    assert all(session.working is not None for session in engine.sessions.values())


def check_capsules(engine: Engine) -> None:
    """What every capsule holds is what it says."""
    for info in engine.store.list():
        branch = engine.fork("check", capsule=info.name)
        check_act(branch, info.stamp_ns, info.decision)
        engine.drop_session("check")


def check_act(session: Session, value: int, index: int) -> None:
    chunk = session.act()
    assert (chunk.stamp_ns, chunk.index) == (value, index)
    expected = toy.expected(value, "ab", noise_for(SEED, index, (2, 3)))
    assert np.array_equal(chunk.raw, expected.astype(np.float32))


def check_all(engine: Engine, main: Session) -> None:
    """Also once every slot that is free is written to."""
    check_slots(engine)
    check_capsules(engine)
    main.decide(toy.see(LATER))
    taken = [info.place for info in engine.store.list()]
    for index in range(2 - taken.count(Place.DEVICE)):
        main.snapshot(f"more {index}")
    if Place.HOST not in taken:
        engine.store.to_host(engine.store.list()[0].name)
        main.snapshot("another")
    with pytest.raises(CapsuleStoreFullError):
        main.snapshot("one too many")
    check_capsules(engine)
    check_slots(engine)


def stamps(engine: Engine) -> dict[str, int]:
    return {info.name: info.stamp_ns for info in engine.store.list()}


@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        (lambda main, _: main.snapshot("b"), {"a": OLD}, BOTH),
        (lambda main, _: main.engine.store.drop("a"), {"a": OLD}, {}),
        (lambda main, _: main.engine.store.to_host("a"), {"a": OLD}, {"a": OLD}),
        (lambda main, images: main.engine.store.adopt(images["b"]), {"a": OLD}, BOTH),
    ],
    ids=["snapshot", "drop", "to_host", "adopt"],
)
def test_a_capsule_is_as_before_or_as_afterwards(
    engine: Engine,
    images: dict[str, CapsuleImage],
    call: Call,
    before: dict[str, int],
    after: dict[str, int],
) -> None:
    found = []
    for main, done in each_cut(engine, lambda main: call(main, images)):
        found.append(stamps(engine))
        assert found[-1] == after if done else found[-1] in (before, after)
        check_all(engine, main)
    assert before in found


@pytest.mark.parametrize(
    "call",
    [
        lambda main, _: main.snapshot("a"),
        lambda main, images: main.engine.store.adopt(images["a"], replace=True),
    ],
    ids=["snapshot", "adopt"],
)
@pytest.mark.parametrize("place", Place)
def test_a_capsule_that_is_replaced_is_the_old_one_the_new_one_or_gone(
    engine: Engine, images: dict[str, CapsuleImage], call: Call, place: Place
) -> None:
    def first(main: Session) -> None:
        if place is Place.HOST:
            main.engine.store.to_host("a")

    found = []
    for main, done in each_cut(engine, lambda main: call(main, images), first):
        found.append(stamps(engine))
        assert not done or found[-1] == {"a": NEW}
        assert found[-1] in ({"a": OLD}, {}, {"a": NEW})
        check_all(engine, main)
    # In this order: it is there until the copy begins.
    gone = found.index({})
    assert gone > 3 and found[:gone] == [{"a": OLD}] * gone


def test_nothing_stands_between_the_end_of_a_capsule_and_the_copy_over_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, early = [], 0
    transfer = engine.capsules._start
    monkeypatch.setattr(engine.capsules, "_start", lambda plan: (begun.append(1), transfer(plan)))
    for _ in each_cut(engine, lambda main: (begun.clear(), main.snapshot("a"))):
        early += not begun and stamps(engine) != {"a": OLD}
    assert begun and early <= 1, "but the call itself"


@pytest.mark.parametrize(
    "call",
    [
        lambda main: main.engine.create_session("branch", seed=1, prompt="b"),
        lambda main: main.engine.fork("branch", capsule="a"),
        lambda main: main.engine.fork("branch", source="main"),
    ],
    ids=["create", "fork a capsule", "fork a session"],
)
def test_a_session_is_there_or_not(engine: Engine, call: Callable[[Session], Any]) -> None:
    found = set()
    for main, done in each_cut(engine, call):
        found.add(there := "branch" in engine.sessions)
        assert there or not done
        check_slots(engine)
        if there:
            engine.session("branch").set_prompt("ab")
            engine.session("branch").decide(toy.see(LATER))
            engine.drop_session("branch")
        for name in ("one", "two"):
            engine.create_session(name, seed=SEED, prompt="ab")
        engine.drop_session("two")
        check_all(engine, main)
    assert found == {False, True}


def test_a_fork_goes_on_as_its_source_would(engine: Engine) -> None:
    for main, _ in each_cut(engine, lambda main: main.engine.fork("branch", source="main")):
        for session in list(engine.sessions.values()):
            check_act(session, NEW, 2)
        assert main.decisions == 3


@pytest.mark.parametrize("resident", [False, True])
def test_a_dropped_session_is_gone_or_as_it_was(engine: Engine, resident: bool) -> None:
    def first(main: Session) -> None:
        branch = engine.fork("branch", capsule="a")
        if resident:
            engine.admit(branch)

    found = set()
    for main, done in each_cut(engine, lambda _: engine.drop_session("branch"), first):
        check_slots(engine)
        found.add(there := "branch" in engine.sessions)
        assert not (there and done)
        if there:
            check_act(engine.session("branch"), OLD, 1)
            branch = engine.session("branch")
            engine.drop_session("branch")
            with pytest.raises(SessionError, match="one that was dropped"):
                branch.act()
        check_act(main, NEW, 2)
        check_all(engine, main)
    assert found == {False, True}


@pytest.mark.parametrize("by_the_next", [False, True])
def test_a_rehearsal_leaves_nothing_for_long(engine: Engine, by_the_next: bool) -> None:
    found = set()
    for main, done in each_cut(engine, lambda main: meanwhile(engine, main)):
        check_slots(engine)
        found.add(len(engine.sessions))
        assert len(engine.sessions) == 1 or not done
        assert stamps(engine) == {"a": OLD}
        if by_the_next:
            meanwhile(engine, main)
            assert list(engine.sessions) == ["main"]
        # A host's own session of that name is nobody's rehearsal.
        own = engine.create_session("rehearsal", seed=SEED, prompt="ab")
        meanwhile(engine, main)
        assert engine.session("rehearsal") is own
        check_act(main, NEW, 2)
    assert found == {1, 2}
