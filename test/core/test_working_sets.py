"""Sessions on several sets of buffers: who has which, what switches cost, and equal bits."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_core.devices.base import Program
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.engine import describe
from flashrt_core.errors import DeviceError, OptionError
from flashrt_core.load import LoadOptions, load
from flashrt_core.session import noise_for

from . import toy


def raw(value: int, prompt: str, seed: int, index: int) -> np.ndarray:
    return toy.expected(value, prompt, noise_for(seed, index, (2, 3))).astype(np.float32)


@pytest.mark.parametrize(("sets", "switches"), [(1, 11), (2, 7), (3, 0)])
def test_switches_are_counted(sets: int, switches: int) -> None:
    engine = toy.engine(working_sets=sets)
    prompts = ("ab", "cd", "efg")
    for seed, prompt in enumerate(prompts):
        engine.create_session(prompt, seed=seed, prompt=prompt)
    for index in range(4):
        for seed, prompt in enumerate(prompts):
            decision = engine.session(prompt).decide(toy.see(index))
            assert np.array_equal(decision.raw, raw(index, prompt, seed, index))
    said = describe(engine)
    assert said["session_switches"] == switches and said["working_sets"] == sets
    assert (said["session_bytes_moved"] == 0) == (sets == 3)


def test_every_program_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never ran makes the others slower on some devices."""
    rehearsed: list[Program] = []
    monkeypatch.setattr(CpuDevice, "rehearse", lambda _, programs: rehearsed.extend(programs))
    engine = toy.engine(working_sets=2)
    captured = [program for each in engine.sets for program in each.programs.values()]
    assert len(captured) == 2 * len(engine.sets[0].programs) > 2
    assert list(map(id, rehearsed)) == list(map(id, captured))


def test_each_switch_moves_what_a_capsule_holds() -> None:
    engine = toy.engine()
    for name in ("one", "two"):
        engine.create_session(name, prompt="ab").decide(toy.see(1))
    size = engine.session("two").snapshot("mark").nbytes
    before = engine.traffic.nbytes
    engine.session("one").act()
    assert engine.traffic.nbytes == before + 2 * size  # out and in


def test_a_restore_behind_another_session_brings_the_capsule_alone() -> None:
    """What is parked of the session is left where it is: the capsule takes its place."""
    engine = toy.engine()
    one, two = (engine.create_session(name, prompt="ab") for name in ("one", "two"))
    one.decide(toy.see(1))
    size = one.snapshot("mark").nbytes
    expected = one.act().raw
    one.decide(toy.see(2))
    two.decide(toy.see(3))
    before = engine.traffic.nbytes
    one.restore("mark")
    assert (engine.traffic.nbytes, engine.traffic.switches) == (before + size, 2)  # two, out
    assert np.array_equal(one.act().raw, expected)
    two.act()
    assert np.array_equal(one.act().raw, raw(1, "ab", 0, 2)), "and it is parked as any state"


@pytest.mark.parametrize("broken", ["save", "load"])
@pytest.mark.parametrize("what", ["act", "restore"])
def test_a_switch_that_fails_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, broken: str, what: str
) -> None:
    engine = toy.engine()
    one, two = (engine.create_session(name, prompt="ab") for name in ("one", "two"))
    for value, session in enumerate((one, two), 1):
        session.decide(toy.see(value))
        session.snapshot(session.name)

    def fail(*args: object) -> None:
        raise DeviceError("copy", got="a fault")

    with monkeypatch.context() as patched:
        patched.setattr(engine.sets[0].copier, broken, fail)
        with pytest.raises(DeviceError, match="a fault"):
            one.act() if what == "act" else one.restore("one")
    # The copy out failed: nobody went. The copy in failed: the buffers are nobody's.
    assert engine.sets[0].resident is (two if broken == "save" else None)
    for value, session in enumerate((one, two), 1):
        assert np.array_equal(session.act().raw, raw(value, "ab", 0, 1))
    one.restore("one")
    assert np.array_equal(one.act().raw, raw(1, "ab", 0, 1))


def test_static_buffers_are_shared_and_others_are_not() -> None:
    engine = toy.engine(working_sets=2)
    first, second = (working.buffers for working in engine.sets)
    for name in first:
        assert (first[name] is second[name]) == (name == "weights")
    one = toy.engine()
    extra = sum(each.nbytes for name, each in one.buffers.items() if name != "weights")
    assert engine.buffer_bytes == one.buffer_bytes + extra


def test_a_session_that_goes_makes_room_in_its_set() -> None:
    engine = toy.engine(working_sets=2)
    one, two = (engine.create_session(name, prompt="ab") for name in ("one", "two"))
    assert engine.set_of(one) is not engine.set_of(two)
    left = engine.set_of(one)
    engine.drop_session("one")
    assert engine.set_of(engine.create_session("three", prompt="ab")) is left


def test_capsules_and_forks_go_between_sets() -> None:
    engine = toy.engine(working_sets=3)
    main = engine.create_session("main", seed=7, prompt="ab")
    main.decide(toy.see(5))
    main.snapshot("mark")
    expected = main.act().raw
    for branch in (engine.fork("saved", capsule="mark"), engine.fork("live", source="main")):
        assert engine.set_of(branch) is not engine.set_of(main)
    assert np.array_equal(engine.session("saved").act().raw, expected)
    assert np.array_equal(engine.session("live").act().raw, raw(5, "ab", 7, 2))
    assert engine.traffic.switches == 0


def test_the_option() -> None:
    session = load(LoadOptions(working_sets=2, max_sessions=2))
    try:
        other = session.engine.create_session("other", prompt="lift")
        assert session.buffers["kv"].data_ptr() != other.buffers["kv"].data_ptr()
    finally:
        session.engine.close()
    with pytest.raises(OptionError, match="working_sets"):
        load(LoadOptions(working_sets=0))
