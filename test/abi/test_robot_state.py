"""Through C as in Python: actions are relative to the state that their context was made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashrt_core.contract import Rate
from flashrt_core.errors import InputError, StaleStateError
from flashrt_core.session import Session
from test.abi import host as api
from test.abi.host import Host
from test.core import toy
from test.core.test_robot_state import Array, Relative, check, image, see

NOISE = toy.noise_of(7, 1)
NEW_TOKENS = np.array([98, 0, 0, 0], np.int32)
Drives = Callable[[Host], object]
Way = Callable[[Session, Drives], Session]


@pytest.fixture
def main(library_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(toy, "ToyProcessor", Relative)
    session = toy.engine(host_slots=1).create_session("main", seed=7, prompt="ab")
    session.decide(see(3))
    return session


def taken_back(main: Session, drives: Drives) -> Session:
    with main.export() as export:
        drives(Host(export))
    return main


def lent_again(main: Session, drives: Drives) -> Session:
    taken_back(main, drives)
    return taken_back(main, lambda _: None)


def _saved(main: Session, drives: Drives, behind: Callable[[Host], object]) -> None:
    def saves(host: Host) -> None:
        drives(host)
        host.do("snapshot", b"mark")
        behind(host)

    taken_back(main, saves)


def restored_in_c(main: Session, drives: Drives) -> Session:
    def elsewhere(host: Host) -> None:
        assert host.write("image", image(1)["image"]) == host.run("context", 1) == api.OK
        host.do("restore", b"mark")

    _saved(main, drives, elsewhere)
    return main


def restored_in_python(main: Session, drives: Drives) -> Session:
    _saved(main, drives, lambda host: host.fork("other"))
    if not main.prompt:  # C wrote tokens
        main.set_prompt("ab")
    main.decide(see(1))
    main.restore("mark")
    return main


def forked_from_the_capsule(main: Session, drives: Drives) -> Session:
    _saved(main, drives, lambda host: host.fork("branch", "mark"))
    return main.engine.session("branch")


def forked_live(main: Session, drives: Drives) -> Session:
    return taken_back(main, lambda host: (drives(host), host.fork("branch"))).engine.session(
        "branch"
    )


def behind_another(main: Session, drives: Drives) -> Session:
    def switches(host: Host) -> None:
        drives(host)
        other = host.fork("other")
        assert other.write("noise", NOISE) == other.act(1) == api.OK

    return taken_back(main, switches)


WAYS: list[Way] = [
    *(taken_back, lent_again, restored_in_c, restored_in_python),
    *(forked_from_the_capsule, forked_live, behind_another),
]


def write(host: Host, name: str, value: Array) -> None:
    assert host.write(name, value) == api.OK, host.error()


def of(session: Session, value: int | None) -> None:
    """What the next actions are relative to: this, or refused as nobody knows it."""
    if value is None:
        with pytest.raises(InputError, match="state: expected 3 numbers, got none"):
            session.act(allow_stale=True)
    else:
        found = session.act(allow_stale=True)
        assert np.array_equal(found.actions, found.raw[:, :2] + np.float32(value))
        assert (found.stamp_ns, found.stamps_ns) == (value, {"joints": value})
    host = session.host_state()
    assert (host.stamp_ns, dict(host.stamps_ns)) == (
        (0, {}) if value is None else (value, {"joints": value})
    )


@pytest.mark.parametrize("way", WAYS)
class TestWhereverItGoes:
    def test_a_context_of_old_and_new_is_of_no_single_observation(
        self, main: Session, way: Way
    ) -> None:
        main.observe(see(9))
        main.set_prompt("b")

        def drives(host: Host) -> None:
            assert host.run("context") == api.STALE
            assert host.run("context", 1) == api.OK

        there = way(main, drives)
        of(there, None)
        there.set_prompt("c")
        check(there, lambda: there.decide(see(5)), 5)

    def test_nor_of_tokens_that_are_not_encoded(self, main: Session, way: Way) -> None:
        main.observe(see(9))

        def drives(host: Host) -> None:
            write(host, "tokens", NEW_TOKENS)
            assert host.run("context", 1) == api.OK

        of(way(main, drives), None)

    @pytest.mark.parametrize(("name", "value"), [*image(11).items(), ("tokens", NEW_TOKENS)])
    def test_a_context_made_alone_keeps_its_own(
        self, main: Session, way: Way, name: str, value: Array
    ) -> None:
        main.observe(see(9))

        def drives(host: Host) -> None:
            assert host.run("context") == api.OK
            write(host, name, value)

        of(way(main, drives), 9)

    def test_the_retained_one_keeps_its_own(self, main: Session, way: Way) -> None:
        def drives(host: Host) -> None:
            write(host, "image", image(9)["image"])
            write(host, "noise", NOISE)
            assert host.act() == api.STALE and host.act(1) == api.OK

        there = way(main, drives)
        with pytest.raises(StaleStateError):
            there.act()
        of(there, 3)
        check(there, lambda: there.decide(see(5)), 5)

    def test_what_python_observed_and_c_acted_on_aside(self, main: Session, way: Way) -> None:
        main.observe(see(9))

        def drives(host: Host) -> None:
            write(host, "noise", NOISE)
            assert host.act(1) == api.OK

        of(way(main, drives), 3)

    @pytest.mark.parametrize("value", [3, 9])
    def test_nothing_is_known_of_a_context_of_written_windows(
        self, main: Session, way: Way, value: int
    ) -> None:
        def drives(host: Host) -> None:
            write(host, "image", image(value)["image"])
            assert host.run("context") == api.OK
            write(host, "tokens", NEW_TOKENS)

        of(way(main, drives), None)


def test_what_is_written_at_any_rate_is_not_what_was_seen(
    library_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but noise and guidance, as ``Session.write`` has it."""
    plain = toy.contract()
    inputs = (replace(plain.inputs[0], rate=Rate.STEP), *plain.inputs[1:])
    monkeypatch.setattr(toy, "contract", lambda: toy.changed(plain, inputs=inputs))
    monkeypatch.setattr(toy, "ToyProcessor", Relative)
    main = toy.engine().create_session("main", seed=7, prompt="ab")
    main.decide(see(3))
    with main.export() as export:
        host = Host(export)
        write(host, "image", image(9)["image"])
        write(host, "noise", NOISE)
        assert host.decide() == api.OK
    of(main, None)


def test_staged_tokens_again_leave_what_was_seen(main: Session) -> None:
    """Also where the prompt has changed since, so that the transform runs again."""
    main.observe(see(9))
    main.set_prompt("b")
    with main.export() as export:
        host = Host(export)
        write(host, "tokens", np.array([97, 98, 0, 0], np.int32))
        write(host, "noise", NOISE)
        assert host.decide() == api.OK
    assert main.prompt == "", "which of both they are, nobody told"
    of(main, 9)


def test_another_engine_knows_nothing(main: Session) -> None:
    target = toy.engine().create_session("target", seed=7, prompt="b")
    with main.export() as export, target.export() as other:
        Host(export).fork("branch", into=Host(other))
    there = target.engine.session("branch")
    of(there, None)
    there.set_prompt("ab")
    there.decide(see(5))
    of(there, 5)
    of(main, 3)
