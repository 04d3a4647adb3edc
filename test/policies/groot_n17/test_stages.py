"""What the stages promise besides the numbers: repeatability, masking, retained context, counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from flashrt_core.contract import ContractError, Role, ShapeKey
from flashrt_core.policies.groot_n17 import POLICY
from flashrt_core.policies.groot_n17.layout import marks

from ..pipeline import count_ops, same_bits, worst
from .harness import TWO, Pipeline, make_case

TINY = POLICY.config("tiny")
LENGTH = marks(TINY, 2) + 20
KEPT = ("text_kv", "image_kv", "state_token")


def test_action_stage_alone_repeats_and_leaves_context_and_noise() -> None:
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    first = pipeline.decide(case)
    kept = {name: pipeline.buffers[name].clone() for name in KEPT}
    pipeline.buffers["actions"].fill_(torch.nan)
    assert same_bits(first, pipeline.run("action", length=LENGTH))
    assert torch.equal(pipeline.buffers["noise"], torch.from_numpy(case.noise))
    assert all(same_bits(kept[name], pipeline.buffers[name]) for name in KEPT)


def test_another_prompt_needs_no_new_tower() -> None:
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    other = make_case(TINY, TWO, 33, seed=3)
    whole = pipeline.decide(replace(case, tokens=other.tokens))
    pipeline.decide(case)
    pipeline.write(replace(case, tokens=other.tokens))
    stages = ("prompt", "context", "action")
    assert same_bits(whole, pipeline.run(*stages, length=len(other.tokens)))


@pytest.mark.parametrize("poison", [1e6, torch.inf, torch.nan])
def test_rows_behind_the_prompt_do_not_matter(poison: float) -> None:
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    clean = pipeline.decide(case)
    pipeline.buffers["text_kv"][LENGTH:] = poison
    assert same_bits(clean, pipeline.run("action", length=LENGTH))
    pipeline.buffers["prompt_tokens"][LENGTH:] = 77
    assert same_bits(clean, pipeline.run("prompt", "context", "action", length=LENGTH))
    # Padding that is finite reaches no row in use, whatever it is: the prompt stage makes zeros.
    pipeline.buffers["prompt_embedding"][LENGTH:] = 3.0
    assert same_bits(clean, pipeline.run("context", "action", length=LENGTH))


def test_nothing_is_carried_in_scratch_or_state() -> None:
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    clean = pipeline.decide(case)
    for spec in pipeline.contract.buffers:
        buffer = pipeline.buffers[spec.name]
        if spec.role in (Role.SCRATCH, Role.STATE) and buffer.is_floating_point():
            buffer.fill_(torch.nan)
    assert same_bits(clean, pipeline.decide(case))


@pytest.mark.parametrize("part", [*TWO, "tokens", "order", "state", "noise", "cameras swapped"])
def test_actions_depend_on_every_input(part: str) -> None:
    """Visibly, so that a stage that lost one of them cannot pass for right."""
    pipeline, case = Pipeline(TINY), make_case(TINY, TWO, 20)
    images, tokens = dict(case.images), list(case.tokens)
    state, noise = case.state.copy(), case.noise.copy()
    if part in images:
        images[part] = 255 - images[part]
    elif part == "tokens":
        tokens = [(token + 100) % TINY.vocab for token in tokens]
    elif part == "order":
        tokens.reverse()
    elif part == "state":
        state[0, 0] += 0.5
    elif part == "noise":
        noise[0] += 0.5
    else:
        images = dict(zip(TWO, reversed(images.values()), strict=True))
    before = pipeline.decide(case)
    changed = replace(case, images=images, tokens=tokens, state=state, noise=noise)
    assert worst(pipeline.decide(changed), before) > 0.02


def test_op_counts() -> None:
    """Four ops a block of the head; keys and values of the context are two products."""
    config = POLICY.config("base")
    ops = count_ops(POLICY, "base", TWO)
    assert len(ops["prompt"]) == 3
    assert len(ops["action"]) == config.steps * (4 * config.head.depth + 5)
    features = len(config.vision.features)
    rows = 2 + 3  # pieces of the prompt's rows: two images, three runs of text
    layers = 7 * config.text.depth + features + 7 * config.adapter.depth
    assert len(ops["context"]) == rows + layers + rows + 2 * 2 + 2
    counts = Counter(ops["vision"])
    assert counts["image_patches"] == 2 and counts["rope_attention"] == config.vision.depth
    assert len(ops["vision"]) == 2 + 1 + 7 * config.vision.depth + 3 * (features + 1)


def test_unknown_stage() -> None:
    contract = Pipeline(TINY).contract
    with pytest.raises(ContractError, match="'tower'"):
        POLICY.body(TINY, contract, "tower", contract.shapes[0])


@pytest.mark.parametrize(("views", "bucket"), [(TWO[::-1], 64), (TWO, 8), (TWO, 200)])
def test_what_no_plan_can_run(views: tuple[str, ...], bucket: int) -> None:
    shape = ShapeKey(2, bucket, TINY.horizon, TINY.steps)
    with pytest.raises(ContractError, match=r"order of|8 to 128 tokens|9 to 128 tokens"):
        POLICY.contract(TINY, (shape,), views, "fp32")


def test_activations_keep_their_size_through_the_full_depth() -> None:
    """Random weights stand in for trained ones: nothing may vanish, blow up or saturate."""
    config = POLICY.config(
        "tiny", vision_depth=24, vision_features=(5, 11, 17), text_depth=16, adapter_depth=4,
        head_depth=32,
    )  # fmt: skip
    for seed in (0, 1):
        pipeline = Pipeline(config, weights=f"random:{seed}")
        actions = pipeline.decide(make_case(config, TWO, 20, seed=seed))
        rows = 2 * config.view_tokens + LENGTH
        for name in ("vision_x", "text_x", "adapter_x", "head_x"):
            size = float(pipeline.buffers[name][:rows].pow(2).mean().sqrt())
            assert 0.3 < size < 10.0, f"{name}: {size}"
        for name, count in (("text_kv", LENGTH), ("image_kv", 2 * config.view_tokens)):
            size = float(pipeline.buffers[name][:count].pow(2).mean().sqrt())
            assert 0.5 < size < 2.0, f"{name}: {size}"
        assert 0.5 < float(actions.std()) < 3.0
        assert np.isfinite(actions.numpy()).all()
