"""Kernels that read what is kept before the ones in front have ended, and norms behind additions.

As in test_cuda_ops.py: inputs are bf16, the reference gets the same numbers in float32.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv, qkv_rope_kv_ref
from flashrt_core.kernels.quantised import E4M3
from test.gpu import PLACE, error, run, runs_kernels

from .test_cuda_ops import CHAINED, F32, PROBABILITIES, ROUNDED, empty, expected, twice

pytestmark = runs_kernels


@pytest.mark.parametrize(
    ("rows", "keys", "runs", "written"),
    [
        (16, 600, 1, True),
        (9, 259, 2, True),
        (100, 300, 1, True),
        (16, 64, 1, False),
        (9, 40, 2, False),
        (128, 64, 2, False),
        (40, 65, 1, False),
        (16, 300, 2, False),
    ],
)
@pytest.mark.parametrize("hidden", [0.0, 0.6])
def test_keys_of_an_earlier_stage(
    device: Any, draw: Any, rows: int, keys: int, runs: int, written: bool, hidden: float
) -> None:
    q, heads = draw(runs * rows, 2, 128), 2
    k, v = (draw(runs * keys, heads, 128) for _ in range(2))
    bias = draw(runs * keys, dtype=F32)
    bias[torch.rand(len(bias), device=PLACE) < hidden] = -inf
    bias[keys // 2 :: keys] = 6.0
    none = bias == -inf
    k[none], v[none] = nan, inf
    some = torch.randperm(keys, device=PLACE)[:rows].to(torch.int32)
    fresh = torch.cat([some + run * keys for run in range(runs)]) if written else None
    out, want = empty(runs * rows, heads * 128), expected((runs * rows, heads * 128))
    options: dict[str, Any] = {"scale": 128**-0.5, "segments": runs, "key_bias": bias}
    twice(
        device, out, lambda lane: attention(lane, q, k, v, out, kept=True, fresh=fresh, **options)
    )
    wide = [each.float().nan_to_num(0.0, 0.0, 0.0) for each in (q, k, v)]
    attention_ref(*wide, want, **options)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize("heads", [24, 8])
def test_rows_of_an_earlier_stage(device: Any, draw: Any, heads: int) -> None:
    rows, dim, pool = 5, 128, 9
    width = heads * dim
    qkv, rope = draw(rows, 3 * width), draw(rows, dim, dtype=F32)
    places = torch.randperm(pool, device=PLACE)[:rows].to(torch.int32)
    norms = {f"{name}_norm": draw(width, dtype=F32) for name in "qk"}
    options: dict[str, Any] = {"head_dim": dim, "rows": places, "eps": 1e-6, **norms}
    q, caches = empty(rows, width), [draw(pool, width) for _ in range(2)]
    want, wanted = expected((rows, width)), [cache.float() for cache in caches]
    run(device, lambda lane: qkv_rope_kv(lane, qkv, rope, q, *caches, **options, kept=True))
    qkv_rope_kv_ref(qkv.float(), rope, want, *wanted, **options)
    assert error(q, want) < ROUNDED
    for cache, right in zip(caches, wanted, strict=True):
        assert error(cache, right) < ROUNDED


@pytest.mark.parametrize("into", [torch.bfloat16, E4M3])
def test_additions_and_their_norm(device: Any, draw: Any, into: torch.dtype) -> None:
    rows, width, depth = 70, 1032, 64
    x, weight, bias = draw(rows, depth), draw(width, depth, scale=depth**-0.5), draw(width)
    gate, gain, shift = (draw(width, dtype=F32) for _ in range(3))
    out, normal = draw(rows, width), torch.zeros(rows, width, device=PLACE).to(into)
    scale = torch.tensor([2.0**-4], device=PLACE) if into is E4M3 else None
    want, wanted = out.float(), expected((rows, width))
    ends: dict[str, Any] = {"norm_weight": gain, "norm_bias": shift, "eps": 1e-6}
    args = (x, weight, gate)
    some = {"bias": bias, "normal": normal, "normal_scale": scale, **ends}
    run(device, lambda lane: linear_gated_residual(lane, *args, out, **some))
    wide = [each.float() for each in args]
    linear_gated_residual_ref(*wide, want, bias=bias.float(), normal=wanted, **ends)
    assert error(out, want) < CHAINED
    if scale is None:
        assert error(normal, wanted) < CHAINED
    else:
        assert error(normal.float() * scale, wanted) < 0.05
