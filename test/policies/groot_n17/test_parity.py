"""The stages against the reference, which knows neither ops, packing nor tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flashrt_core.policies.groot_n17 import POLICY
from flashrt_core.policies.groot_n17.reference import Reference
from flashrt_core.policies.reference import ReferenceGuide

from ..pipeline import least_cosine, spread, worst
from .harness import TWO, VIEWS, Case, Pipeline, make_case, referred

TINY = POLICY.config("tiny")
ACTION_TOLERANCE = 1e-5  # of the range of the actions: what the project promises in float32
# Their float32 leaves some 4e-6 on keys and values of size 1..4.
KV_TOLERANCE = 2e-5


def check(pipeline: Pipeline, case: Case, reference: Reference) -> None:
    context, expected = referred(case, reference)
    actions = pipeline.decide(case)
    assert worst(actions, expected) <= ACTION_TOLERANCE * spread(expected)
    for kind, rows in (
        ("text", context.rows[~context.images]),
        ("image", context.rows[context.images]),
    ):
        wanted = reference.keys_values(kind, rows)
        assert worst(pipeline.buffers[f"{kind}_kv"][: len(rows)], wanted) <= KV_TOLERANCE


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(TINY, Pipeline(TINY).source)


@pytest.mark.parametrize("words", [2, 30, 57, 58, 121])
def test_prompt_lengths_across_all_buckets(reference: Reference, words: int) -> None:
    check(Pipeline(TINY), make_case(TINY, TWO, words, seed=words), reference)


@pytest.mark.parametrize("views", [VIEWS[:1], VIEWS[2:3], VIEWS[:3], VIEWS])
def test_cameras_in_use(reference: Reference, views: tuple[str, ...]) -> None:
    check(Pipeline(TINY, views), make_case(TINY, views, 21, seed=5), reference)


@pytest.mark.parametrize(
    "overrides",
    [
        {"horizon": 1, "steps": 1, "embodiment": 3},
        {"horizon": 50, "steps": 10, "action_dim": 7, "state_width": 5},
        {"head_depth": 3, "text_depth": 1, "vision_features": (1,), "vision_depth": 2},
        {"head_depth": 6, "adapter_depth": 1, "vision_features": (0, 1, 2), "text_depth": 4},
        {"image_size": 96, "vision_table": 3, "vision_heads": 4, "vision_ffn": 37},
        {"merge": 1, "image_size": 32, "lead": 0, "text_kv_heads": 1, "text_ffn": 41},
        {"text_head_dim": 12, "text_sections": (2, 2, 2), "rope_theta": 100.0, "eps": 1e-3},
        {"head_width": 72, "head_heads": 3, "head_ffn": 50, "head_hidden": 20, "head_time": 6},
        {"adapter_heads": 8, "adapter_ffn": 30, "adapter_eps": 1e-3, "numerics": "official"},
    ],
)
def test_other_sizes(overrides: dict[str, object]) -> None:
    config = POLICY.config("tiny", **overrides)
    pipeline = Pipeline(config)
    check(pipeline, make_case(config, TWO, 20), Reference(config, pipeline.source))


def test_guided_steps() -> None:
    """Rows that are kept end as they were; the others as the reference guides them."""
    config = POLICY.config("tiny", real_time_chunking=True)
    pipeline, case = Pipeline(config), make_case(config, TWO, 20)
    draw = np.random.default_rng(4)
    previous = draw.standard_normal(case.noise.shape, dtype=np.float32)
    weight = draw.random(case.noise.shape, dtype=np.float32)
    weight[:3], weight[-2:] = 1.0, 0.0
    guided = replace(case, guide=ReferenceGuide(previous, weight))
    reference = Reference(config, pipeline.source)
    check(pipeline, guided, reference)
    actions = pipeline.decide(guided)
    assert np.array_equal(actions[:3].numpy(), previous[:3])
    check(pipeline, case, reference)


def test_wide_rows_in_float32_and_bf16() -> None:
    """Half the width of base, its heads' widths, a few layers of everything.

    bf16 rounds each result by up to 2^-8 = 0.4 %; the actions differ by about one such unit.
    """
    config = POLICY.config(
        "base", vision_width=512, vision_heads=8, vision_ffn=1024, vision_depth=1,
        vision_features=(0,), text_width=768, text_heads=8, text_kv_heads=4, text_ffn=1536,
        text_depth=2, adapter_heads=12, adapter_ffn=1536, adapter_depth=1, head_width=768,
        head_heads=16, head_ffn=1536, head_hidden=512, head_depth=4, vocab=1024, embodiments=1,
        embodiment=0, steps=2,
    )  # fmt: skip
    views = VIEWS[:1]
    case, pipeline = make_case(config, views, 12), Pipeline(config, views)
    expected = referred(case, Reference(config, pipeline.source))[1]
    assert worst(pipeline.decide(case), expected) <= ACTION_TOLERANCE * spread(expected)
    rounded = Pipeline(config, views, "bf16", pipeline.source).decide(case)
    assert 1e-6 < worst(rounded, expected) / spread(expected) <= 2.0**-8
    assert least_cosine(rounded, expected) >= 0.9999


def test_float64_reference_agrees_with_float32(reference: Reference) -> None:
    case = make_case(TINY, TWO, 20)
    single = referred(case, reference)[1]
    exact = referred(case, Reference(TINY, Pipeline(TINY).source, torch.float64))[1]
    assert exact.dtype == torch.float64
    assert worst(single, exact) <= 2e-6 * spread(exact)


def test_the_comparison_can_fail(reference: Reference) -> None:
    """One token, one number of the state, one weight of a table more: far outside the tolerance."""
    case = make_case(TINY, TWO, 20)
    expected = referred(case, reference)[1]
    limit = ACTION_TOLERANCE * spread(expected)
    pipeline = Pipeline(TINY)
    tokens = [*case.tokens[:-1], case.tokens[-1] ^ 1]
    assert worst(pipeline.decide(replace(case, tokens=tokens)), expected) > 10 * limit
    state = case.state.copy()
    state[0, 3] += 0.01
    assert worst(pipeline.decide(replace(case, state=state)), expected) > 10 * limit
    assert worst(pipeline.decide(case), expected) <= limit
    pipeline.buffers["head.modulation"][2, 3, 0, 5] += 0.05
    assert worst(pipeline.decide(case), expected) > limit
