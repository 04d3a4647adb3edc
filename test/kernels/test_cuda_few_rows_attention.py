"""Kernels of few rows that make queries behind a norm and attend with them, against float32.

As in test_cuda_ops.py, at the shapes of GR00T's head and at those of no kernel.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrt_core.kernels.layer_norm_attention import (
    layer_norm_attention,
    layer_norm_attention_ref,
)
from flashrt_core.kernels.quantised import E4M3, quantise_whole
from test.gpu import PLACE, error, run, runs_kernels

from .test_cuda_low_bit import MORE_STEPS
from .test_cuda_ops import CHAINED, F32, affine, empty, expected, twice

pytestmark = runs_kernels


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "heads", "dim", "depth", "length"),
    [
        (41, 24, 32, 48, 1536, 21),
        (41, 64, 32, 48, 1536, 0),
        (41, 192, 32, 48, 1536, 0),
        (41, 200, 32, 48, 1536, 129),
        (48, 512, 32, 48, 1536, 0),
        (13, 5, 2, 48, 1536, 1),
        (1, 40, 4, 48, 1536, 0),
        (5, 17, 4, 64, 512, 16),
    ],
)
def test_queries_behind_a_norm_attend(
    device: Any,
    draw: Any,
    rows: int,
    keys: int,
    heads: int,
    dim: int,
    depth: int,
    length: int,
    kept: bool,
) -> None:
    x, width = draw(rows, depth, scale=2.0) + draw(rows, 1), heads * dim
    gain, shift = affine(draw, depth)
    weight, bias = draw(width, depth, scale=depth**-0.5), draw(width)
    cache = draw(keys, 3, 2, heads, dim)  # of some blocks
    k, v = cache[:, 1].unbind(1)
    q, out, want = empty(rows, width), empty(rows, width), expected((rows, width))
    mask: dict[str, Any] = {"head_dim": dim, "eps": 1e-5, "scale": dim**-0.5}
    if length:
        valid = torch.tensor([length], dtype=torch.int32, device=PLACE)
        mask |= {"prefix_length": valid, "prefix_rows": keys}
        k[length:], v[length:] = float("nan"), float("inf")
    args = (x, gain, shift, weight, bias)
    twice(
        device,
        out,
        lambda lane: layer_norm_attention(lane, *args, q, k, v, out, **mask, kept=kept),
    )
    if length:
        k[length:], v[length:] = 0.0, 0.0
    wide = (x.float(), gain, shift, weight.float(), bias.float())
    queries = expected((rows, width))
    layer_norm_attention_ref(*wide, queries, k.float(), v.float(), want, **mask)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("gained", [False, True])
@pytest.mark.parametrize(
    ("rows", "heads", "dim", "depth"),
    [(41, 32, 48, 1536), (48, 32, 48, 1536), (17, 2, 48, 1536), (1, 4, 48, 1536), (5, 4, 64, 512)],
)
def test_rows_behind_a_norm_attend_to_each_other(
    device: Any, draw: Any, rows: int, heads: int, dim: int, depth: int, gained: bool
) -> None:
    x, width = draw(rows, depth, scale=2.0) + draw(rows, 1), heads * dim
    norm: tuple[Any, Any] = (None, None)
    if gained:
        norm = affine(draw, depth)
    weight, bias = draw(3 * width, depth, scale=depth**-0.5), draw(3 * width)
    merged, out, want = empty(rows, 3 * width), empty(rows, width), expected((rows, width))
    settings: dict[str, Any] = {"head_dim": dim, "eps": 1e-5, "scale": dim**-0.5}
    args = (x, *norm, weight, bias, merged, None, None, out)
    twice(device, out, lambda lane: layer_norm_attention(lane, *args, **settings))
    wide = (x.float(), *norm, weight.float(), bias.float(), expected((rows, 3 * width)))
    layer_norm_attention_ref(*wide, None, None, want, **settings)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize(
    ("narrow", "into"),
    [(True, E4M3), (True, torch.bfloat16), (False, E4M3)],
    ids=["into-fp8", "into-bf16", "of-bf16-into-fp8"],
)
@pytest.mark.parametrize("gained", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "heads", "dim", "depth"),
    [
        (41, 0, 32, 48, 1536),
        (41, 64, 32, 48, 1536),
        (48, 17, 4, 48, 1536),
        (48, 0, 2, 48, 1536),
        (17, 0, 2, 48, 1536),
        (1, 40, 16, 48, 1536),
        (1, 0, 16, 48, 1536),
        (5, 0, 4, 64, 512),
        (5, 17, 4, 64, 512),
        (49, 17, 2, 48, 1536),
    ],
)
def test_attention_behind_a_norm_in_e4m3(
    device: Any,
    draw: Any,
    rows: int,
    keys: int,
    heads: int,
    dim: int,
    depth: int,
    gained: bool,
    narrow: bool,
    into: torch.dtype,
) -> None:
    """Over keys that are there, or without any over the rows themselves: E4M3 is what the norm
    makes and the weights, what attention makes, or both.
    """
    x, width = draw(rows, depth, scale=2.0) + draw(rows, 1), heads * dim
    merged, one = width if keys else 3 * width, torch.full((1,), 2.0**-6, device=PLACE)
    weight, weight_scale = quantise_whole(draw(merged, depth, dtype=F32, scale=depth**-0.5))
    bias, norm = draw(merged), (None, None)
    if gained:
        norm = affine(draw, depth)
    k, v = draw(2, keys, heads, dim).unbind(0) if keys else (None, None)
    settings: dict[str, Any] = {"head_dim": dim, "eps": 1e-5, "scale": dim**-0.5}
    if narrow:
        settings |= {"x_scale": one, "weight_scale": weight_scale}
    else:
        weight = draw(merged, depth, scale=depth**-0.5)
    if into is E4M3:
        settings["out_scale"] = one
    out, want = empty(rows, width, dtype=into), empty(rows, width, dtype=into)
    args = (x, *norm, weight, bias, empty(rows, merged), k, v)
    run(device, lambda lane: layer_norm_attention(lane, *args, out, **settings))
    weight = weight if narrow else weight.float()
    operands = (weight, bias.float(), expected((rows, merged)))
    wide = [None if part is None else part.float() for part in (k, v)]
    layer_norm_attention_ref(x.float(), *norm, *operands, *wide, want, **settings)
    assert error(out.float(), want.float()) < MORE_STEPS
