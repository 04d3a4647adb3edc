"""What is stale stays stale behind the C interface too, and on the way there and back."""

from __future__ import annotations

from collections.abc import Callable
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
