"""Whether the chunk of a restored decision may still go out, where decisions build on each other.

It is executed before another one is made, as if it had just been decided: so what holds for a
decision now must hold for it, too.
"""

from __future__ import annotations

from flashrt_core.contract import Rate
from flashrt_core.errors import StaleStateError
from flashrt_core.load import MAIN
from flashrt_core.session import Session
from flashrt_ros.ingest import Ingest


def require_valid(session: Session, ingest: Ingest, now_ns: int) -> None:
    """Check a restored chunk.

    Raises:
        StaleStateError: the prompt was changed since it was decided.
        StaleInputError: it is of the main session, which the robot executes, and what it was
            decided on is too old by now, or nobody knows how old; or an input is missing that stops
            the node by that.
    """
    contract, host = session.contract, session.host_state()
    changed = host.lineage.older(contract.decision_stages[-1].name)
    if any(contract.input(name).rate is Rate.PROMPT for name in changed):
        raise StaleStateError(
            f"restored chunk of session '{session.name}'",
            expected="one that was decided under its prompt",
            got="one from before the prompt was changed",
            remedy="decide without reuse_context: an episode begins",
        )
    if session.name == MAIN:
        ingest.require_current(host.stamps_ns, now_ns)
