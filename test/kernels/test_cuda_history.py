"""CUDA kernels of a policy that remembers against their float32 references, also at odd shapes.

As in test_cuda_ops.py: inputs are bf16, the reference gets the same numbers in float32, outputs are
NaN before a kernel runs.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.errors import ContractError
from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.conv_frames import conv_frames, conv_frames_ref
from flashrt_core.kernels.copy_rows import copy_rows
from flashrt_core.kernels.fill import fill
from flashrt_core.kernels.frame_patches import frame_patches, frame_patches_ref
from flashrt_core.kernels.grid_rope import grid_rope, grid_rope_ref
from flashrt_core.kernels.guided_step import guided_step, guided_step_ref
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear, layer_norm_linear_ref
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.mean_frames import mean_frames, mean_frames_ref
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv, qkv_rope_kv_ref
from flashrt_core.kernels.quantised import E4M3, quantise_rows
from flashrt_core.kernels.rms_norm import rms_norm, rms_norm_ref
from flashrt_core.kernels.span_bias import span_bias, span_bias_ref
from flashrt_core.kernels.take_rows import take_rows, take_rows_ref
from test.gpu import PLACE, error, run, runs_kernels

from .test_cuda_ops import CHAINED, F32, FLOAT32, PROBABILITIES, ROUNDED, empty, expected, twice

pytestmark = runs_kernels

BF16, I32 = torch.bfloat16, torch.int32


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=I32, device=PLACE)


@pytest.mark.parametrize(
    ("capacity", "counts", "copies"), [(2160, (128, 16), 2), (37, (9, 4), 1), (2500, (840, 80), 2)]
)
def test_rows_of_a_pool(device: Any, capacity: int, counts: tuple[int, ...], copies: int) -> None:
    """Passes of several decisions, through the pool's overflow."""
    ours = [torch.full((capacity,), -1, dtype=I32, device=PLACE) for _ in range(2)]
    theirs = [each.cpu().clone() for each in ours]
    for chunk in range(2 + capacity // sum(counts)):
        for kind, forgotten in ((0, 1), (0, None), (1, None), (1, None)):
            count = counts[0] if forgotten is not None or kind == 1 else counts[1]
            rows = torch.empty(copies * count, dtype=I32, device=PLACE)
            bias = torch.full((copies * capacity,), nan, device=PLACE)
            options: dict[str, Any] = {"kind": kind, "forgotten": forgotten}
            run(device, lambda lane, a=(*ours, rows, bias), o=options: take_rows(lane, *a, **o))
            want = rows.cpu().clone(), bias.cpu().clone()
            take_rows_ref(*theirs, *want, **options)
            assert torch.equal(rows.cpu(), want[0]) and torch.equal(bias.cpu(), want[1])
            assert torch.equal(ours[0].cpu(), theirs[0]) and torch.equal(ours[1].cpu(), theirs[1])
        assert chunk >= 0


def test_places_on_a_grid(device: Any) -> None:
    at = torch.randint(-1, 40, (130, 3), device=PLACE).float() + 0.25
    rates = torch.rand(64, 2, device=PLACE) * torch.tensor([1.0, 1e-8], device=PLACE)
    axes = torch.randint(0, 3, (64,), dtype=I32, device=PLACE)
    out, want = empty(260, 128, dtype=F32), expected((260, 128))
    run(device, lambda lane: grid_rope(lane, i32(1234), at, rates, axes, out))
    grid_rope_ref(i32(1234), at, rates, axes, want)
    assert error(out, want) < FLOAT32


def test_keys_of_a_text_and_its_padding(device: Any) -> None:
    lengths, out, want = i32(2, 512, 300), empty(3, 301, dtype=F32), expected((3, 301))
    run(device, lambda lane: span_bias(lane, lengths, out, rows=512))
    span_bias_ref(lengths, want, rows=512)
    read = torch.isfinite(want)
    assert torch.equal(torch.isfinite(out), read)
    assert float((out - want)[read].abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("rows", "width"), [(128, 192), (96, 192), (3, 37)])
def test_guided_steps(device: Any, draw: Any, rows: int, width: int, dtype: torch.dtype) -> None:
    both, x = draw(2 * rows, width, dtype=dtype), draw(rows, width, dtype=F32)
    want = x.clone()
    step = {"guidance": 5.0, "dt": -0.125}
    run(device, lambda lane: guided_step(lane, both[:rows], both[rows:], x, **step))
    guided_step_ref(both[:rows], both[rows:], want, **step)
    assert error(x, want) < FLOAT32


def test_buffers_are_filled(device: Any) -> None:
    holders, sample = torch.ones(2161, dtype=I32, device=PLACE), torch.ones(16, 30, device=PLACE)
    kept = torch.ones(5000, dtype=BF16, device=PLACE)
    run(device, lambda lane: fill(lane, holders, value=-1))
    run(device, lambda lane: fill(lane, sample[:4, 3:9]))
    run(device, lambda lane: fill(lane, kept[:4001], value=3))
    assert bool((holders == -1).all())
    assert bool((sample[:4, 3:9] == 0).all()) and float(sample.sum()) == 480 - 24
    assert bool((kept[:4001] == 3).all()) and bool((kept[4001:] == 1).all())


@pytest.mark.parametrize(
    ("rows", "width", "pitch"), [(96, 12, 12), (2, 24_576, 32_768), (1, 8200, 8200), (6, 8, 8)]
)
@pytest.mark.parametrize("source", [F32, BF16])
def test_pictures_are_copied(
    device: Any, draw: Any, rows: int, width: int, pitch: int, source: torch.dtype
) -> None:
    src, out = draw(rows, pitch, dtype=source)[:, :width], empty(rows, width)
    run(device, lambda lane: copy_rows(lane, src, out))
    assert torch.equal(out, src.to(BF16))


@pytest.mark.parametrize(("rows", "width"), [(777, 160), (9, 8), (64, 640), (5, 1024), (2, 328)])
def test_activated_norms_of_many_rows(device: Any, draw: Any, rows: int, width: int) -> None:
    x, gain = draw(rows, width), draw(width, dtype=F32, scale=0.3)
    x[0] = 0.0
    out, want = empty(rows, width), expected((rows, width))
    run(device, lambda lane: rms_norm(lane, x, gain, out, eps=1e-24, activation="silu"))
    rms_norm_ref(x.float(), gain, want, eps=1e-24, activation="silu")
    assert error(out, want) < ROUNDED


@pytest.mark.parametrize(
    ("rows", "heads", "dim", "pool"), [(256, 24, 128, 4320), (16, 24, 128, 2160), (5, 2, 32, 9)]
)
@pytest.mark.parametrize("whole", [True, False])
def test_keys_go_to_rows_of_a_pool(
    device: Any, draw: Any, rows: int, heads: int, dim: int, pool: int, whole: bool
) -> None:
    width = heads * dim
    qkv, rope = draw(rows, 3 * width), draw(rows, dim, dtype=F32)
    places = torch.randperm(pool, device=PLACE)[:rows].to(I32)
    options: dict[str, Any] = {"head_dim": dim, "rows": places}
    if whole:
        norms = {f"{name}_norm": draw(width, dtype=F32) for name in "qk"}
        options |= {"eps": 1e-6, **norms}
    q, caches = empty(rows, width), [draw(pool, width) for _ in range(2)]
    want, wanted = expected((rows, width)), [cache.float() for cache in caches]
    run(device, lambda lane: qkv_rope_kv(lane, qkv, rope, q, *caches, **options))
    qkv_rope_kv_ref(qkv.float(), rope, want, *wanted, **options)
    assert error(q, want) < ROUNDED
    others = torch.ones(pool, dtype=torch.bool, device=PLACE)
    others[places.long()] = False
    for cache, right in zip(caches, wanted, strict=True):
        assert error(cache, right) < ROUNDED and torch.equal(cache[others], right[others].to(BF16))


KEYS = [
    # rows and keys of a run, runs, heads, dim
    (128, 2160, 2, 24, 128),
    (16, 2160, 1, 24, 128),
    (16, 2160, 2, 24, 128),
    (128, 64, 2, 24, 128),
    (16, 64, 1, 24, 128),
    (33, 259, 2, 3, 128),
    (70, 321, 1, 2, 128),
    (7, 300, 2, 2, 128),
    (5, 9, 2, 2, 32),
    (64, 64, 2, 1, 640),
]


@pytest.mark.parametrize("hidden", [0.0, 0.4, 0.97])
@pytest.mark.parametrize(("rows", "keys", "runs", "heads", "dim"), KEYS)
def test_keys_count_as_their_bias_says(
    device: Any, draw: Any, rows: int, keys: int, runs: int, heads: int, dim: int, hidden: float
) -> None:
    q = draw(runs * rows, heads, dim)
    k, v = (draw(runs * keys, heads, dim) for _ in range(2))
    bias = draw(runs * keys, dtype=F32)
    bias[torch.rand(len(bias), device=PLACE) < hidden] = -inf
    bias[keys // 2 :: keys] = 6.0  # one counts in every run
    none = bias == -inf
    k[none], v[none] = nan, inf
    out, want = empty(runs * rows, heads * dim), expected((runs * rows, heads * dim))
    options: dict[str, Any] = {"scale": dim**-0.5, "segments": runs, "key_bias": bias}
    twice(device, out, lambda lane: attention(lane, q, k, v, out, **options))
    wide = [each.float().nan_to_num(0.0, 0.0, 0.0) for each in (q, k, v)]
    attention_ref(*wide, want, **options)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize(("rows", "keys"), [(128, 2160), (16, 300), (128, 64), (40, 300)])
def test_biased_attention_quantises(device: Any, draw: Any, rows: int, keys: int) -> None:
    q, k, v = (draw(count, 2, 128) for count in (rows, keys, keys))
    bias, scale = draw(keys, dtype=F32), torch.tensor([2.0**-6], device=PLACE)
    wide, out = empty(rows, 256), torch.zeros(rows, 256, device=PLACE).to(E4M3)
    options: dict[str, Any] = {"scale": 0.1, "key_bias": bias}
    run(device, lambda lane: attention(lane, q, k, v, wide, **options))
    run(device, lambda lane: attention(lane, q, k, v, out, **options, out_scale=scale))
    assert error(out.float() * scale, wide.float()) < 0.05


def test_a_wide_head_attends_in_runs(device: Any, draw: Any) -> None:
    merged = draw(128, 3, 1, 640)
    q, k, v = merged.unbind(1)
    out, want = empty(128, 640), expected((128, 640))
    options: dict[str, Any] = {"scale": 640**-0.5, "segments": 2}
    run(device, lambda lane: attention(lane, q, k, v, out, **options))
    attention_ref(q.float(), k.float(), v.float(), want, **options)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize("activation", ["none", "gelu_tanh"])
@pytest.mark.parametrize("rows", [16, 1, 11])
@pytest.mark.parametrize("columns", [3072, 9216, 14336])
def test_norms_in_front_of_large_weights(
    device: Any, draw: Any, rows: int, columns: int, activation: Any
) -> None:
    x = draw(rows, 3072, scale=2.0) + draw(rows, 1)
    weight, bias = draw(columns, 3072, scale=3072**-0.5), draw(columns)
    gain, shift = (1.0 + draw(3072, dtype=F32, scale=0.3), draw(3072, dtype=F32, scale=0.3))
    out, want = empty(rows, columns), expected((rows, columns))
    ends: dict[str, Any] = {"eps": 1e-6, "activation": activation}
    args = (x, gain, shift, weight, bias)
    twice(device, out, lambda lane: layer_norm_linear(lane, *args, out, **ends))
    layer_norm_linear_ref(*(each.float() for each in args), want, **ends)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(rows, 3072, depth) for rows in (16, 32, 5, 256) for depth in (3072, 14336)]
    + [(16, 64, 96), (40, 96, 3072), (16, 1024, 2048)],
)
def test_gated_additions_with_a_bias(
    device: Any, draw: Any, rows: int, columns: int, depth: int, biased: bool
) -> None:
    x, weight = draw(rows, depth), draw(columns, depth, scale=depth**-0.5)
    gate, out = draw(columns, dtype=F32), draw(rows, columns)
    want = out.float()
    bias = draw(columns) if biased else None
    run(device, lambda lane: linear_gated_residual(lane, x, weight, gate, out, bias=bias))
    wide = None if bias is None else bias.float()
    linear_gated_residual_ref(x.float(), weight.float(), gate, want, bias=wide)
    assert error(out, want) < CHAINED


def test_gated_addition_of_an_8_bit_product(device: Any, draw: Any) -> None:
    x, x_scale = draw(64, 256).to(E4M3), torch.tensor([0.5], device=PLACE)
    weight, weight_scale = quantise_rows(draw(96, 256).float())
    gate, bias, out = draw(96, dtype=F32), draw(96), draw(64, 96)
    want = out.float()
    scales = {"x_scale": x_scale, "weight_scale": weight_scale}
    args = (x, weight, gate)
    run(device, lambda lane: linear_gated_residual(lane, *args, out, bias=bias, **scales))
    linear_gated_residual_ref(*args, want, bias=bias.float(), **scales)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("rows", [16, 32, 3])
def test_few_rows_of_large_weights_into_the_stream(device: Any, draw: Any, rows: int) -> None:
    x, weight, bias = draw(rows, 3072), draw(3072, 3072, scale=3072**-0.5), draw(3072)
    out = draw(rows, 3072)
    want = out.float()
    run(device, lambda lane: linear(lane, x, weight, bias, out, residual=out))
    linear_ref(x.float(), weight.float(), bias.float(), want, residual=want.clone())
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("into", [BF16, F32])
@pytest.mark.parametrize(
    ("videos", "frames", "past", "side", "channels", "out_channels", "kernel", "strides"),
    [
        (2, 4, 2, 8, 160, 160, (3, 3), (1, 1)),
        (1, 1, 2, 16, 12, 160, (3, 3), (1, 1)),
        (2, 4, 0, 8, 32, 32, (1, 3), (1, 2)),
        (2, 4, 1, 4, 32, 24, (3, 1), (2, 1)),
        (1, 2, 2, 6, 8, 176, (3, 3), (1, 1)),
        (1, 4, 2, 8, 640, 48, (3, 3), (1, 1)),
    ],
)
def test_frames_are_convolved(
    device: Any,
    draw: Any,
    videos: int,
    frames: int,
    past: int,
    side: int,
    channels: int,
    out_channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    into: torch.dtype,
) -> None:
    kt, k = kernel
    x = draw(videos, frames, side, side + 2, channels)
    before = draw(videos, past, side, side + 2, channels) if past else None
    depth = kt * k * k * channels
    weight = draw(out_channels, kt, k, k, channels, scale=depth**-0.5)
    bias = draw(out_channels, dtype=F32)
    made = (frames + past - kt) // strides[0] + 1
    sizes = (videos, made, side // strides[1], (side + 2) // strides[1], out_channels)
    out, want = empty(*sizes, dtype=into), expected(sizes)
    residual = draw(*sizes) if into is BF16 else None
    wide = [None if each is None else each.float() for each in (x, before, weight, residual)]
    conv_frames_ref(*wide[:3], bias, want, strides=strides, residual=wide[3])  # type: ignore[arg-type]
    if residual is not None:
        out.copy_(residual)
        residual = out
    args = (x, before, weight, bias, out)
    run(device, lambda lane: conv_frames(lane, *args, strides=strides, residual=residual))
    assert error(out, want) < (ROUNDED if into is BF16 else FLOAT32)


@pytest.mark.parametrize("halved", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("frames", [4, 1])
def test_shortcuts_around_a_halving(
    device: Any, draw: Any, frames: int, halved: tuple[bool, bool]
) -> None:
    x = draw(2, frames, 4, 6, 16)
    st, ss = (2 if each else 1 for each in halved)
    out = draw(2, -(-frames // st), 4 // ss, 6 // ss, 16)
    want = out.float()
    run(device, lambda lane: mean_frames(lane, x, out, halved=halved))
    mean_frames_ref(x.float(), want, halved=halved)
    assert error(out, want) < ROUNDED


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_frames_become_tokens(device: Any, draw: Any, dtype: torch.dtype) -> None:
    frames, grid = draw(3, 4, 6, 48, dtype=dtype), torch.zeros(3, 2, 7, 192, device=PLACE)
    want = grid.clone()
    run(device, lambda lane: frame_patches(lane, frames, grid[:, :, 2:5]))
    frame_patches_ref(frames.float(), want[:, :, 2:5])
    assert torch.equal(grid, want)


def test_what_no_kernel_takes_is_refused(device: Any, draw: Any) -> None:
    x, weight, bias = draw(1, 2, 4, 4, 6), draw(8, 1, 1, 1, 6), draw(8, dtype=F32)
    with pytest.raises(ContractError, match="multiples of 4 channels"):
        args = (x, None, weight, bias, empty(1, 2, 4, 4, 8))
        run(device, lambda lane: conv_frames(lane, *args))
    apart = draw(1, 2, 4, 4, 16)[..., :8]
    with pytest.raises(ContractError, match="without gaps"):
        run(device, lambda lane: mean_frames(lane, apart, apart.clone(), halved=(False, False)))
    wide = draw(2, 1032)
    with pytest.raises(ContractError, match="at most 1024 columns"):
        gain = draw(1032, dtype=F32)
        run(device, lambda lane: rms_norm(lane, wide, gain, wide, eps=1.0, activation="silu"))
