"""The stages against the reference: whole episodes, through the pool's overflow."""

from __future__ import annotations

import pytest
import torch

from flashrt_core.policies.lingbot_va.layout import to_latents
from flashrt_core.policies.lingbot_va.reference import Reference
from test.parity import lingbot as parity

from .harness import Pipeline
from .test_reference import frames, noise

# Of the largest number: float32 on both sides, in another order, over all chunks of an episode.
TOLERANCE = 5e-5


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("case", parity.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("bucket", [0, 1])
def test_episodes_are_the_references(case: parity.Case, bucket: int) -> None:
    source = parity.source(case)
    config = case.config
    reference = Reference(config, source, case.views)
    reference.set_prompt(*parity.prompts(case))
    pipeline = Pipeline(config, case.views, source=source)
    pipeline.set_prompt(*parity.prompts(case), bucket)
    executed, used = None, list(config.channels)
    for chunk in range(case.chunks if bucket == 0 else 2):
        inputs = (frames(case, chunk), noise(case, chunk), executed)
        expected, found = reference.decide(*inputs), pipeline.decide(*inputs, bucket)
        assert worst(found[:, used], expected.actions[:, used]) <= TOLERANCE
        latents = to_latents(pipeline.buffers["net_video"], config.grid(case.views))
        assert worst(latents, expected.latents) <= TOLERANCE
        pool, buffers = reference.state.pool, pipeline.buffers
        ids = [held if valid else -1 for held, valid in zip(pool.ids, pool.valid, strict=True)]
        assert ids == buffers["holders"].tolist()
        assert int(buffers["frame"]) == reference.state.frame
        executed = parity.executed(case, chunk, expected.actions.numpy())
    assert torch.isfinite(latents).all()
