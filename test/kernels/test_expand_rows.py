"""8-bit weights where no kernel reads them: expanded to bf16 in front of the product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu, ada_rms_norm_geglu_ref
from flashrt_core.kernels.ada_rms_norm_qkv_rope_kv import (
    ada_rms_norm_qkv_rope_kv,
    ada_rms_norm_qkv_rope_kv_ref,
)
from flashrt_core.kernels.glu_linear import glu_linear, glu_linear_ref
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.quantised import E4M3, quantise_rows
from test.gpu import PLACE, error, run, runs_kernels
from test.kernels.signatures import CheckingLauncher, Lane

F32 = torch.float32
CHAINED = 8e-3  # two or three roundings to bf16, that of the weight among them


def on_gpu(test: Any) -> Any:
    """Marks a test that needs a GPU."""
    for mark in runs_kernels:
        test = mark(test)
    return test


def empty(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"), device=PLACE).bfloat16()


@pytest.mark.parametrize("stored", [torch.int8, E4M3], ids=["i8", "fp8"])
def test_8_bit_weights_of_any_size_are_expanded_in_front(stored: torch.dtype) -> None:
    """Each op of products with wide rows, where no kernel reads the weight as it is."""
    launcher = CheckingLauncher()
    lane, scale = Lane(launcher), torch.ones(96)
    x, weight = torch.empty(8, 64).bfloat16(), torch.empty(96, 64).to(stored)
    row, out = torch.empty(64), torch.empty(8, 96).bfloat16()
    linear(lane, x, weight, None, torch.empty(8, 96), weight_scale=scale)
    glu_linear(lane, x, weight, out[:, :48], weight_scale=scale)
    linear_gated_residual(lane, x, weight, torch.empty(96), out, weight_scale=scale)
    ada_rms_norm_geglu(
        lane, x, row, row, weight, torch.empty(8, 48).bfloat16(), eps=1e-6, weight_scale=scale
    )
    q, k, v = (torch.empty(8, 32).bfloat16() for _ in range(3))
    ada_rms_norm_qkv_rope_kv(
        lane, x, row, row, weight, torch.empty(8, 32), q, k, v,
        head_dim=32, eps=1e-6, weight_scale=scale,
    )  # fmt: skip
    entry = "expand_rows_i8" if stored is torch.int8 else "expand_rows_e4m3"
    expansions = [launch for launch in launcher.launches if launch.kernel == entry]
    assert [launch.args[1] is scale for launch in expansions] == [True] * 5
    assert launcher.products == 5


@on_gpu
@pytest.mark.parametrize("stored", [torch.int8, E4M3], ids=["i8", "fp8"])
@pytest.mark.parametrize(("rows", "width", "depth"), [(10, 96, 64), (7, 48, 128), (50, 4304, 1152)])
def test_8_bit_weights_of_any_size(
    device: Any, draw: Any, rows: int, width: int, depth: int, stored: torch.dtype
) -> None:
    """Expanded to bf16 in front of the product, in every op that takes such weights."""
    x = draw(rows, depth)
    weight, scale = quantise_rows(draw(width, depth, scale=depth**-0.5, dtype=F32), stored)
    out, want = empty(rows, width), empty(rows, width)
    run(device, lambda lane: linear(lane, x, weight, None, out, weight_scale=scale))
    linear_ref(x, weight, None, want, weight_scale=scale)
    assert error(out, want) < CHAINED
    out, want = empty(rows, width // 2), empty(rows, width // 2)
    run(device, lambda lane: glu_linear(lane, x, weight, out, weight_scale=scale))
    glu_linear_ref(x, weight, want, weight_scale=scale)
    assert error(out, want) < CHAINED
    gate, out = draw(width, dtype=F32), draw(rows, width)
    want = out.clone()
    run(device, lambda lane: linear_gated_residual(lane, x, weight, gate, out, weight_scale=scale))
    linear_gated_residual_ref(x, weight, gate, want, weight_scale=scale)
    assert error(out, want) < CHAINED
    shift, gain = draw(depth, scale=0.1, dtype=F32), draw(depth, scale=0.1, dtype=F32)
    given: dict[str, Any] = {"eps": 1e-6, "weight_scale": scale}
    out, want = empty(rows, width // 2), empty(rows, width // 2)
    run(device, lambda lane: ada_rms_norm_geglu(lane, x, gain, shift, weight, out, **given))
    ada_rms_norm_geglu_ref(x, gain, shift, weight, want, **given)
    assert error(out, want) < CHAINED


@on_gpu
@pytest.mark.parametrize("stored", [torch.int8, E4M3], ids=["i8", "fp8"])
def test_8_bit_weights_with_several_key_heads(device: Any, draw: Any, stored: torch.dtype) -> None:
    rows, depth, dim = 10, 128, 32
    x, rope = draw(rows, depth), draw(rows, dim, dtype=F32)
    shift, gain = draw(depth, scale=0.1, dtype=F32), draw(depth, scale=0.1, dtype=F32)
    weight, scale = quantise_rows(draw(6 * dim, depth, scale=depth**-0.5, dtype=F32), stored)
    given: dict[str, Any] = {"head_dim": dim, "eps": 1e-6, "weight_scale": scale}
    made, wanted = ([empty(rows, n * dim) for n in (4, 1, 1)] for _ in range(2))
    run(
        device,
        lambda lane: ada_rms_norm_qkv_rope_kv(lane, x, gain, shift, weight, rope, *made, **given),
    )
    ada_rms_norm_qkv_rope_kv_ref(x, gain, shift, weight, rope, *wanted, **given)
    assert all(error(out, want) < CHAINED for out, want in zip(made, wanted, strict=True))
