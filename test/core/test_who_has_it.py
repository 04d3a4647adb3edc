"""Sessions and capsules that somebody else has, or nobody any more: whatever asks for them is told
so, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_core.capsule.state import HostState
from flashrt_core.capsule.store import CapsuleStore
from flashrt_core.engine import Engine, describe
from flashrt_core.errors import SessionError
from flashrt_core.session import Session

from . import toy


class Elsewhere:
    """Another driver of the sessions."""

    def take_back(self) -> None:
        pass


@pytest.fixture
def engine() -> Engine:
    return toy.engine(capsule_slots=2, host_slots=1)


@pytest.fixture
def main(engine: Engine, tmp_path: Path) -> Session:
    """A session with a capsule "mark", and its file."""
    main = engine.create_session("main", seed=7, prompt="ab")
    main.decide(toy.see(3))
    main.snapshot("mark")
    engine.store.write_file("mark", tmp_path / "file")
    return main


def save(store: CapsuleStore, main: Session) -> Any:
    host, copier = main.host_state(), main.engine.sets[0].copier
    return lambda: store.save("new", "main", host, copier)


#: Every call of a store, of one who has fetched it before.
STORE: dict[str, Callable[[CapsuleStore, Session, Path], Callable[[], Any]]] = {
    "save": lambda store, main, _: save(store, main),
    "list": lambda store, *_: store.list,
    "info": lambda store, *_: lambda: store.info("mark"),
    "find": lambda store, *_: lambda: store.find("mark"),
    "drop": lambda store, *_: lambda: store.drop("mark"),
    "to_host": lambda store, *_: lambda: store.to_host("mark"),
    "to_device": lambda store, *_: lambda: store.to_device("mark"),
    "export": lambda store, *_: lambda: store.export("mark"),
    "write_file": lambda store, _, path: lambda: store.write_file("mark", path / "other"),
    "read_file": lambda store, _, path: lambda: store.read_file(path / "file", "new"),
}


def with_what_is_kept(store: CapsuleStore, main: Session, name: str) -> Callable[[], Any]:
    """Calls that take what another one gave before."""
    if name == "adopt":
        image = store.export("mark")
        return lambda: store.adopt(image)
    held, seat = store.find("mark"), main.engine.free_parking[-1]
    return lambda: store.fork(held, seat)


@pytest.mark.parametrize("name", [*STORE, "adopt", "fork"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_store_that_was_kept(
    engine: Engine, main: Session, tmp_path: Path, name: str, closed: bool
) -> None:
    store = engine.store
    made = STORE.get(name)
    call = with_what_is_kept(store, main, name) if made is None else made(store, main, tmp_path)
    before = store.list(), store.export("mark").payload.tobytes(), sorted(tmp_path.iterdir())
    if closed:
        engine.close()
    else:
        engine.lent = Elsewhere()
    with pytest.raises(SessionError, match="closed" if closed else "exported to the C interface"):
        call()
    if not closed:
        engine.lent = None
        after = store.list(), store.export("mark").payload.tobytes(), sorted(tmp_path.iterdir())
        assert after == before


CALLS: dict[str, Callable[[Session], Any]] = {
    "create_session": lambda main: main.engine.create_session("new", prompt="ab"),
    "fork a capsule": lambda main: main.engine.fork("new", capsule="mark"),
    "store": lambda main: main.engine.store,
    "set_prompt": lambda main: main.set_prompt("xy"),
    "decide": lambda main: main.decide(toy.see(4)),
    "act": lambda main: main.act(),
    "run": lambda main: main.run("context"),
    "observe": lambda main: main.observe(toy.see(4)),
    "snapshot": lambda main: main.snapshot("new"),
    "restore": lambda main: main.restore("mark"),
    "export": lambda main: main.export(),
    "restart": lambda main: main.restart(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seats", [1, 2])
def test_a_closed_engine(name: str, seats: int) -> None:
    engine = toy.engine(max_sessions=seats)
    main = engine.create_session("main", seed=7, prompt="ab")
    main.decide(toy.see(3))
    main.snapshot("mark")
    engine.close()
    with pytest.raises(SessionError, match="an engine in use, got one that was closed; load it"):
        CALLS[name](main)
    assert not engine.sessions and describe(engine)["exported"] is False
    engine.close()


def test_a_closed_engine_closes_what_was_lent(engine: Engine, main: Session) -> None:
    given_back = []

    class Tenant:
        def take_back(self) -> None:
            given_back.append(1)
            engine.lent = None

    engine.lent = Tenant()
    assert describe(engine)["exported"] is True
    engine.close()
    engine.close()
    assert given_back == [1]
    assert main.host_state() != HostState()
