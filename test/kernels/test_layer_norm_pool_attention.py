"""Rows that attend over a pool which theirs are added to, as one op: what ops do, and launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.kernels.attention import attention
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear
from flashrt_core.kernels.layer_norm_pool_attention import layer_norm_pool_attention
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv
from test.kernels.signatures import OPS, CheckingLauncher, Lane

from .helpers import DTYPES, normal, run

EPS = 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("segments", [1, 2])
def test_it_is_the_three_ops(dtype: torch.dtype, segments: int) -> None:
    heads, dim, depth, rows, keys = 2, 16, 40, 4, 12
    width = heads * dim
    x, weight = (normal(n, depth, seed=n, dtype=dtype) for n in (rows, 3 * width))
    norm = (1 + normal(depth, seed=2, std=0.3), normal(depth, seed=3))
    bias, rope = normal(3 * width, seed=4, dtype=dtype), normal(rows, dim, seed=5)
    places = torch.tensor([5, 0, 8, 11], dtype=torch.int32)
    gains, added = normal(2, width, seed=6), normal(keys, seed=7)
    pool = normal(2, keys, width, seed=8, dtype=dtype)
    apart = pool.clone()
    made = [torch.empty(rows, n * width, dtype=dtype) for n in (3, 1, 3, 1)]
    out, want = torch.empty(2, rows, width, dtype=dtype)
    ends: dict[str, Any] = {"eps": EPS, "head_dim": dim}
    told: dict[str, Any] = {"scale": 0.25, "segments": segments}
    around = (rope, places, *gains, added)
    run(
        lambda lane: layer_norm_pool_attention(
            lane, x, *norm, weight, bias, *around, *made[:2], *pool, out, **ends, **told
        )
    )
    turn: dict[str, Any] = {"q_norm": gains[0], "k_norm": gains[1], "rows": places, **ends}
    run(lambda lane: layer_norm_linear(lane, x, *norm, weight, bias, made[2], eps=EPS))
    run(lambda lane: qkv_rope_kv(lane, made[2], rope, made[3], *apart, **turn))
    each = [part.view(-1, heads, dim) for part in (made[3], *apart)]
    run(lambda lane: attention(lane, *each, want, key_bias=added, **told))
    assert torch.equal(out, want) and torch.equal(pool, apart)
    assert bool(torch.isfinite(out).all())


def bf16(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


APART = ["qkv_row_norm_rope_kv_bf16", "attention_heads_d128_biased_bf16_cluster"]


@pytest.mark.parametrize(
    ("architecture", "rows", "segments", "kernels"),
    [
        (
            90,
            16,
            1,
            [
                "layer_norm_linear_squares_k3072_144_bf16_sm90",
                "attention_heads_d128_pooled_bf16_hopper",
            ],
        ),
        (90, 16, 2, ["layer_norm_linear_squares_k3072_144_bf16_sm90"]),
        (90, 17, 1, ["layer_norm_bf16", APART[0], "attention_heads_d128_biased_bf16_cluster"]),
        (100, 16, 1, ["layer_norm_bf16", *APART]),
        (80, 16, 1, ["layer_norm_bf16", APART[0], "attention_heads_d128_biased_bf16"]),
    ],
)
def test_two_kernels_where_they_fit(
    architecture: int, rows: int, segments: int, kernels: list[str]
) -> None:
    launcher, D = CheckingLauncher(architecture), 3072
    norm, pool = torch.empty(D), (bf16(2160, D), bf16(2160, D))
    places, rope = torch.zeros(rows, dtype=torch.int32), torch.empty(rows, 128)
    product = (bf16(rows, D), norm, norm, bf16(3 * D, D), bf16(3 * D))
    around = (rope, places, norm, norm, torch.empty(2160))
    layer_norm_pool_attention(
        Lane(launcher),
        *product,
        *around,
        bf16(rows, 3 * D),
        bf16(rows, D),
        *pool,
        bf16(rows, D),
        head_dim=128,
        eps=EPS,
        scale=1.0,
        segments=segments,
    )
    found = [launch.kernel for launch in launcher.launches]
    assert found[: len(kernels)] == kernels
    if "pooled" in found[-1]:
        shared = launcher.launches[-1].shared_bytes
        assert f"Split128::kSharedBytes == {shared}," in (OPS / "attention_heads.cu").read_text()
        assert launcher.launches[-1].grid == (8, 24, segments)
        assert launcher.launches[-1].cluster == 8
