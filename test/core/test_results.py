"""What a session gives is its own, of its newest inputs, and never younger than it was made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.errors import InputError, NumericsError, SessionError, StaleStateError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from flashrt_core.snapshots import forget_stamps

from . import toy
from .capsules import refused, signed, taken_apart

OLD = {"front": 1_000, "joints": 2_000}
NEW = {"front": 5_000, "joints": 4_000}


def see(stamps: dict[str, int], value: int = 3) -> Observation:
    state = np.full(3, value, np.float32)
    images = toy.see(value).images
    return Observation(images, state, stamp_ns=max(stamps.values()), stamps_ns=stamps)


@pytest.fixture
def main() -> Session:
    return toy.engine(host_slots=1).create_session("main", seed=7, prompt="ab")


class TestReading:
    def none_of_it(self, session: Session, said: str = "none since the start") -> None:
        for stale in (False, True):
            with pytest.raises(StaleStateError, match=said):
                session.read("actions", allow_stale=stale)

    def test_before_a_decision(self, main: Session) -> None:
        self.none_of_it(main)
        main.observe(see(OLD))
        self.none_of_it(main)
        main.run("context")
        self.none_of_it(main)

    def test_what_it_decided(self, main: Session) -> None:
        for make in (lambda: main.decide(see(OLD)), main.act, lambda: main.decide(split=True)):
            assert np.array_equal(make().raw, main.read("actions"))

    def test_behind_newer_inputs_only_when_asked(self, main: Session) -> None:
        raw = main.decide(see(OLD)).raw
        main.observe(see(NEW, 4))
        with pytest.raises(StaleStateError, match=r"before the last write of \['image'\]"):
            main.read("actions")
        assert np.array_equal(main.read("actions", allow_stale=True), raw)
        main.decide()
        main.set_prompt("b")
        with pytest.raises(StaleStateError, match=r"before the last write of \['tokens'\]"):
            main.read("actions")

    def test_another_sessions(self, main: Session) -> None:
        other = main.engine.create_session("other", prompt="b")
        main.decide(see(OLD))
        raw = other.decide(see(NEW, 4)).raw
        self.none_of_it(main)
        assert np.array_equal(other.read("actions"), raw), "and it has not lost its own by that"
        main.act()
        self.none_of_it(other)

    def test_behind_a_restore_and_in_a_fork(self, main: Session) -> None:
        main.decide(see(OLD))
        main.snapshot("mark")
        main.decide(see(NEW, 4))
        main.restore("mark")
        self.none_of_it(main)
        for fork in (
            main.engine.fork("live", source="main"),
            main.engine.fork("saved", capsule="mark"),
        ):
            self.none_of_it(fork)
            assert np.array_equal(fork.act().raw, fork.read("actions"))

    def test_of_another_shape(self, main: Session) -> None:
        main.decide(see(OLD))
        main.select_shape(toy.LARGE)
        self.none_of_it(main)

    def test_numbers_that_are_none(self, main: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        main.decide(see(OLD))
        with monkeypatch.context() as patch, pytest.raises(NumericsError):
            patch.setattr(
                main.engine.device, "read", lambda window: np.full((2, 3), np.nan, np.float32)
            )
            main.act()
        self.none_of_it(main)

    def test_a_failure(self, main: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        main.decide(see(OLD))

        def fails(*args: Any, **options: Any) -> None:
            raise OSError

        with monkeypatch.context() as patch, pytest.raises(Exception, match="replay of"):
            patch.setattr(main.engine.device, "replay", fails)
            main.act()
        self.none_of_it(main)

    def test_a_session_that_was_dropped(self, main: Session) -> None:
        other = main.engine.create_session("other", prompt="b")
        other.decide(see(OLD))
        main.engine.drop_session("other")
        with pytest.raises(SessionError, match="dropped"):
            other.read("actions")


def saved_and_restored(session: Session, _: Path) -> Session:
    session.snapshot("mark")
    session.decide(see({"front": 90_000, "joints": 90_000}, 9))
    session.restore("mark")
    return session


def over_the_host(session: Session, _: Path) -> Session:
    session.snapshot("mark")
    session.engine.store.to_host("mark")
    return session.engine.fork("branch", capsule="mark")


def forked_live(session: Session, _: Path) -> Session:
    return session.engine.fork("branch", source="main")


def forked_from_a_fork(session: Session, folder: Path) -> Session:
    fork = forked_live(session, folder)
    fork.snapshot("mark")
    return fork.engine.fork("twig", capsule="mark")


def from_a_file(session: Session, folder: Path) -> Session:
    session.snapshot("mark")
    session.engine.store.write_file("mark", folder / "file")
    other = toy.engine()
    other.store.read_file(folder / "file")
    other.fork("copy", capsule="mark").snapshot("again")
    other.store.write_file("again", folder / "file of a fork")
    other.store.drop("mark")
    other.store.read_file(folder / "file of a fork", replace=True)
    return other.fork("main", capsule="again")


WAYS = [saved_and_restored, over_the_host, forked_live, forked_from_a_fork, from_a_file]


class TestStamps:
    @pytest.mark.parametrize("way", WAYS)
    def test_they_go_where_the_context_goes(
        self, main: Session, way: Callable[[Session, Path], Session], tmp_path: Path
    ) -> None:
        main.decide(see(OLD))
        main.observe(see(NEW, 4))
        main.decide()
        there = way(main, tmp_path)
        assert there.host_state().stamps_ns == NEW
        chunk = there.act()
        assert (chunk.stamp_ns, chunk.stamps_ns) == (5_000, NEW)

    @pytest.mark.parametrize("way", WAYS)
    def test_not_those_of_what_was_only_seen(
        self, main: Session, way: Callable[[Session, Path], Session], tmp_path: Path
    ) -> None:
        main.decide(see(OLD))
        main.observe(see(NEW, 4))
        there = way(main, tmp_path)
        chunk = there.act(allow_stale=True)
        assert (chunk.stamp_ns, chunk.stamps_ns) == (2_000, OLD)

    @pytest.mark.parametrize("way", WAYS)
    def test_what_was_not_told_is_not_known(
        self, main: Session, way: Callable[[Session, Path], Session], tmp_path: Path
    ) -> None:
        main.decide(see(OLD))
        main.decide(toy.see(4))
        assert way(main, tmp_path).act().stamps_ns == {}

    @pytest.mark.parametrize("way", WAYS)
    def test_they_are_forgotten_when_the_clock_jumps(
        self, main: Session, way: Callable[[Session, Path], Session], tmp_path: Path
    ) -> None:
        main.decide(see(OLD))
        main.snapshot("before")
        main.observe(see(NEW, 4))
        forget_stamps(main.engine)
        main.snapshot("behind")
        for name in ("before", "behind"):
            main.restore(name)
            assert main.host_state().stamps_ns == main.host_state().seen_stamps_ns == {}
            main.engine.store.drop(name)
        with pytest.raises(StaleStateError, match="'image'"):
            main.act()
        there = way(main, tmp_path)
        chunk = there.act(allow_stale=True)
        assert (chunk.stamp_ns, chunk.stamps_ns) == (2_000, {})
        assert there.decide(see(NEW, 4)).stamps_ns == NEW

    def test_nobody_changes_them_later(self, main: Session) -> None:
        given = dict(OLD)
        chunk = main.decide(see(given))
        given["front"] = 9_000
        assert chunk.stamps_ns == main.act().stamps_ns == OLD
        with pytest.raises(TypeError):
            chunk.stamps_ns["front"] = 9_000  # type: ignore[index]

    @pytest.mark.parametrize(
        ("stamps", "said"),
        [
            ({"front": 2_001}, "stamp of 'front': expected at most stamp_ns, 2000, got 2001"),
            ({"front": 1.5}, "a whole number, got 1.5"),
            ({"front": 1 << 63}, "a number of"),
            ({"": 1}, "at least one visible character"),
            ({3: 1}, "expected text, got 3"),
            ([1], "a mapping of names to stamps, got list"),
        ],
    )
    def test_what_is_none(self, main: Session, stamps: Any, said: str) -> None:
        main.decide(see(OLD))
        with pytest.raises(InputError, match=said):
            main.decide(Observation(toy.see(9).images, stamp_ns=2_000, stamps_ns=stamps))
        assert main.decide().stamps_ns == OLD

    def test_a_file_that_would_make_them_younger(self, main: Session, tmp_path: Path) -> None:
        main.decide(see(OLD))
        main.snapshot("mark")
        main.engine.store.write_file("mark", tmp_path / "file")
        document, payload = taken_apart((tmp_path / "file").read_bytes())
        assert document["stamps_ns"] == OLD
        for stamps, said in (
            ({"front": 2_001}, "stamps up to that of the newest part, 2000, got 2001 of 'front'"),
            ({"front": 1 << 63}, "'front' of 'stamps_ns' of header is not a whole number"),
            ({"front": "now"}, "'front' of 'stamps_ns' of header is not a whole number"),
            ({"a\nb": 1}, "name of a stamp in capsule 'mark': expected no control characters"),
            ([], "'stamps_ns' of header is no object"),
        ):
            (tmp_path / "wrong").write_bytes(signed(document | {"stamps_ns": stamps}, payload))
            assert said in refused(main, tmp_path / "wrong")
        del document["stamps_ns"]
        (tmp_path / "wrong").write_bytes(signed(document, payload))
        assert "header has no 'stamps_ns'" in refused(main, tmp_path / "wrong")
