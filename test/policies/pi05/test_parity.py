"""The stages against the reference, which knows neither ops, packing, tables nor dropped rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashrt_core.policies.pi05 import POLICY, Pi05Config
from flashrt_core.policies.pi05.reference import Reference, ReferenceResult
from flashrt_core.weights import open_weights

from .harness import TWO, VIEWS, Case, Pipeline, make_case, spread, worst

TINY = POLICY.config("tiny")
CUT = {"vision_depth": 2, "trunk_depth": 2, "expert_depth": 2}
ACTION_TOLERANCE = 1e-5  # of the range of the actions: what the project promises in float32
# The float32 of both sides leaves some 3e-6 on keys and values of size 1..4.
KV_TOLERANCE = 2e-5


def check(
    pipeline: Pipeline, case: Case, expected: ReferenceResult, tolerance: float = ACTION_TOLERANCE
) -> None:
    actions = pipeline.decide(case)
    assert worst(actions, expected.actions) <= tolerance * spread(expected.actions)
    rows = int(expected.valid.sum())
    for part, reference in enumerate((expected.keys, expected.values)):
        cached = pipeline.buffers["kv"][:, part, :rows]
        assert worst(cached, reference[:, expected.valid]) <= KV_TOLERANCE


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(TINY, Pipeline(TINY).source)


@pytest.mark.parametrize("length", [1, 17, 32, 33, 64, 65, 127, 128])
def test_prompt_lengths_across_all_buckets(reference: Reference, length: int) -> None:
    case = make_case(TINY, TWO, length, seed=length)
    check(Pipeline(TINY), case, reference.decide(case.images, case.tokens, case.noise))


@pytest.mark.parametrize("views", [VIEWS[:1], VIEWS[1:2], TWO, VIEWS[::2], VIEWS[1:], VIEWS])
def test_cameras_in_use(reference: Reference, views: tuple[str, ...]) -> None:
    case = make_case(TINY, views, 21, seed=5)
    expected = reference.decide(case.images, case.tokens, case.noise)
    assert int(expected.valid.sum()) == len(views) * TINY.view_tokens + 21
    check(Pipeline(TINY, views), case, expected)


@pytest.mark.parametrize(
    "overrides",
    [
        {"horizon": 1, "steps": 1},
        {"horizon": 50, "steps": 4},
        {"trunk_depth": 1, "expert_depth": 1, "vision_depth": 1},
        {"image_size": 84, "action_dim": 7, "trunk_heads": 3, "expert_heads": 5},
        {"vision_heads": 2, "vision_ffn": 37, "trunk_ffn": 41, "expert_ffn": 43},
        {"trunk_head_dim": 6, "expert_head_dim": 6, "rope_theta": 100.0, "eps": 1e-3},
    ],
)
def test_other_sizes(overrides: dict[str, object]) -> None:
    config = POLICY.config("tiny", **overrides)
    pipeline, case = Pipeline(config), make_case(config, TWO, 20)
    reference = Reference(config, pipeline.source)
    check(pipeline, case, reference.decide(case.images, case.tokens, case.noise))


def test_full_depth_at_reduced_width() -> None:
    config = POLICY.config("tiny", vision_depth=27, trunk_depth=18, expert_depth=18)
    pipeline, case = Pipeline(config), make_case(config, TWO, 20)
    reference = Reference(config, pipeline.source)
    check(pipeline, case, reference.decide(case.images, case.tokens, case.noise))


@pytest.fixture(scope="module")
def base_cut() -> tuple[Pi05Config, Case, ReferenceResult]:
    """Base widths, two layers of everything, a small vocabulary to save memory; four steps."""
    config = POLICY.config("base", **CUT, vocab=1024, steps=4)
    case = make_case(config, TWO, 31)
    source = open_weights("random:0", POLICY.tensors(config))
    return config, case, Reference(config, source).decide(case.images, case.tokens, case.noise)


def test_two_layer_cut_of_base_widths(base_cut: tuple[Pi05Config, Case, ReferenceResult]) -> None:
    config, case, expected = base_cut
    check(Pipeline(config), case, expected)


def cosine_of_rows(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double(), b.double(), dim=1).min())


def test_bf16_at_base_widths(base_cut: tuple[Pi05Config, Case, ReferenceResult]) -> None:
    """bf16 rounds each result by up to 2^-8 = 0.4 %; over a layer's chain these add up at random.

    So the actions must agree to about one such unit of their range, and in direction to 1e-4.
    """
    config, case, expected = base_cut
    actions = Pipeline(config, precision="bf16").decide(case)
    error = worst(actions, expected.actions) / spread(expected.actions)
    assert 1e-6 < error <= 2.0**-8, "below: it was not bf16 at all"
    assert cosine_of_rows(actions, expected.actions) >= 0.9999


def test_bf16_tiny(reference: Reference) -> None:
    """Narrow rows average less of the rounding away: two units."""
    case = make_case(TINY, TWO, 20)
    expected = reference.decide(case.images, case.tokens, case.noise)
    actions = Pipeline(TINY, precision="bf16").decide(case)
    assert 1e-6 < worst(actions, expected.actions) / spread(expected.actions) <= 2 * 2.0**-8
    assert cosine_of_rows(actions, expected.actions) >= 0.9995


def test_float64_reference_agrees_with_float32(reference: Reference) -> None:
    case = make_case(TINY, TWO, 20)
    single = reference.decide(case.images, case.tokens, case.noise)
    double = Reference(TINY, Pipeline(TINY).source, torch.float64)
    exact = double.decide(case.images, case.tokens, case.noise)
    assert exact.actions.dtype == torch.float64
    assert worst(single.actions, exact.actions) <= 1e-6 * spread(exact.actions)


def test_the_comparison_can_fail(reference: Reference) -> None:
    """One token, one pixel or one weight more: far outside the tolerance."""
    case = make_case(TINY, TWO, 20)
    expected = reference.decide(case.images, case.tokens, case.noise)
    limit = 10 * ACTION_TOLERANCE * spread(expected.actions)
    pipeline = Pipeline(TINY)
    tokens = [*case.tokens[:-1], case.tokens[-1] ^ 1]
    assert worst(pipeline.decide(Case(case.images, tokens, case.noise)), expected.actions) > limit
    assert worst(pipeline.decide(case), expected.actions) <= limit / 10
    pipeline.buffers["expert.modulation"][3, 2, 0, 5] += 0.05
    assert worst(pipeline.decide(case), expected.actions) > limit / 10
