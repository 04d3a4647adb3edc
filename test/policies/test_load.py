"""Every policy through the whole core: load, decide, split, capsule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from flashrt_core.load import LoadOptions, describe
from flashrt_core.session import Session

from .small import POLICIES, observation, tiny


@pytest.fixture(params=[(policy, plan) for policy in POLICIES for plan in ("fp32", "bf16")])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    policy, precision = request.param
    loaded = tiny(policy, precision=precision)
    yield loaded
    loaded.engine.close()


def test_full_split_and_capsule_have_equal_bits(session: Session) -> None:
    noise = np.random.default_rng(9).standard_normal((10, 32), dtype=np.float32)
    whole = session.decide(observation(session, 1), noise=noise)
    session.snapshot("before")
    split = session.decide(observation(session, 1), noise=noise, split=True)
    assert np.array_equal(whole.raw, split.raw)
    other = session.decide(observation(session, 2), noise=noise)
    assert not np.array_equal(whole.raw, other.raw)
    session.restore("before")
    resumed = session.act(noise=noise)
    assert np.array_equal(whole.raw, resumed.raw)
    assert whole.actions.shape == (10, 7)
    assert np.array_equal(whole.actions, whole.raw[:, :7])


def test_a_context_serves_further_actions(session: Session) -> None:
    """What is retained is enough: other noise on it gives what a whole decision makes of it."""
    draw = np.random.default_rng(9)
    noises = draw.standard_normal((2, 10, 32), dtype=np.float32)
    session.decide(observation(session, 1), noise=noises[0])
    again = session.act(noise=noises[1])
    whole = session.decide(observation(session, 1), noise=noises[1])
    assert np.array_equal(again.raw, whole.raw)


def test_a_longer_prompt_takes_a_larger_bucket_without_a_new_capture(session: Session) -> None:
    small, large = sorted(shape.prompt_tokens for shape in session.contract.shapes)[:2]
    session.decide(observation(session, 1))
    assert session.shape is not None and session.shape.prompt_tokens == small
    session.set_prompt("pick up the red cup and then put it next to the bowl " * (large // 32))
    session.decide(observation(session, 1))
    assert session.shape is not None and session.shape.prompt_tokens == large


@pytest.mark.parametrize("policy", POLICIES)
def test_describe_needs_no_memory_even_for_base(policy: str) -> None:
    base = LoadOptions(policy=policy, preset="base")
    found = [describe(replace(base, precision=plan)) for plan in ("bf16", "fp32")]
    assert {each.contract.policy for each in found} == {policy}
    assert found[0].fingerprint.digest != found[1].fingerprint.digest
