"""Action steps with weights of four bits: what they launch, and what they give on the device."""

from __future__ import annotations

import pytest

from flashrt_core.policies.lingbot_va import POLICY
from flashrt_core.weights import open_weights
from test.gpu import error
from test.parity import lingbot as parity

from .harness import Pipeline
from .test_cuda import CUT, References, kernels, needs_gpu, needs_kernels
from .test_launches import launched
from .test_reference import frames, noise


def test_a_block_of_the_actions_is_eight_kernels() -> None:
    """As with whole weights; none is expanded."""
    kernels = [launch.kernel for launch in launched("action", precision="int4").launches]
    first = kernels.index("layer_norm_linear_squares_k3072_192_16_w4_sm90")
    assert kernels[first : first + 8] == [
        "layer_norm_linear_squares_k3072_192_16_w4_sm90",
        "attention_heads_d128_pooled_bf16_hopper",
        "linear_k3072_128_16_w4_sm90",
        "layer_norm_linear_squares_k3072_128_16_w4_sm90",
        "attention_heads_d128_normed_short_bf16_hopper",
        "linear_k3072_128_16_w4_sm90",
        "layer_norm_linear_k3072_256_16_w4_sm90",
        "linear_k14336_128_16_w4_sm90",
    ]
    assert "expand_rows_w4" not in kernels


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(parity.CASES[0], marks=needs_kernels),
        pytest.param(CUT, marks=[needs_gpu, pytest.mark.timeout(300)]),
    ],
    ids=["row", "cut"],
)
def test_episodes_are_those_of_the_references(case: parity.Case) -> None:
    """Up to the roundings of bf16: what these leave of the same episode without four bits."""
    source = parity.source(case) if case is not CUT else None
    source = source or open_weights("random:0", POLICY.tensors(case.config))
    with kernels() as device:
        plans = (("fp32", None), ("bf16", None), ("int4", None), ("int4", device))
        pipelines = [
            Pipeline(case.config, case.views, plan, source, place or References())
            for plan, place in plans
        ]
        executed, used = None, list(case.config.channels)
        for each in pipelines:
            each.set_prompt(*parity.prompts(case), 0)
        for chunk in range(2):
            inputs = (frames(case, chunk), noise(case, chunk), executed, 0)
            exact, wide, wanted, found = (each.decide(*inputs)[:, used] for each in pipelines)
            rounding, own = error(wide, exact), error(wanted, exact)
            print(case.name, chunk, rounding, own, error(found, wanted))
            assert error(found, wanted) < 2 * rounding + 1e-3
            assert error(found, wanted) < own, "far less than four bits cost"
            executed = parity.executed(case, chunk, pipelines[0].read("actions").numpy())
