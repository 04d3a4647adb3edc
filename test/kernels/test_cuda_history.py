"""CUDA kernels of a policy that remembers against their float32 references, also at odd shapes.

As in test_cuda_ops.py: inputs are bf16, the reference gets the same numbers in float32, outputs are
NaN before a kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.fill import fill
from flashrt_core.kernels.grid_rope import grid_rope, grid_rope_ref
from flashrt_core.kernels.guided_step import guided_step, guided_step_ref
from flashrt_core.kernels.layer_norm_attention import layer_norm_attention
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear, layer_norm_linear_ref
from flashrt_core.kernels.layer_norm_pool_attention import layer_norm_pool_attention
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv, qkv_rope_kv_ref
from flashrt_core.kernels.quantised import E4M3, quantise_rows
from flashrt_core.kernels.span_bias import span_bias, span_bias_ref
from flashrt_core.kernels.take_rows import take_rows, take_rows_ref
from test.gpu import EMULATED, PLACE, error, run, runs_kernels, synchronize

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
    frame, at = i32(1234), torch.randint(-1, 40, (130, 3), device=PLACE).float() + 0.25
    rates = torch.rand(64, 2, device=PLACE) * torch.tensor([1.0, 1e-8], device=PLACE)
    axes = torch.randint(0, 3, (64,), dtype=I32, device=PLACE)
    out, want = empty(260, 128, dtype=F32), expected((260, 128))
    run(device, lambda lane: grid_rope(lane, frame, at, rates, axes, out))
    grid_rope_ref(frame, at, rates, axes, want)
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
    for kept in (False, True):
        ends = {"out_scale": scale, "kept": kept}
        run(device, lambda lane, e=ends: attention(lane, q, k, v, out, **options, **e))
        assert error(out.float() * scale, wide.float()) < 0.05
        out.zero_()


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


def block_of_actions(draw: Any, x: Tensor) -> list[Callable[[Any], None]]:
    """The ops of a block of few rows, at the true widths."""
    rows, D, pool = 16, 3072, 2160
    shapes = {"qkv": (3 * D, D), "out": (D, D), "q": (D, D), "fc1": (14336, D), "fc2": (D, 14336)}
    dense = {
        name: (draw(*shape, scale=shape[1] ** -0.5), draw(shape[0], scale=0.1))
        for name, shape in shapes.items()
    }
    norm = (1.0 + draw(D, dtype=F32, scale=0.1), draw(D, dtype=F32, scale=0.1))
    gate, gain = draw(D, dtype=F32, scale=0.3), draw(D, dtype=F32, scale=0.1)
    q, mixed, rope = empty(rows, D), empty(rows, D), draw(rows, 128, dtype=F32)
    merged, hidden = empty(rows, 3 * D), empty(rows, 14336)
    k, v, text_k, text_v = draw(pool, D), draw(pool, D), draw(64, D), draw(64, D)
    places = torch.randperm(pool, device=PLACE)[:rows].to(I32)
    bias, text_bias = torch.zeros(pool, device=PLACE), torch.zeros(64, device=PLACE)
    bias[::7] = -inf
    ends: dict[str, Any] = {"eps": 1e-6}
    heads: dict[str, Any] = {"head_dim": 128, "scale": 128**-0.5, "kept": True, **ends}
    turned = (rope, places, norm[0], norm[0], bias)
    text: dict[str, Any] = {"q_norm": gain, "key_bias": text_bias, **heads}
    text_keys = [each.view(-1, 24, 128) for each in (text_k, text_v)]
    gelu: dict[str, Any] = {"activation": "gelu_tanh", **ends}
    (out, out_bias), (down, down_bias) = dense["out"], dense["fc2"]
    return [
        lambda lane: layer_norm_pool_attention(
            lane, x, *norm, *dense["qkv"], *turned, merged, q, k, v, mixed, **heads
        ),
        lambda lane: linear_gated_residual(lane, mixed, out, gate, x, bias=out_bias),
        lambda lane: layer_norm_attention(
            lane, x, *norm, *dense["q"], q, *text_keys, mixed, **text
        ),
        lambda lane: linear(lane, mixed, out, out_bias, x, residual=x),
        lambda lane: layer_norm_linear(lane, x, *norm, *dense["fc1"], hidden, **gelu),
        lambda lane: linear_gated_residual(lane, hidden, down, gate, x, bias=down_bias),
    ]


@pytest.mark.skipif(EMULATED, reason="no CUDA device: nothing overlaps")
def test_a_block_of_the_actions_is_the_same_at_once(device: Any, draw: Any) -> None:
    """Kernels that begin while those in front end give the bits of kernels that run alone."""
    x = draw(16, 3072)
    ops = block_of_actions(draw, x)
    first = x.clone()
    for _ in range(3):
        for op in ops:
            run(device, op)
            synchronize()
    alone = x.clone()
    assert bool(torch.isfinite(alone).all())

    def whole(lane: Any) -> None:
        for _ in range(3):
            for op in ops:
                op(lane)

    x.copy_(first)
    synchronize()
    program = run(device, whole)
    assert torch.equal(x, alone)
    for _ in range(20):
        x.copy_(first)
        synchronize()
        device.replay(program)
        synchronize()
        assert torch.equal(x, alone)
