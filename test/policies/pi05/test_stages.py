"""What the stages promise besides the numbers: repeatability, masking, dropped work, op counts."""

from __future__ import annotations

import pytest
import torch

from flashrt_core.contract import ContractError, Role
from flashrt_core.policies.pi05 import POLICY

from ..pipeline import count_ops
from .harness import TWO, VIEWS, Case, Pipeline, make_case, same_bits, worst

TINY = POLICY.config("tiny")


def test_action_stage_alone_repeats_and_leaves_context_and_noise() -> None:
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    first = pipeline.decide(case)
    prefix = pipeline.buffers["kv"][:, :, : 2 * TINY.view_tokens + 32].clone()
    pipeline.buffers["actions"].fill_(torch.nan)
    assert same_bits(first, pipeline.run("action", length=20))
    assert torch.equal(pipeline.buffers["noise"], torch.from_numpy(case.noise))
    assert same_bits(prefix, pipeline.buffers["kv"][:, :, : prefix.shape[2]])


@pytest.mark.parametrize("poison", [1e6, torch.inf, torch.nan])
def test_rows_behind_the_prompt_do_not_matter(poison: float) -> None:
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    clean = pipeline.decide(case)
    used = 2 * TINY.view_tokens + 20
    kept = pipeline.buffers["kv"][:, :, :used].clone()
    pipeline.buffers["prompt_embedding"][20:] = poison
    assert same_bits(clean, pipeline.run("context", "action", length=20))
    assert same_bits(kept, pipeline.buffers["kv"][:, :, :used])
    pipeline.buffers["kv"][:, :, used : 2 * TINY.view_tokens + 32] = poison
    assert same_bits(clean, pipeline.run("action", length=20))
    pipeline.buffers["prompt_tokens"][20:] = 77
    assert same_bits(clean, pipeline.run("prompt", "context", "action", length=20))


def test_nothing_is_carried_in_scratch() -> None:
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    clean = pipeline.decide(case)
    for spec in pipeline.contract.buffers:
        if spec.role is Role.SCRATCH:
            pipeline.buffers[spec.name].fill_(torch.nan)
    pipeline.buffers["kv"].fill_(torch.nan)
    assert same_bits(clean, pipeline.decide(case))


@pytest.mark.parametrize("part", [*TWO, "tokens", "token order", "noise", "cameras swapped"])
def test_actions_depend_on_every_input(part: str) -> None:
    """Visibly, so that a stage that lost one of them cannot pass for right."""
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    images, tokens, noise = dict(case.images), list(case.tokens), case.noise.copy()
    if part in images:
        images[part] = 255 - images[part]
    elif part == "tokens":
        tokens = [4 + (token + 100) % (TINY.vocab - 4) for token in tokens]
    elif part == "token order":
        tokens.reverse()
    elif part == "noise":
        noise[0] += 0.5
    else:
        images = dict(zip(TWO, reversed(images.values()), strict=True))
    before = pipeline.decide(case)
    assert worst(pipeline.decide(Case(images, tokens, noise)), before) > 0.02


def test_op_counts() -> None:
    """Five ops an expert layer, eight a trunk layer and three for its last."""
    for name in ("tiny", "base"):
        config = POLICY.config(name)
        counts = {stage: len(ops) for stage, ops in count_ops(POLICY, name, TWO).items()}
        layers, steps = config.expert.depth, config.steps
        assert counts["prompt"] == 3
        assert counts["context"] == 2 + 1 + 7 * config.vision.depth + 2 + 1 + 8 * (layers - 1) + 3
        assert counts["action"] == steps * (5 * layers + 2)
    assert sum(counts[stage] for stage in ("context", "action")) <= 1400


def test_unknown_stage() -> None:
    contract = Pipeline(TINY).contract
    with pytest.raises(ContractError, match="'vision'"):
        POLICY.body(TINY, contract, "vision", contract.shapes[0])


def test_activations_keep_their_size_through_the_full_depth() -> None:
    """Random weights stand in for trained ones: nothing may vanish, blow up or saturate."""
    config = POLICY.config("tiny", vision_depth=27, trunk_depth=18, expert_depth=18)
    for seed in (0, 1):
        pipeline = Pipeline(config, VIEWS, weights=f"random:{seed}")
        actions = pipeline.decide(make_case(config, VIEWS, 20, seed=seed))
        rows = 3 * config.view_tokens + 20
        for name in ("vision_x", "trunk_x", "expert_x"):
            size = float(pipeline.buffers[name][:rows].pow(2).mean().sqrt())
            assert 0.3 < size < 10.0, f"{name}: {size}"
        kv = pipeline.buffers["kv"][:, :, :rows]
        assert float(kv.pow(2).mean(dim=(1, 2, 3)).sqrt().min()) > 0.5
        assert float(kv.pow(2).mean(dim=(1, 2, 3)).sqrt().max()) < 2.0
        assert 0.5 < float(actions.std()) < 2.0
