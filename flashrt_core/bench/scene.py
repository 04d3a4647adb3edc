"""What a bench shows to a policy: the same instruction and drawn observations."""

from __future__ import annotations

import numpy as np

from ..policies.base import Observation
from ..session import Session
from .case import Case

PROMPT = "pick up the cup"
STATE_DIM = 1  # of a robot that nothing is said of: the least text in a prompt that holds it
#: Observations that are drawn beforehand and shown in turn; no two neighbours are equal.
OBSERVATIONS = 16
_CAMERA = 256


def look_back(session: Session, observation: Observation) -> None:
    """Show a policy that looks back what it wants to have seen before an observation: the same."""
    history = session.contract.history
    if history is not None:
        for _ in range(history.pictures[history.variant(session.turn)] - 1):
            session.record(observation.images)


def observations(session: Session, case: Case) -> list[Observation]:
    """As many as OBSERVATIONS says, of the size that the network sees."""
    generator = np.random.default_rng(case.views)
    side = session.contract.input(f"image.{session.processor.views[0]}").shape[0]
    if session.contract.history is not None:
        side = _CAMERA  # its windows hold several pictures, and those in parts
    return [
        Observation(
            {
                view: generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
                for view in session.processor.views
            },
            np.zeros(session.processor.state_dim, np.float32),
            stamp_ns=index,
        )
        for index in range(OBSERVATIONS)
    ]
