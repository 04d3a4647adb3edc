"""The stages against the reference: whole episodes, through the pool's overflow."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from flashrt_core.kernels.op import Op
from flashrt_core.policies.lingbot_va import POLICY
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


class Counting:
    """A lane that counts ops by name."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def issue(self, op: Op, *_args: object, **_options: object) -> None:
        self.found[op.name] += 1


def counted(stage: str, variant: int) -> Counter[str]:
    pipeline = Pipeline(POLICY.config("tiny"))
    contract, lane = pipeline.contract, Counting()
    body = POLICY.body(pipeline.config, contract, stage, contract.shapes[0], variant)
    body(lane, pipeline.buffers)
    return lane.found


def test_a_later_decision_is_so_many_ops() -> None:
    """6 a block; of the video, whose norms stand behind additions or alone, 11."""
    config = POLICY.config("tiny")
    depth, steps, action_steps = config.net.depth, config.steps, config.action_steps
    taken, written = 2, 11 * (depth - 1) + 3  # rows and where they are; a pass that only writes
    video, action = counted("video", 1), counted("action", 1)
    assert sum(video.values()) == 1 + taken + steps * (2 + 11 * depth + 1 + 3) + 2 + written
    assert sum(action.values()) == 1 + taken + action_steps * (1 + 6 * depth + 2) + 2 + written
    assert video["take_rows"] == action["take_rows"] == 1
    assert action["layer_norm_linear"] == depth * action_steps
    assert action["layer_norm_attention"] == depth * action_steps
    assert action["layer_norm_pool_attention"] == depth * action_steps
    commit = counted("commit", 2)
    assert commit["take_rows"] == 2 and commit["conv_frames"] == 27
    opening = counted("commit", 0)
    assert "take_rows" not in opening and opening["fill"] == 3
