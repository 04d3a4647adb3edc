"""What is stale stays stale behind the C interface too, and on the way there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.drawing import noise_for
from flashrt_core.errors import StaleStateError
from flashrt_core.session import Session
from test.abi import host as api
from test.abi.host import Host
from test.core import toy

NOISE = noise_for(7, 1, (2, 3))
Way = Callable[[Host], Host]


def image(value: int) -> np.ndarray[Any, Any]:
    return np.full((2, 2, 3), value, np.uint8)


def saved_and_restored(host: Host) -> Host:
    host.do("snapshot", b"stale")
    host.do("restore", b"stale")
    return host


def forked_from_the_capsule(host: Host) -> Host:
    host.do("snapshot", b"stale")
    return host.fork("branch", "stale")


def forked_live(host: Host) -> Host:
    return host.fork("branch")


def forked_from_a_fork(host: Host) -> Host:
    return host.fork("branch").fork("twig")


WAYS = [saved_and_restored, forked_from_the_capsule, forked_live, forked_from_a_fork]


def acts_on(host: Host, value: int, tokens: str = "ab") -> bool:
    assert host.write("noise", NOISE) == host.act() == api.OK, host.error()
    return np.array_equal(host.read(), toy.expected(value, tokens, NOISE).astype(np.float32))


@pytest.mark.parametrize("way", WAYS)
def test_a_new_image(main: Session, way: Way) -> None:
    with main.export() as export:
        host = Host(export)
        assert host.write("image", image(5)) == api.OK
        there = way(host)
        assert there.write("noise", NOISE) == api.OK
        assert there.act() == api.STALE
        assert "from before the last write of 'image'" in there.error()
        assert there.act(1) == api.OK, "as it may with FLASHRT_ALLOW_STALE"
        assert there.write("image", image(5)) == there.decide() == api.OK
        assert acts_on(there, 5)


@pytest.mark.parametrize("way", WAYS)
def test_new_tokens(main: Session, way: Way) -> None:
    """Not yet run by the stage that reads them: gone with the window, and yet newer."""
    new = np.array([98, 0, 0, 0], np.int32)
    with main.export() as export:
        host = Host(export)
        assert host.write("tokens", new) == host.run("prompt") == api.OK
        assert host.write("tokens", np.array([99, 0, 0, 0], np.int32)) == api.OK
        there = way(host)
        assert there.write("noise", NOISE) == api.OK and there.act() == api.STALE
        assert there.write("image", image(3)) == api.OK
        assert there.decide() == api.STALE and "'tokens'" in there.error()
        assert there.write("tokens", new) == there.write("noise", NOISE) == api.OK
        assert there.decide() == api.OK
        assert acts_on(there, 3, "b")


def test_a_new_prompt_that_was_encoded_serves_the_next_image(main: Session) -> None:
    """The context was stale, the encoded prompt was not: a restore keeps that apart."""
    with main.export() as export:
        host = Host(export)
        assert (
            host.write("tokens", np.array([98, 0, 0, 0], np.int32)) == host.run("prompt") == api.OK
        )
        saved_and_restored(host)
        assert host.write("noise", NOISE) == api.OK and host.act() == api.STALE
        assert host.write("image", image(4)) == host.decide() == api.OK
        assert acts_on(host, 4, "b")


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_stale_goes_on_at_once(main: Session, way: Way) -> None:
    with main.export() as export:
        assert acts_on(way(Host(export)), 3)


def test_a_fork_into_another_engine(main: Session) -> None:
    target = toy.engine().create_session("target", prompt="b")
    with main.export() as export, target.export() as other:
        host = Host(export)
        assert host.write("image", image(5)) == api.OK
        there = host.fork("branch", into=Host(other))
        assert there.write("noise", NOISE) == api.OK and there.act() == api.STALE
        assert there.write("image", image(6)) == there.decide() == api.OK
        assert acts_on(there, 6)


@pytest.mark.parametrize("change", ["image", "prompt"])
def test_python_hands_it_over(main: Session, change: str) -> None:
    if change == "image":
        main.observe(toy.see(5))
    else:
        main.set_prompt("b")
    main.snapshot("stale")
    with main.export() as export:
        host = Host(export)
        assert host.write("noise", NOISE) == api.OK and host.act() == api.STALE
        host.do("restore", b"stale")
        assert host.write("noise", NOISE) == api.OK and host.act() == api.STALE
        fork = host.fork("branch", "stale")
        assert fork.write("noise", NOISE) == api.OK and fork.act() == api.STALE


@pytest.mark.parametrize("resident", [True, False])
def test_python_takes_it_back(main: Session, resident: bool) -> None:
    engine = main.engine
    engine.create_session("other", prompt="b").decide(toy.see(7))
    with main.export() as export, engine.session("other").export() as second:
        host = Host(export)
        assert host.write("image", image(5)) == api.OK
        host.do("snapshot", b"stale")
        host.fork("branch")
        if not resident:
            assert Host(second).write("noise", NOISE) == Host(second).act() == api.OK
    stale = [main, engine.session("branch")]
    for session in stale:
        with pytest.raises(StaleStateError, match="before the last write"):
            session.act()
    main.restore("stale")
    with pytest.raises(StaleStateError, match="before the last write"):
        main.act()
    assert main.decide(toy.see(8)).stamp_ns == main.act().stamp_ns == 8


def test_the_stamp_is_that_of_the_context(main: Session) -> None:
    """Where C decides on what Python observed, and where it does not."""
    main.observe(toy.see(5))
    with main.export() as export:
        Host(export).do("snapshot", b"before")
        assert Host(export).write("noise", NOISE) == Host(export).decide() == api.OK
        Host(export).do("snapshot", b"behind")
    store = main.engine.store
    assert (store.info("before").stamp_ns, store.info("behind").stamp_ns) == (3, 5)
    assert main.act().stamp_ns == 5
    main.restore("before")
    assert main.act(allow_stale=True).stamp_ns == 3


@pytest.mark.parametrize("needs", [("prompt", "context"), ("context", "prompt")])
@pytest.mark.parametrize("in_c", [False, True])
def test_what_is_made_of_old_and_new_is_old(
    library_path: Path, monkeypatch: pytest.MonkeyPatch, needs: tuple[str, ...], in_c: bool
) -> None:
    """A stage that is made of the tokens and of what was made of the tokens before them."""
    plain = toy.contract()
    stages = (*plain.stages[:2], replace(plain.stages[2], requires=needs))
    monkeypatch.setattr(toy, "contract", lambda: toy.changed(plain, stages=stages))
    main = toy.engine().create_session("main", seed=7, prompt="ab")
    main.decide(toy.see(3))
    tokens = np.array([98, 0, 0, 0], np.int32)
    if in_c:
        with main.export() as export:
            host = Host(export)
            assert host.write("tokens", tokens) == host.run("prompt") == api.OK
            assert host.write("noise", NOISE) == host.act(1) == api.OK
            assert host.try_read()[0] == api.STALE
    else:
        main.write({"tokens": tokens})
        main.act(allow_stale=True)
        with pytest.raises(StaleStateError, match="before the last write of .'tokens'"):
            main.read("actions")


class TestResults:
    """What may be read: the result of the inputs as they are, as ``Session.read`` has it."""

    def refused(self, host: Host, status: int, said: str) -> None:
        found, value = host.try_read()
        assert (found, value.any()) == (status, False) and said in host.error()

    def test_of_older_inputs_only_when_asked(self, host: Host) -> None:
        assert acts_on(host, 3)
        expected = host.read()
        for name, value in (
            ("image", image(5)),
            ("noise", NOISE + 1),
            ("tokens", np.array([98, 0, 0, 0], np.int32)),
        ):
            assert host.write(name, value) == api.OK
            self.refused(host, api.STALE, "one from before the last write of")
            status, value = host.try_read(flags=1)
            assert status == api.OK and np.array_equal(value, expected)
            assert host.try_read(flags=0)[0] == api.STALE
            assert host.try_read(flags=2)[0] == api.ARGUMENT
        assert host.act() == api.STALE, "and what it was refused for stays so"
        self.refused(host, api.STALE, "decide again, or use flashrt_read_output_flags")
        assert host.decide() == api.OK and not np.array_equal(host.read(), expected)

    def test_the_same_tokens_change_nothing(self, host: Host) -> None:
        assert acts_on(host, 3)
        expected = host.read()
        assert host.write("tokens", np.array([97, 98, 0, 0], np.int32)) == api.OK
        assert np.array_equal(host.read(), expected)

    def test_none_is_none_whatever_is_asked(self, host: Host) -> None:
        def none_of_it(session: Host) -> None:
            self.refused(session, api.NOT_MADE, "decide first")
            assert session.try_read(flags=1)[0] == api.NOT_MADE

        none_of_it(host)  # made by Python
        assert acts_on(host, 3)
        host.do("snapshot", b"mark")
        none_of_it(host.fork("branch"))
        none_of_it(host.fork("twig", "mark"))
        host.do("restore", b"mark")
        none_of_it(host)
        assert acts_on(host, 3)
        host.do("select_shape", 1)
        none_of_it(host)

    def test_nor_in_python_what_c_left(self, main: Session) -> None:
        with main.export() as export:
            assert acts_on(Host(export), 3)
        with pytest.raises(StaleStateError, match="a result of this session"):
            main.read("actions")


class TestBehindAnotherSession:
    """What a replay took is gone with the buffers, as in Python; what waits is not."""

    @pytest.fixture
    def pair(self, main: Session) -> Iterator[tuple[Host, Host]]:
        with main.export() as export:
            host = Host(export)
            yield host, host.fork("other")

    def decided(self, host: Host, value: int) -> None:
        assert host.write("image", image(value)) == host.write("noise", NOISE) == api.OK
        assert host.decide() == api.OK, host.error()

    def test_nothing_new_is_nothing_to_decide_on(self, pair: tuple[Host, Host]) -> None:
        host, other = pair
        self.decided(host, 5)
        assert host.decide() == api.OK, "nobody came between"
        self.decided(other, 6)
        assert host.decide() == api.UNWRITTEN
        assert "'image'" in host.error() and "a session switch" in host.error()
        assert host.write("image", image(5)) == api.OK
        assert host.decide() == api.UNWRITTEN and "'noise'" in host.error()
        assert host.write("noise", NOISE) == host.decide() == api.OK
        assert np.array_equal(host.read(), toy.expected(5, "ab", NOISE).astype(np.float32))

    def test_the_last_stage_needs_new_noise_alone(self, pair: tuple[Host, Host]) -> None:
        host, other = pair
        self.decided(host, 5)
        self.decided(other, 6)
        assert host.act() == api.UNWRITTEN and "'noise'" in host.error()
        assert acts_on(host, 5) and host.try_read()[0] == api.OK

    def test_its_own_result_is_still_there(self, pair: tuple[Host, Host]) -> None:
        host, other = pair
        self.decided(host, 5)
        self.decided(other, 6)
        assert np.array_equal(host.read(), toy.expected(5, "ab", NOISE).astype(np.float32))

    def test_what_waits_is_not_lost(self, pair: tuple[Host, Host]) -> None:
        host, other = pair
        self.decided(host, 5)
        new = np.array([98, 0, 0, 0], np.int32)
        assert host.write("image", image(7)) == host.write("tokens", new) == api.OK
        self.decided(other, 6)
        assert host.act() == api.UNWRITTEN, "noise"
        assert host.write("noise", NOISE) == api.OK and host.act() == api.STALE
        self.decided(other, 6)
        assert host.decide() == api.OK, host.error()
        assert np.array_equal(host.read(), toy.expected(7, "b", NOISE).astype(np.float32))

    def test_stale_stays_stale(self, pair: tuple[Host, Host]) -> None:
        """The image was taken to its window by another stage's replay, and lost there."""
        host, other = pair
        self.decided(host, 5)
        assert host.write("image", image(7)) == host.write("noise", NOISE) == api.OK
        assert host.act(1) == api.OK
        self.decided(other, 6)
        assert host.write("noise", NOISE) == api.OK and host.act() == api.STALE
        assert host.decide() == api.UNWRITTEN and "'image'" in host.error()

    def test_with_buffers_of_its_own_nothing_is_lost(self, library_path: Path) -> None:
        main = toy.engine(working_sets=2).create_session("main", prompt="ab")
        main.decide(toy.see(3))
        with main.export() as export:
            host = Host(export)
            other = host.fork("other")
            self.decided(host, 5)
            self.decided(other, 6)
            assert host.decide() == api.OK, host.error()

    def test_as_python_has_it(self) -> None:
        main = toy.engine().create_session("main", seed=7, prompt="ab")
        main.decide(toy.see(5))
        main.engine.fork("other", source="main").decide(toy.see(6))
        with pytest.raises(StaleStateError, match="'image'.*a session switch"):
            main.decide()
        assert main.act().index == 1
