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

from flashrt_core.kernels.four_bits import quantise_runs
from flashrt_core.kernels.layer_norm_attention import (
    layer_norm_attention,
    layer_norm_attention_ref,
)
from test.gpu import PLACE, error, runs_kernels

from .test_cuda_ops import CHAINED, F32, empty, expected, twice

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
