"""Capsules of π0.5 for every prompt length: the same bits go on from each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flashrt_core.devices.base import NUMPY_DTYPES
from flashrt_core.load import LoadOptions, load
from flashrt_core.session import NOISE, Session

BUCKETS = (3, 16)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = load(
        LoadOptions(
            views=("base_0_rgb",),
            steps=1,
            prompt_buckets=BUCKETS,
            prompt="cup",
            max_sessions=3,
            capsule_slots=1,
            host_slots=1,
            state_dim=1,
            threads=1,
            extra={"vision_depth": 1, "trunk_depth": 2, "expert_depth": 2},
        )
    )
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


@pytest.mark.parametrize("length", range(1, BUCKETS[-1] + 1))
def test_every_prompt_length_goes_on(session: Session, length: int) -> None:
    engine, other = session.engine, session.engine.session("other")
    decided(session, length, seed=length)
    session.snapshot("mark")
    expected = session.act().raw.tobytes()
    for dirty in range(1, BUCKETS[-1] + 1):  # of this bucket and of the other one
        assert decided(other, dirty, seed=100 + dirty) != expected
        session.restore("mark")
        assert session.act().raw.tobytes() == expected
    branch = engine.fork("branch", capsule="mark")
    decided(other, BUCKETS[-1], seed=200)
    assert branch.act().raw.tobytes() == expected
    engine.drop_session("branch")
    engine.store.to_host("mark")
    decided(session, BUCKETS[-1] + 1 - length, seed=300)
    session.restore("mark")
    assert session.act().raw.tobytes() == expected
    engine.store.drop("mark")
