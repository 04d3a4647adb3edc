"""Capsules of every policy for every prompt length: the same bits go on from each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flashrt_core.devices.base import NUMPY_DTYPES
from flashrt_core.session import NOISE, Session

from .small import POLICIES, small

# Fewest and most tokens of a prompt, and the end of the first bucket.
LENGTHS = {"pi05": (1, 3, 16), "groot_n17": (7, 9, 24)}


@pytest.fixture(scope="module", params=POLICIES)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    session = small(request.param, max_sessions=3, capsule_slots=1, host_slots=1)
    session.engine.create_session("other", seed=1, prompt="lid")
    yield session
    session.engine.close()


def decided(session: Session, length: int, seed: int) -> bytes:
    """A decision on a prompt of that many tokens."""
    draw = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for spec in session.contract.inputs:
        if spec.name != NOISE:
            values[spec.name] = draw.integers(1, 200, spec.shape).astype(NUMPY_DTYPES[spec.dtype])
    values["prompt_tokens"][length:] = 0
    values["prompt_length"][:] = length
    session.select_shape(session.engine.shape_for(length))
    session.write(values)
    return session.decide().raw.tobytes()


def test_every_prompt_length_goes_on(session: Session) -> None:
    engine, other = session.engine, session.engine.session("other")
    first, bucket, last = LENGTHS[session.contract.policy]
    for length in (first, first + 1, bucket, bucket + 1, last - 1, last):
        decided(session, length, seed=length)
        session.snapshot("mark")
        expected = session.act().raw.tobytes()
        for dirty in (first, bucket, bucket + 1, last):  # of this bucket and of the other one
            assert decided(other, dirty, seed=100 + dirty) != expected
            session.restore("mark")
            assert session.act().raw.tobytes() == expected
        branch = engine.fork("branch", capsule="mark")
        decided(other, last, seed=200)
        assert branch.act().raw.tobytes() == expected
        engine.drop_session("branch")
        engine.store.to_host("mark")
        decided(session, first + last - length, seed=300)
        session.restore("mark")
        assert session.act().raw.tobytes() == expected
        engine.store.drop("mark")
