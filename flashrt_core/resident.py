"""What an engine knows of a session, and no more: so that sessions may know their engine.

The one imports the other, not both each other. :class:`~flashrt_core.session.Session` is the only
kind there is, and the composition root says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .capsule.state import HostState
from .contract import ShapeKey
from .freshness import Ledger, Page
from .past import Past


class Resident(Protocol):
    """A session, as seen by what keeps its state: its name and the host's part of that state.

    Attributes:
        name: unique in its engine.
        ledger: what its retained values were made from.
        past: what it saw since its last decision.
    """

    name: str
    ledger: Ledger
    past: Past

    @property
    def shape(self) -> ShapeKey | None:
        """The captured shape in use; None before the first observation."""

    @property
    def turn(self) -> int:
        """Decisions of the episode, where they build on each other; else 0."""

    def set_prompt(self, text: str) -> None:
        """Use ``text`` from the next observation on."""

    def host_state(self) -> HostState:
        """The host's part of the state, with the lineage of what is retained."""

    def resume(self, host: HostState) -> None:
        """Take over ``host``; the engine has put the matching regions in place."""

    def take_over(self, host: HostState, page: Page) -> None:
        """Go on from what another driver left; the engine knows where the regions are."""


@dataclass(frozen=True)
class Returned:
    """A parking slot as another driver gives it back, and the session that has it, if any."""

    slot: Tensor
    name: str | None
    working_set: int
    resident: bool
    parked: bool
    host: HostState
    page: Page


class Tenant(Protocol):
    """Another driver of all sessions, while it has them."""

    def take_back(self) -> None:
        """End its use, and call :meth:`~flashrt_core.engine.Engine.take_back`."""
