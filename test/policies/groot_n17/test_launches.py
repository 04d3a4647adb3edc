"""What a decision launches on a GPU, without one: as the sources declare it, and how much."""

from __future__ import annotations

import pytest
import torch

from flashrt_core.policies.groot_n17 import POLICY
from test.kernels.signatures import CheckingLauncher, Lane

#: Kernels of a decision on the architecture that it was built for.
MOST = 900


def launched(
    views: int, precision: str, architecture: int, preset: str = "base"
) -> dict[str, CheckingLauncher]:
    """What every stage launches; memory is set aside and never touched."""
    sizes = {"vocab": 2000, "prompt_buckets": (32,)} if preset == "base" else {}
    config = POLICY.config(preset, **sizes)
    shapes = POLICY.shapes(config, views)
    contract = POLICY.contract(config, shapes, POLICY.slots[:views], precision)
    buffers = {
        spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.value))
        for spec in contract.buffers
    }
    found = {}
    for stage in contract.stages:
        found[stage.name] = CheckingLauncher(architecture)
        POLICY.body(config, contract, stage.name, shapes[0])(Lane(found[stage.name]), buffers)
    return found


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("views", [1, 2])
def test_kernels_of_a_decision(views: int, precision: str) -> None:
    stages = launched(views, precision, 90)
    counts = {name: len(each.launches) + each.products for name, each in stages.items()}
    assert sum(counts.values()) - counts["prompt"] <= MOST
    # The head's products stream their weights once, none through the library.
    assert stages["action"].products == 0
    kernels = {launch.kernel for each in stages.values() for launch in each.launches}
    assert "attention_rows_bf16" not in kernels
    # Rows of text are normalised and turned by the attention that reads them.
    assert "qkv_norm_rope_kv_bf16" not in kernels
    # A block of the head is four kernels, in the plan with 8 bits as well.
    action = [launch.kernel for launch in stages["action"].launches]
    assert sum("layer_norm_attention" in kernel for kernel in action) == 4 * 32


@pytest.mark.parametrize(
    ("architecture", "precision"), [(80, "bf16"), (90, "bf16"), (90, "fp8"), (120, "bf16")]
)
def test_every_op_has_a_launcher(architecture: int, precision: str) -> None:
    stages = launched(2, precision, architecture)
    assert all(each.launches for each in stages.values())
    if precision == "fp8":
        assert any("_fp8" in launch.kernel for launch in stages["context"].launches)
        head = {launch.kernel for launch in stages["action"].launches}
        assert {
            "layer_norm_attention_self_k1536_d48_fp8_sm90",
            "layer_norm_linear_k1536_96_fp8_into_fp8_sm90",
            "linear_k6144_96_fp8_sm90",
        } <= head
