"""How a session is saved: the way from its name to the copies, which a host waits for.

It is cold when a decision was made, and then takes some five times as long as it computes: reading
the code and the records of a few hundred steps into the caches. So there is little of it, and while
the device is busy with a decision it is rehearsed.
"""

from __future__ import annotations

from typing import Any

from .capsule.state import CapsuleInfo
from .capsule.store import CapsuleStore
from .engine import Engine
from .working_set import Member

_NAME = "rehearsal"


def save(
    engine: Engine[Any],
    session: Member,
    store: CapsuleStore,
    name: str,
    owner: str,
    midway: bool = False,
) -> CapsuleInfo:
    """Save what ``session`` retains in ``store``, as a capsule ``name`` of the session ``owner``.

    SessionError where it is not there any more or exported; CapsuleError on the way through a
    chunk, unless ``midway``; else as :meth:`CapsuleStore.save`.
    """
    if session.past.seen and not midway:
        session.past.check_boundary(f"capsule {name!r}")
    working = session.working
    if working is None or working.resident is not session or engine.lent is not None:
        working = engine.admit(session)
    return store.save(name, owner, session.host_state(), working.copier)


def meanwhile(engine: Engine[Any], session: Member) -> None:
    """What the host does while the device decides: draw the noise of the next decision and, where
    capsules are kept at all, go through a snapshot and a fork, which copy and leave nothing.
    """
    host = session.host_state()
    engine.noise.drawn(host.seed, host.decisions + 1)
    if len(engine.capsules) and host.lineage.made and not session.past.seen:
        store = engine.rehearsal
        engine.sweep()
        save(engine, session, store, _NAME, _NAME)
        if engine.free_parking and _NAME not in engine.sessions:
            try:
                engine.forked(_NAME, store.find(_NAME), None, store, fleeting=True)
            finally:  # also behind an interrupt
                if _NAME in engine.sessions:
                    engine.drop_session(_NAME)
        store.drop(_NAME)  # the next one takes the longer way, that of a new name, again


def forget_stamps(engine: Engine[Any]) -> None:
    """How old the parts of what sessions and capsules retain are, nobody knows any more: the host's
    clock jumped. SessionError while the sessions are exported.
    """
    engine.check_here("stamps")
    for session in engine.sessions.values():
        session.take_over(session.host_state().undated(), session.ledger.page())
    for *_, held in engine.capsules.slots():
        if held is not None:
            held.host = held.host.undated()
