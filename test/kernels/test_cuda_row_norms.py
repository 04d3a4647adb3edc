"""Kernels of attention whose norms are of whole rows, which their product has left sums for.

As in test_cuda_ops.py. The rows are few and the weights as deep as LingBot-VA's: elsewhere the ops
run one after the other, which other tests have.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.kernels.attention import attention_ref
from flashrt_core.kernels.four_bits import quantise_runs
from flashrt_core.kernels.layer_norm_attention import (
    layer_norm_attention,
    layer_norm_attention_ref,
)
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear_ref
from flashrt_core.kernels.layer_norm_pool_attention import layer_norm_pool_attention
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv_ref
from test.gpu import PLACE, error, run, runs_kernels, synchronize

from .test_cuda_ops import CHAINED, F32, ROUNDED, empty, expected, twice

pytestmark = runs_kernels

DEPTH, HEAD = 3072, 128


def weights(draw: Any, columns: int, bits: int) -> tuple[Tensor, dict[str, Any]]:
    """A weight [columns, DEPTH], and the scales that it comes with."""
    if bits == 16:
        return draw(columns, DEPTH, scale=DEPTH**-0.5), {}
    packed, scale = quantise_runs(draw(columns, DEPTH, scale=DEPTH**-0.5, dtype=F32), 128)
    return packed, {"weight_scale": scale}


def wide(weight: Tensor) -> Tensor:
    return weight.float() if weight.dtype is torch.bfloat16 else weight


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "runs", "heads"),
    [(16, 64, 1, 24), (16, 40, 1, 3), (5, 64, 2, 3), (1, 7, 1, 3), (11, 300, 1, 3), (8, 70, 2, 3)],
)
def test_queries_are_normalised_on_their_way(
    device: Any, draw: Any, rows: int, keys: int, runs: int, heads: int, kept: bool, bits: int
) -> None:
    width, rows, keys = heads * HEAD, rows * runs, keys * runs
    x, q = draw(rows, DEPTH, scale=2.0) + draw(rows, 1), empty(rows, width)
    gain, shift = 1.0 + draw(DEPTH, dtype=F32, scale=0.3), draw(DEPTH, dtype=F32, scale=0.3)
    weight, scales = weights(draw, width, bits)
    # Rows of unlike size: what one is divided by is not what another is.
    bias, q_norm = draw(width, scale=3.0), draw(width, dtype=F32, scale=0.5)
    k, v = (draw(keys, heads, HEAD) for _ in range(2))
    key_bias = draw(keys, dtype=F32)
    key_bias[torch.rand(keys, device=PLACE) < 0.3] = -inf
    key_bias[keys // runs // 2 :: keys // runs] = 1.0  # one counts in every run
    none = key_bias == -inf
    k[none], v[none] = nan, inf
    out, want = empty(rows, width), expected((rows, width))
    options: dict[str, Any] = {"head_dim": HEAD, "eps": 1e-6, "scale": HEAD**-0.5, **scales}
    options |= {"q_norm": q_norm, "segments": runs, "key_bias": key_bias}
    args = (x, gain, shift, weight, bias)
    twice(
        device,
        out,
        lambda lane: layer_norm_attention(lane, *args, q, k, v, out, kept=kept, **options),
    )
    keys_of = [each.float().nan_to_num(0.0, 0.0, 0.0) for each in (k, v)]
    queries, wanted = expected((rows, width)), (x.float(), gain, shift, wide(weight), bias.float())
    layer_norm_attention_ref(*wanted, queries, *keys_of, want, **options)
    assert error(out, want) < CHAINED
    for row, right in zip(out, want, strict=True):
        assert error(row, right) < 2 * CHAINED


def places(rows: int, keys: int, runs: int, how: str) -> Tensor:
    """Rows of a pool that a pass writes: one after the other, at some place, or any."""
    free = torch.randperm(keys)[:rows] if how == "any" else torch.arange(rows)
    first = {"any": 0, "start": 0, "across": min(10, keys - rows), "end": keys - rows}[how]
    each = [free + first + run * keys for run in range(runs)]
    return torch.cat(each).to(PLACE, torch.int32)


def attend(
    qkv: Tensor,
    rope: Tensor,
    fresh: Tensor,
    norms: list[Tensor],
    key_bias: Tensor,
    pool: list[Tensor],
    out: Tensor,
    runs: int,
) -> None:
    """What the references make of a product that a kernel has left."""
    q, ends = torch.empty_like(out), {"head_dim": HEAD, "eps": 1e-6}
    gains: dict[str, Any] = {"q_norm": norms[0], "k_norm": norms[1], **ends}
    qkv_rope_kv_ref(qkv.float(), rope, q, *pool, rows=fresh, **gains)
    queries, keys, values = (each.unflatten(1, (-1, HEAD)) for each in (q, *pool))
    told: dict[str, Any] = {"segments": runs, "key_bias": key_bias}
    attention_ref(queries, keys, values, out, scale=HEAD**-0.5, **told)


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "runs", "heads", "how"),
    [
        (16, 2160, 1, 24, "end"),
        (16, 700, 1, 3, "across"),
        (16, 1700, 1, 3, "any"),
        (8, 300, 2, 3, "start"),
        (11, 2160, 1, 3, "end"),
        (1, 5, 1, 3, "end"),
    ],
)
def test_a_pool_takes_new_keys_on_the_way(
    device: Any,
    draw: Any,
    rows: int,
    keys: int,
    runs: int,
    heads: int,
    how: str,
    kept: bool,
    bits: int,
) -> None:
    width, fresh = heads * HEAD, places(rows, keys, runs, how)
    rows, keys = rows * runs, keys * runs
    x, angles = draw(rows, DEPTH, scale=2.0) + draw(rows, 1), draw(rows, HEAD // 2, dtype=F32)
    rope = torch.cat((angles.cos(), angles.sin()), -1)
    gain, shift = 1.0 + draw(DEPTH, dtype=F32, scale=0.3), draw(DEPTH, dtype=F32, scale=0.3)
    weight, scales = weights(draw, 3 * width, bits)
    bias, norms = draw(3 * width, scale=3.0), [1 + draw(width, dtype=F32, scale=0.3) for _ in "qk"]
    pool = [draw(keys, width) for _ in range(2)]
    key_bias = draw(keys, dtype=F32)
    key_bias[torch.rand(keys, device=PLACE) < 0.3] = -inf
    key_bias[fresh.long()] = 0.0
    for cache in pool:
        cache[key_bias == -inf] = inf  # counts for nothing
        cache[fresh.long()] = nan  # not to be read before they are there
    options: dict[str, Any] = {"head_dim": HEAD, "eps": 1e-6, "scale": HEAD**-0.5, **scales}
    options |= {"segments": runs}
    args = (x, gain, shift, weight, bias)
    into = empty(rows, 3 * width), empty(rows, width), *pool, empty(rows, width)
    first = [cache.clone() for cache in pool]
    program = run(
        device,
        lambda lane: layer_norm_pool_attention(
            lane, *args, rope, fresh, *norms, key_bias, *into, kept=kept, **options
        ),
    )
    qkv, _, _, _, out = into
    want = expected((rows, 3 * width))
    layer_norm_linear_ref(
        x.float(), *args[1:3], wide(weight), bias.float(), want, eps=1e-6, **scales
    )
    assert error(qkv, want) < CHAINED
    right, mixed = [cache.float() for cache in first], expected((rows, width))
    attend(qkv, rope, fresh, norms, key_bias, right, mixed, runs)
    assert error(out, mixed) < CHAINED
    others = torch.ones(keys, dtype=torch.bool, device=PLACE)
    others[fresh.long()] = False
    for cache, before, own in zip(pool, first, right, strict=True):
        assert error(cache[fresh.long()], own[fresh.long()]) < ROUNDED
        assert torch.equal(cache[others], before[others])
    bits_of = [each.clone() for each in (out, *pool)]
    out.fill_(nan)
    for cache in pool:
        cache[fresh.long()] = nan
    synchronize()
    device.replay(program)
    assert all(torch.equal(one, two) for one, two in zip(bits_of, (out, *pool), strict=True))
