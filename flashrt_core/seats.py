"""Who has an engine's sessions: another driver for a while, which gives them back, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from .capsule.state import HostState
from .errors import SessionError
from .resident import Returned, Tenant
from .working_set import Member, WorkingSet

#: The kind of session that an engine makes; see resident.py.
SessionT = TypeVar("SessionT", bound=Member)


class _Closed:
    """Who has the sessions of an engine that is closed: nobody gives them back."""

    def take_back(self) -> None:
        """There is nothing."""


CLOSED = _Closed()


def elsewhere(lent: Tenant, what: str) -> SessionError:
    """What to say of ``what`` while somebody else has the sessions, or after the end."""
    if lent is CLOSED:
        expected, got, remedy = "an engine in use", "one that was closed", "load it again"
    else:
        expected, got = "a session that Python drives", "one that is exported to the C interface"
        remedy = "close the export first"
    return SessionError(what, expected=expected, got=got, remedy=remedy)


def vacate(sets: Sequence[WorkingSet], sessions: Mapping[str, SessionT]) -> None:
    """No set has a session any more, and no session a set."""
    for session in sessions.values():
        session.working = None
    for working in sets:
        working.resident = None


def seated(
    seats: Sequence[Returned],
    sets: Sequence[WorkingSet],
    known: Mapping[str, SessionT],
    make: Callable[[str, HostState], SessionT],
) -> tuple[dict[str, SessionT], dict[str, Tensor]]:
    """Sessions and their parking slots, by name, as another driver gives them back.

    Sets and sessions go on from there.

    Args:
        seats: all parking slots.
        sets: of buffers.
        known: the sessions of before.
        make: makes one that was forked there.
    """
    sessions: dict[str, SessionT] = {}
    parking: dict[str, Tensor] = {}
    vacate(sets, known)  # who does not come back was dropped there
    for seat in seats:
        if seat.name is None:
            continue
        session = known.get(seat.name) or make(seat.name, seat.host)
        session.take_over(seat.host, seat.page)
        session.working = sets[seat.working_set]
        if seat.resident:
            session.working.resident = session
        sessions[seat.name], parking[seat.name] = session, seat.slot
    return sessions, parking
