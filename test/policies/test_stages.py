"""What the stages of every policy promise besides the numbers."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from .groot_n17 import harness as groot_n17
from .pi05 import harness as pi05
from .pipeline import Case, StagePipeline, same_bits, spread, worst

#: The words of a long prompt; what another bucket's roundings may do, of the range of the actions.
LONG = {pi05: 60, groot_n17: 80}
ROUNDING = {pi05: 1e-6, groot_n17: 2e-6}


@pytest.fixture(params=LONG, ids=lambda module: module.__name__.split(".")[-2])
def policy(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_decisions_repeat_bit_for_bit_whatever_came_between(
    policy: ModuleType, precision: str
) -> None:
    config, two = policy.POLICY.config("tiny"), policy.TWO
    make: Callable[..., StagePipeline] = policy.Pipeline
    pipeline = make(config, precision=precision)
    case: Case = policy.make_case(config, two, 20, seed=1)
    first = pipeline.decide(case)
    assert not same_bits(first, pipeline.decide(policy.make_case(config, two, LONG[policy], 2)))
    assert same_bits(first, pipeline.decide(case))
    assert same_bits(first, make(config, precision=precision).decide(case))


def test_a_larger_bucket_gives_the_same_actions(policy: ModuleType) -> None:
    config = policy.POLICY.config("tiny")
    pipeline: StagePipeline = policy.Pipeline(config)
    case: Case = policy.make_case(config, policy.TWO, 20)
    small, *larger = [pipeline.decide(case, shape) for shape in pipeline.contract.shapes]
    assert larger
    for actions in larger:
        assert worst(actions, small) <= ROUNDING[policy] * spread(small)
