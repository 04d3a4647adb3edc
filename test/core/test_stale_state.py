"""What is stale stays stale wherever it goes, and what was cut short counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.drawing import noise_for
from flashrt_core.errors import CapsuleError, StaleStateError
from flashrt_core.session import Session
from flashrt_core.snapshots import meanwhile

from . import toy
from .capsules import refused, signed, taken_apart


def saved_and_restored(session: Session, _: Path) -> Session:
    session.snapshot("stale")
    session.restore("stale")
    return session


def restored_over_another_state(session: Session, _: Path) -> Session:
    session.snapshot("stale")
    session.decide(toy.see(9))
    session.restore("stale")
    return session


def forked_from_the_capsule(session: Session, _: Path) -> Session:
    session.snapshot("stale")
    return session.engine.fork("branch", capsule="stale")


def forked_live(session: Session, _: Path) -> Session:
    return session.engine.fork("branch", source="main")


def forked_from_a_fork(session: Session, _: Path) -> Session:
    session.engine.fork("branch", source="main")
    return session.engine.fork("twig", source="branch")


def from_a_file(session: Session, folder: Path) -> Session:
    session.snapshot("stale")
    session.engine.store.write_file("stale", folder / "stale.capsule")
    other = toy.engine()
    other.store.read_file(folder / "stale.capsule")
    return other.fork("main", capsule="stale")


def behind_another_session(session: Session, _: Path) -> Session:
    session.engine.create_session("other", prompt="b").decide(toy.see(7))
    return session


WAYS = [
    saved_and_restored,
    restored_over_another_state,
    forked_from_the_capsule,
    forked_live,
    forked_from_a_fork,
    from_a_file,
    behind_another_session,
]
Way = Callable[[Session, Path], Session]


def main_session() -> Session:
    session = toy.engine().create_session("main", seed=7, prompt="ab")
    session.decide(toy.see(3))
    return session


@pytest.mark.parametrize("way", WAYS)
def test_an_observation_that_was_not_used_yet(way: Way, tmp_path: Path) -> None:
    session = main_session()
    session.observe(toy.see(5))
    there = way(session, tmp_path)
    with pytest.raises(StaleStateError, match=r"before the last write of \['image'\]"):
        there.act()
    index = there.decisions
    chunk = there.act(allow_stale=True)
    assert chunk.stamp_ns == 3, "that of the observation it was computed from"
    assert np.allclose(chunk.raw, toy.expected(3, "ab", noise_for(7, index, (2, 3))))
    chunk = there.decide(toy.see(5))
    assert chunk.stamp_ns == 5
    assert np.allclose(chunk.raw, toy.expected(5, "ab", noise_for(7, index + 1, (2, 3))))
    assert there.act().stamp_ns == 5


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_that_was_not_used_yet(way: Way, tmp_path: Path) -> None:
    session = main_session()
    session.set_prompt("b")
    there = way(session, tmp_path)
    assert there.prompt == "b"
    with pytest.raises(StaleStateError, match=r"before the last write of \['tokens'\]"):
        there.act()
    index = there.decisions
    chunk = there.decide(toy.see(3))
    assert np.allclose(chunk.raw, toy.expected(3, "b", noise_for(7, index, (2, 3))))
    there.act()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_stale_goes_on_at_once(way: Way, tmp_path: Path) -> None:
    there = way(main_session(), tmp_path)
    chunk = there.act()
    assert chunk.stamp_ns == 3
    assert np.allclose(chunk.raw, toy.expected(3, "ab", noise_for(7, chunk.index, (2, 3))))


def test_a_restore_goes_back_behind_what_made_it_stale() -> None:
    session = main_session()
    session.snapshot("fresh")
    session.observe(toy.see(5))
    session.snapshot("stale")
    assert [info.stamp_ns for info in session.engine.store.list()] == [3, 3]
    session.restore("stale")
    session.restore("fresh")
    assert session.act().stamp_ns == 3
    session.restore("stale")
    with pytest.raises(StaleStateError):
        session.act()


def test_the_stamp_is_that_of_the_context() -> None:
    session = main_session()
    session.observe(toy.see(5))
    assert session.act(allow_stale=True).stamp_ns == 3
    session.run("context")
    session.observe(toy.see(8))
    session.snapshot("mark")
    assert session.engine.store.info("mark").stamp_ns == 5
    session.observe(toy.see(9))
    assert session.act(allow_stale=True).stamp_ns == 5
    assert session.decide().stamp_ns == 9


def test_a_new_prompt_that_was_encoded_serves_the_next_image() -> None:
    session = main_session()
    session.set_prompt("b")
    session.observe(toy.see(5))
    session.snapshot("stale")
    session.restore("stale")
    with pytest.raises(StaleStateError, match=r"'image', 'tokens'"):
        session.act()
    session.write({"image": toy.see(4).images[toy.VIEW]})
    chunk = session.decide()
    assert np.allclose(chunk.raw, toy.expected(4, "b", noise_for(7, 1, (2, 3))))


def test_a_file_says_what_is_stale_and_older_files_say_nothing(tmp_path: Path) -> None:
    session = main_session()
    fresh, stale = tmp_path / "fresh.capsule", tmp_path / "stale.capsule"
    session.snapshot("fresh")
    session.engine.store.write_file("fresh", fresh)
    session.observe(toy.see(5))
    session.snapshot("stale")
    session.engine.store.write_file("stale", stale)
    assert "newer" not in header_of(fresh)
    assert set(header_of(stale)["newer"]) == {"image"}
    document, payload = taken_apart(stale.read_bytes())
    made_from = document["lineage"]["prompt"]["tokens"]
    for newer in ({"nothing": 90}, {"tokens": made_from}):
        (tmp_path / "wrong").write_bytes(signed(document | {"newer": newer}, payload))
        assert "with nothing made from an older value" in refused(session, tmp_path / "wrong")


class TestInterrupts:
    """They come wherever Python is; a signal's handler may raise SystemExit."""

    @pytest.fixture(params=[KeyboardInterrupt, SystemExit])
    def kind(self, request: pytest.FixtureRequest) -> type[BaseException]:
        return request.param

    def test_half_a_context_is_no_context(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = main_session()
        session.snapshot("good")

        def half(*args: Any, **options: Any) -> None:
            session.buffers["kv"][0] = -1.0
            raise kind

        with monkeypatch.context() as patch, pytest.raises(kind):
            patch.setattr(session.engine.device, "replay", half)
            session.decide(toy.see(5))
        self.refuse_all(session)
        session.restore("good")
        assert np.allclose(session.act().raw, toy.expected(3, "ab", noise_for(7, 1, (2, 3))))
        assert np.allclose(
            session.decide(toy.see(5)).raw, toy.expected(5, "ab", noise_for(7, 2, (2, 3)))
        )

    def refuse_all(self, session: Session) -> None:
        with pytest.raises(StaleStateError, match="no retained result"):
            session.act()
        with pytest.raises(CapsuleError, match="a completed stage to save"):
            session.snapshot("bad")
        branch = session.engine.fork("branch", source="main")
        with pytest.raises(StaleStateError, match="no retained result"):
            branch.act()
        session.engine.drop_session("branch")

    def test_half_a_restore_is_none(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = main_session()
        session.snapshot("good")
        session.decide(toy.see(5))

        def half(_: Any) -> None:
            session.buffers["kv"][0] = -1.0
            raise kind

        with monkeypatch.context() as patch, pytest.raises(kind):
            patch.setattr(session.engine.sets[0].copier, "_start", half)
            session.restore("good")
        self.refuse_all(session)
        session.restore("good")
        assert session.act().stamp_ns == 3

    def test_half_a_restore_of_who_is_parked_leaves_what_is_parked(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = main_session()
        session.snapshot("good")
        session.decide(toy.see(5))
        session.engine.create_session("other", prompt="b").decide(toy.see(7))
        load = "flashrt_core.capsule.state.RegionCopier.load"

        def half(*_: Any) -> None:
            session.buffers["kv"][0] = -1.0
            raise kind

        with monkeypatch.context() as patch, pytest.raises(kind):
            patch.setattr(load, half)
            session.restore("good")
        assert np.allclose(session.act().raw, toy.expected(5, "ab", noise_for(7, 2, (2, 3))))

    def test_half_a_window_is_no_observation(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = main_session()

        def half(target: Any, _: Any) -> None:
            target.view(-1)[0] = 9
            raise kind

        with monkeypatch.context() as patch, pytest.raises(kind):
            patch.setattr(session.engine.device, "write", half)
            session.observe(toy.see(5))
        with pytest.raises(StaleStateError, match="reads input 'image'"):
            session.decide()
        with pytest.raises(StaleStateError, match="before the last write"):
            session.act()
        assert session.decide(toy.see(5)).stamp_ns == 5

    def test_half_a_snapshot_is_no_capsule(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = main_session()
        session.snapshot("good")
        session.decide(toy.see(5))

        def late(_: Any, shape: Any, turn: int = 0) -> int:
            raise kind  # the bytes are already those of the new one

        with monkeypatch.context() as patch, pytest.raises(kind):
            patch.setattr("flashrt_core.capsule.state.SlotCopier.nbytes", late)
            session.snapshot("good")
        assert session.engine.store.list() == []
        session.snapshot("good")
        session.snapshot("another")

    def test_a_rehearsal_leaves_no_session(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = main_session()
        session.snapshot("good")
        made = session.engine.forked

        def forked(*args: Any, **options: Any) -> None:
            made(*args, **options)
            raise kind

        with monkeypatch.context() as patch, pytest.raises(kind):
            patch.setattr(session.engine, "forked", forked)
            meanwhile(session.engine, session)
        assert list(session.engine.sessions) == ["main"]
        session.engine.create_session("a")
        session.engine.create_session("b")


def header_of(path: Path) -> Any:
    return taken_apart(path.read_bytes())[0]
