"""π0.5 through the whole core: load, decide, split, capsule."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flashrt_core.load import LoadOptions, describe, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from .harness import TWO


@pytest.fixture(params=["fp32", "bf16"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    options = LoadOptions(precision=request.param, prompt="pick up the red cup", threads=1)
    loaded = load(options)
    yield loaded
    loaded.engine.close()


def observation(seed: int) -> Observation:
    draw = np.random.default_rng(seed)
    images = {view: draw.integers(0, 256, (48, 64, 3), dtype=np.uint8) for view in TWO}
    return Observation(images, draw.uniform(-1, 1, 7).astype(np.float32), stamp_ns=seed)


def test_full_split_and_capsule_have_equal_bits(session: Session) -> None:
    noise = np.random.default_rng(9).standard_normal((10, 32), dtype=np.float32)
    whole = session.decide(observation(1), noise=noise)
    session.snapshot("before")
    split = session.decide(observation(1), noise=noise, split=True)
    assert np.array_equal(whole.raw, split.raw)
    other = session.decide(observation(2), noise=noise)
    assert not np.array_equal(whole.raw, other.raw)
    session.restore("before")
    resumed = session.act(noise=noise)
    assert np.array_equal(whole.raw, resumed.raw)
    assert whole.actions.shape == (10, 7)
    assert np.array_equal(whole.actions, whole.raw[:, :7])


def test_a_longer_prompt_takes_a_larger_bucket_without_a_new_capture(session: Session) -> None:
    session.decide(observation(1))
    assert session.shape is not None and session.shape.prompt_tokens == 32
    session.set_prompt("pick up the red cup and then put it next to the bowl on the shelf slowly")
    session.decide(observation(1))
    assert session.shape is not None and session.shape.prompt_tokens == 64


def test_describe_needs_no_memory_even_for_base() -> None:
    description = describe(LoadOptions(preset="base", precision="bf16"))
    assert description.contract.policy == "pi05"
    assert description.fingerprint.digest != describe(LoadOptions(preset="base")).fingerprint.digest
