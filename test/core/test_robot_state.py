"""Actions are relative to the state that their context was made with, and to no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.contract import Role, ShapeKey
from flashrt_core.errors import InputError, StaleStateError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from . import toy
from .capsules import taken_apart
from .test_results import WAYS

Array = np.ndarray[Any, Any]


class Relative(toy.ToyProcessor):
    """Every action is added to the state."""

    def decode(self, actions: Array, state: Array | None) -> Array:
        if state is None:
            raise InputError("state", expected="3 numbers", got="none")
        return super().decode(actions, state) + state[:2]


def see(value: int) -> Observation:
    """A picture, state and stamps, all of one number."""
    state = np.full(3, value, np.float32)
    images = toy.see(value).images
    return Observation(images, state, stamp_ns=value, stamps_ns={"joints": value})


def image(value: int) -> dict[str, Array]:
    return {"image": toy.see(value).images[toy.VIEW]}


def check(session: Session, decide: Callable[[], Any], value: int) -> None:
    """A decision is all of one observation, and so is what the session has of it."""
    index = session.decisions
    found = decide()
    noise = toy.noise_of(7, index)
    raw = toy.expected(value, session.prompt, noise).astype(np.float32)
    assert np.allclose(found.raw, raw)
    assert np.array_equal(found.actions, found.raw[:, :2] + np.float32(value))
    assert (found.stamp_ns, found.stamps_ns) == (value, {"joints": value})
    host = session.host_state()
    assert host.robot_state is not None and (host.robot_state == value).all()
    assert (host.stamp_ns, host.stamps_ns) == (value, {"joints": value})


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(toy, "ToyProcessor", Relative)
    session = toy.engine(host_slots=1).create_session("main", seed=7, prompt="ab")
    session.decide(see(3))
    return session


class TestBehindANewerObservation:
    def test_the_retained_context_has_its_own(self, main: Session) -> None:
        main.observe(see(9))
        check(main, lambda: main.act(allow_stale=True), 3)
        check(main, lambda: main.act(allow_stale=True), 3)
        check(main, main.decide, 9)
        check(main, main.act, 9)

    def test_a_context_made_alone_has_the_newer(self, main: Session) -> None:
        main.observe(see(9))
        main.run("context")
        check(main, main.act, 9)

    @pytest.mark.parametrize("way", WAYS)
    def test_wherever_it_goes(
        self, main: Session, way: Callable[[Session, Path], Session], tmp_path: Path
    ) -> None:
        main.observe(see(9))
        there = way(main, tmp_path)
        with pytest.raises(StaleStateError):
            there.act()
        check(there, lambda: there.act(allow_stale=True), 3)
        check(there, lambda: there.decide(see(5)), 5)

    def test_a_file_holds_that_of_the_context(self, main: Session, tmp_path: Path) -> None:
        main.observe(see(9))
        main.snapshot("mark")
        main.engine.store.write_file("mark", tmp_path / "file")
        document, payload = taken_apart((tmp_path / "file").read_bytes())
        (row,) = [row for row in document["arrays"] if row["role"] == "robot_state"]
        kept = payload[row["offset"] : row["offset"] + row["nbytes"]]
        assert kept == np.full(3, 3, np.float32).tobytes()

    def test_a_new_prompt_leaves_it(self, main: Session) -> None:
        main.set_prompt("b")
        found = main.act(allow_stale=True)
        assert np.array_equal(found.actions, found.raw[:, :2] + np.float32(3))


class TestWrittenWindows:
    def unknown(self, main: Session) -> None:
        """A decision on them is refused, made though it is, and counts for nothing."""
        index = main.decisions
        for decide in (main.decide, main.act):
            with pytest.raises(InputError, match="state: expected 3 numbers, got none"):
                decide()
        assert main.decisions == index
        host = main.host_state()
        assert host.robot_state is None
        assert (host.stamp_ns, dict(host.stamps_ns)) == (0, {})

    def test_nothing_is_known_of_new_ones(self, main: Session) -> None:
        main.write(image(9))
        self.unknown(main)
        expected = toy.expected(9, "ab", toy.noise_of(7, main.decisions))
        assert np.allclose(main.read("actions"), expected), "the raw ones are there"
        check(main, lambda: main.decide(see(5)), 5)

    def test_nor_of_the_same_picture_again(self, main: Session) -> None:
        main.write(image(3))
        self.unknown(main)

    def test_nor_of_new_tokens_which_may_spell_a_state(self, main: Session) -> None:
        main.write({"tokens": np.array([99, 98, 0, 0], np.int32)})
        self.unknown(main)

    def test_nor_where_an_observation_is_mixed_with_them(self, main: Session) -> None:
        main.observe(see(9))
        main.write(image(9))
        self.unknown(main)

    def test_noise_and_staged_tokens_leave_what_is_known(self, main: Session) -> None:
        tokens = np.array([97, 98, 0, 0], np.int32)
        for values in ({"noise": np.zeros((2, 3), np.float32)}, {"tokens": tokens}):
            main.write(values)
            check(main, main.act, 3)
            check(main, main.decide, 3)
            main.observe(see(9))
            main.write(values)
            check(main, main.decide, 9)
            main.decide(see(3))

    @pytest.mark.parametrize("way", WAYS)
    def test_the_retained_context_keeps_its_own(
        self, main: Session, way: Callable[[Session, Path], Session], tmp_path: Path
    ) -> None:
        main.write(image(9))
        check(main, lambda: main.act(allow_stale=True), 3)
        there = way(main, tmp_path)
        check(there, lambda: there.act(allow_stale=True), 3)

    @pytest.mark.parametrize("way", WAYS)
    def test_what_is_unknown_stays_so(
        self, main: Session, way: Callable[[Session, Path], Session], tmp_path: Path
    ) -> None:
        main.write(image(9))
        main.run("context")
        there = way(main, tmp_path)
        with pytest.raises(InputError, match="state: expected 3 numbers, got none"):
            there.act()
        assert there.host_state().stamp_ns == 0


def test_absolute_actions_need_no_state() -> None:
    main = toy.engine().create_session("main", seed=7, prompt="ab")
    main.decide(see(3))
    main.write(image(9))
    found = main.decide()
    assert np.allclose(found.raw, toy.expected(9, "ab", toy.noise_of(7, 1)))
    assert (found.stamp_ns, found.stamps_ns) == (0, {})


@pytest.mark.parametrize("rows", [np.zeros((2, 2)), np.full((1, 1), np.nan), []])
def test_rows_are_executed_with_an_observation(main: Session, rows: Any) -> None:
    with pytest.raises(InputError, match="executed rows: expected none without an observation"):
        main.decide(executed=rows)
    assert main.decisions == 1
    check(main, main.decide, 3)


class TestBehindAnotherPrompt:
    """What the context was made with is known before something makes it stale."""

    @pytest.mark.parametrize("looks", [False, True])
    def test_a_context_made_alone_keeps_its_own(self, main: Session, looks: bool) -> None:
        main.observe(see(9))
        main.run("context")
        if looks:
            main.host_state()
        main.set_prompt("b")
        found = main.act(allow_stale=True)
        assert np.array_equal(found.actions, found.raw[:, :2] + np.float32(9))
        assert (found.stamp_ns, found.stamps_ns) == (9, {"joints": 9})

    def test_written_windows_have_none(self, main: Session) -> None:
        main.write(image(9))
        main.run("context")
        main.set_prompt("b")
        with pytest.raises(InputError, match="state: expected 3 numbers, got none"):
            main.act(allow_stale=True)
        assert (main.host_state().stamp_ns, main.host_state().stamps_ns) == (0, {})

    def test_nor_behind_a_decision_that_was_refused(self, main: Session) -> None:
        main.write(image(9))
        with pytest.raises(InputError, match="got none"):
            main.decide()
        main.set_prompt("b")
        with pytest.raises(InputError, match="got none"):
            main.act(allow_stale=True)

    def test_a_context_of_old_and_new_is_of_no_single_observation(self, main: Session) -> None:
        main.observe(see(9))
        main.set_prompt("b")
        main.run("context", allow_stale=True)
        with pytest.raises(InputError, match="got none"):
            main.act(allow_stale=True)
        assert (main.host_state().stamp_ns, main.host_state().stamps_ns) == (0, {})
        main.observe(see(5))
        check(main, main.decide, 5)


def alone(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session of the toy as one stage, which keeps nothing for another."""
    plain = toy.contract()
    prompt, _, action = plain.stages
    reads = ("image", "embedding", *action.reads)
    whole = replace(action, reads=reads, writes=("actions", "x", "kv"), requires=("prompt",))
    regions = {key: found[1:] for key, found in plain.regions.items()}
    buffers = tuple(
        replace(spec, role=Role.SCRATCH) if spec.name == "kv" else spec for spec in plain.buffers
    )
    spec = toy.changed(plain, stages=(prompt, whole), regions=regions, buffers=buffers)
    monkeypatch.setattr(toy, "contract", lambda: spec)
    monkeypatch.setattr(toy, "ToyProcessor", Relative)

    def body(stage: str, shape: ShapeKey) -> Any:
        def run(lane: Any, b: Any) -> None:
            for part in ("prompt",) if stage == "prompt" else ("context", "action"):
                toy.body(part, shape)(lane, b)

        return run

    session = toy.engine(bodies=body).create_session("main", seed=7, prompt="ab")
    session.decide(see(3))
    return session


class TestOneStage:
    """Then what it decides on is what it reads itself."""

    def test_of_the_newest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        main = alone(monkeypatch)
        main.observe(see(9))
        check(main, main.act, 9)

    def test_of_old_and_new(self, monkeypatch: pytest.MonkeyPatch) -> None:
        main = alone(monkeypatch)
        main.observe(see(9))
        main.set_prompt("b")
        with pytest.raises(InputError, match="got none"):
            main.act(allow_stale=True)
        assert (main.host_state().stamp_ns, main.host_state().stamps_ns) == (0, {})
        main.observe(see(5))
        check(main, main.decide, 5)


def test_an_interrupt_behind_a_stage_leaves_no_other_state(
    main: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    main.observe(see(9))
    main.set_prompt("b")
    replay = main.engine.replay

    def interrupted(*args: Any, **options: Any) -> None:
        replay(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(main.engine, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main.run("context", allow_stale=True)
    monkeypatch.undo()
    with pytest.raises(InputError, match="got none"):
        main.act(allow_stale=True)
