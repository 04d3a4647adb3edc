"""Moments of rows: what products of few rows leave, and norms behind that take them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrt_core.gemm import linear
from flashrt_core.kernels.layer_norm_attention import (
    layer_norm_attention,
    layer_norm_attention_ref,
)
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear, layer_norm_linear_ref
from flashrt_core.kernels.quantised import quantise, quantise_whole
from flashrt_core.kernels.row_moments import RowMoments
from test.gpu import PLACE, error, run, runs_kernels, synchronize

from .test_cuda_low_bit import MORE_STEPS
from .test_cuda_ops import CHAINED, F32, empty, expected, twice

pytestmark = runs_kernels


@pytest.mark.parametrize("mean", [0.0, 300.0])
@pytest.mark.parametrize("narrow", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(41, 1536, 1536), (48, 1536, 1536), (1, 1536, 1536), (41, 1536, 6144), (9, 1536, 6144)],
)
def test_moments_go_to_the_norms_behind(
    device: Any, draw: Any, rows: int, columns: int, depth: int, narrow: bool, mean: float
) -> None:
    """What a product leaves are moments of its rows, and norms with them are those without."""
    x, weight = draw(rows, depth), draw(columns, depth, scale=depth**-0.5)
    one, scales = torch.full((1,), 2.0**-6, device=PLACE), {}
    if narrow and depth == 6144:
        weight, weight_scale = quantise_whole(weight.float())
        x, scales = quantise(x, one), {"x_scale": one, "weight_scale": weight_scale}
    stream = (draw(rows, columns, dtype=F32) + mean).bfloat16()
    moments = RowMoments(empty(rows, 2 * RowMoments.MOST, dtype=F32))
    ends: dict[str, Any] = {"residual": stream, "moments": moments, **scales}
    run(device, lambda lane: linear(lane, x, weight, None, stream, **ends))
    synchronize()
    assert moments.slabs == (32 if depth == 1536 else 16)
    pairs = moments.values.view(rows, -1, 2)[:, : moments.slabs]
    slabs = stream.double().view(rows, moments.slabs, -1)
    squares = slabs.var(-1, correction=0) * slabs.shape[2]
    assert torch.allclose(pairs[..., 0].double(), slabs.mean(-1), rtol=1e-6, atol=1e-6)
    assert torch.allclose(pairs[..., 1].double(), squares, rtol=1e-4)

    bound = CHAINED if mean == 0.0 else 2 * CHAINED  # bf16 rows times W, whose mean goes off then
    up, bias = draw(96, columns, scale=1 / 40), draw(96)
    settings: dict[str, Any] = {"eps": 1e-5, "moments": moments}
    out, want = empty(rows, 96), expected((rows, 96))
    if narrow:
        up, up_scale = quantise_whole(up.float())
        settings |= {"x_scale": one, "weight_scale": up_scale}
        bound, want = MORE_STEPS, empty(rows, 96)
    args = (stream, None, None, up, bias)
    run(device, lambda lane: layer_norm_linear(lane, *args, out, **settings))
    wide = (stream.float(), None, None, up if narrow else up.float(), bias.float())
    layer_norm_linear_ref(*wide, want, **settings)
    assert error(out.float(), want.float()) < bound


@pytest.mark.parametrize("narrow", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("rows", [1, 17, 41, 48])
def test_moments_go_to_attention_behind(device: Any, draw: Any, rows: int, narrow: bool) -> None:
    x, project = draw(rows, 1536), draw(1536, 1536, scale=1 / 40)
    stream, keys, width = draw(rows, 1536, scale=3.0), 40, 4 * 48
    moments = RowMoments(empty(rows, 2 * RowMoments.MOST, dtype=F32))
    ends: dict[str, Any] = {"residual": stream, "moments": moments}
    gain, shift = 1.0 + draw(1536, dtype=F32, scale=0.3), draw(1536, dtype=F32, scale=0.3)
    settings: dict[str, Any] = {"head_dim": 48, "eps": 1e-5, "scale": 48**-0.5}
    run(device, lambda lane: linear(lane, x, project, None, stream, **ends))
    k, v = draw(keys, 2, 4, 48).unbind(1)
    for sets, others in ((3, (None, None)), (1, (k, v))):
        weight, bias = draw(sets * width, 1536, scale=1 / 40), draw(sets * width)
        if narrow:
            weight, weight_scale = quantise_whole(weight.float())
            one = torch.full((1,), 2.0**-6, device=PLACE)
            settings |= {"x_scale": one, "weight_scale": weight_scale}
        merged, out, want = empty(rows, sets * width), empty(rows, width), expected((rows, width))
        args = (stream, gain, shift, weight, bias, merged, *others, out)
        behind = {**settings, "moments": moments}
        twice(device, out, lambda lane, a=args, b=behind: layer_norm_attention(lane, *a, **b))
        parts = (*args[:3], bias, merged, *others)
        wide = [part if part is None else part.float() for part in parts]
        wide.insert(3, weight if narrow else weight.float())
        layer_norm_attention_ref(*wide, want, **settings)
        assert error(out, want) < (MORE_STEPS if narrow else CHAINED)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(41, 256, 512), (49, 1536, 1536)])
def test_no_moments_where_no_kernel_leaves_them(
    device: Any, draw: Any, rows: int, columns: int, depth: int
) -> None:
    """Norms behind take them of the rows then."""
    x, weight = draw(rows, depth), draw(columns, depth, scale=depth**-0.5)
    moments = RowMoments(empty(rows, 2 * RowMoments.MOST, dtype=F32), slabs=8)
    out, after, want = empty(rows, columns), empty(rows, 96), expected((rows, 96))
    run(device, lambda lane: linear(lane, x, weight, None, out, moments=moments))
    assert moments.slabs == 0
    up = draw(96, columns, scale=columns**-0.5)
    args = (out, None, None, up, None)
    run(device, lambda lane: layer_norm_linear(lane, *args, after, eps=1e-5, moments=moments))
    layer_norm_linear_ref(out.float(), None, None, up.float(), None, want, eps=1e-5)
    assert error(after, want) < CHAINED
