"""Kernels of products with weights of four bits against float32, at LingBot-VA's depths.

As in test_cuda_ops.py. Their weights enter the tensor cores as whole numbers and their sums are
scaled in float32, as the references do it: what is left is the rounding of x (behind a norm) and
of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels import four_bit_linear
from flashrt_core.kernels.four_bit_linear import FOUR_BIT_LINEAR, FOUR_BIT_NORM
from flashrt_core.kernels.four_bits import four_bit_values, in_tiles, quantise_runs
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear, layer_norm_linear_ref
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.skinny import SkinnyPlan
from test.gpu import EMULATED, error, run, runs_kernels, synchronize

from .test_cuda_ops import CHAINED, F32, ROUNDED, affine, empty, expected, twice

pytestmark = runs_kernels

#: Rows of a pass: one, LIBERO's, one more, two runs and three.
ROWS = [1, 16, 17, 64, 80]


def only(monkeypatch: pytest.MonkeyPatch, plan: SkinnyPlan) -> None:
    """No other plan, so that few rows of a weight are enough to reach it."""
    norm = plan.kernel.startswith("layer_norm")
    monkeypatch.setattr(four_bit_linear, "FOUR_BIT_LINEAR", () if norm else (plan,))
    monkeypatch.setattr(four_bit_linear, "FOUR_BIT_NORM", (plan,) if norm else ())


def stored(draw: Any, columns: int, depth: int, run: int = 128) -> tuple[Tensor, Tensor]:
    return quantise_runs(draw(columns, depth, scale=depth**-0.5, dtype=F32), run)


def rows_of(plan: SkinnyPlan) -> list[int]:
    """What a plan takes, in one run behind a norm and in several elsewhere."""
    several = plan.kernel.startswith("linear") and plan.tokens > 16
    return [rows for rows in ROWS if rows <= plan.tokens or several]


@pytest.mark.parametrize("gained", [True, False])
@pytest.mark.parametrize(
    ("plan", "rows"),
    [(plan, rows) for plan in FOUR_BIT_NORM for rows in rows_of(plan)],
    ids=lambda value: getattr(value, "kernel", value),
)
def test_norm_in_front(
    monkeypatch: pytest.MonkeyPatch,
    device: Any,
    draw: Any,
    plan: SkinnyPlan,
    rows: int,
    gained: bool,
) -> None:
    only(monkeypatch, plan)
    columns, depth = 2 * plan.rows, plan.depth
    weight, scale = stored(draw, columns, depth)
    x, bias = draw(rows, depth, scale=2.0) + draw(rows, 1), draw(columns)
    gain, shift = affine(draw, depth)
    norm = (gain, shift) if gained else (None, None)
    ends: dict[str, Any] = {"eps": 1e-6, "activation": "gelu_tanh" if gained else "none"}
    ends["weight_scale"] = scale
    out, want = empty(rows, columns), expected((rows, columns))
    twice(device, out, lambda lane: layer_norm_linear(lane, x, *norm, weight, bias, out, **ends))
    layer_norm_linear_ref(x.float(), *norm, weight, bias.float(), want, **ends)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("rows", [33, 80])
def test_norm_in_front_of_more_rows(device: Any, draw: Any, rows: int) -> None:
    """A kernel of its own."""
    weight, scale = stored(draw, 128, 3072)
    x, bias = draw(rows, 3072, scale=2.0) + draw(rows, 1), draw(128)
    gain, shift = 1.0 + draw(3072, dtype=F32, scale=0.3), draw(3072, dtype=F32, scale=0.3)
    ends: dict[str, Any] = {"eps": 1e-6, "activation": "gelu_tanh", "weight_scale": scale}
    out, want, args = empty(rows, 128), expected((rows, 128)), (x, gain, shift, weight)
    run(device, lambda lane: layer_norm_linear(lane, *args, bias, out, **ends))
    layer_norm_linear_ref(x.float(), gain, shift, weight, bias.float(), want, **ends)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize(
    ("plan", "rows"),
    [(plan, rows) for plan in FOUR_BIT_LINEAR for rows in rows_of(plan)],
    ids=lambda value: getattr(value, "kernel", value),
)
def test_into_the_stream(
    monkeypatch: pytest.MonkeyPatch, device: Any, draw: Any, plan: SkinnyPlan, rows: int
) -> None:
    """With a bias, in place, with a gate and without; x has rows between others."""
    only(monkeypatch, plan)
    columns, depth = 2 * plan.rows, plan.depth
    weight, scale = stored(draw, columns, depth)
    x, bias, gate = draw(rows, 2, depth)[:, 1], draw(columns), draw(columns, dtype=F32)
    stream, want = draw(rows, columns), expected((rows, columns))
    linear_ref(x.float(), weight, bias.float(), want, residual=stream.float(), weight_scale=scale)
    run(
        device,
        lambda lane: linear(lane, x, weight, bias, stream, residual=stream, weight_scale=scale),
    )
    assert error(stream, want) < ROUNDED
    want = stream.float()
    given: dict[str, Any] = {"weight_scale": scale}
    linear_gated_residual_ref(x.float(), weight, gate, want, bias=bias.float(), **given)
    run(
        device,
        lambda lane: linear_gated_residual(lane, x, weight, gate, stream, bias=bias, **given),
    )
    assert error(stream, want) < ROUNDED


def test_every_number_of_a_tile(monkeypatch: pytest.MonkeyPatch, device: Any, draw: Any) -> None:
    """One column of x at a time: the weights themselves come out."""
    plan = FOUR_BIT_LINEAR[0]
    only(monkeypatch, plan)
    weight, scale = stored(draw, plan.rows, plan.depth)
    values, where = four_bit_values(weight, scale), range(3, plan.depth, plan.depth // 13)
    for start in range(0, len(where) - 13, 16):
        columns = list(where)[start : start + 16]
        x, out = torch.zeros(16, plan.depth), empty(16, plan.rows)
        for row, column in enumerate(columns):
            x[row, column] = 1.0
        x = x.to(out)
        run(
            device,
            lambda lane, x=x, out=out: linear(lane, x, weight, None, out, weight_scale=scale),
        )
        found = values[:, columns].t().bfloat16()
        assert torch.equal(out[: len(columns)], found)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "run_"),
    [(7, 96, 256, 32), (16, 64, 512, 128), (33, 72, 1536, 128), (10, 64, 72, 8)],
)
def test_weights_of_other_sizes_are_expanded(
    device: Any, draw: Any, rows: int, columns: int, depth: int, run_: int
) -> None:
    weight, scale = stored(draw, columns, depth, run_)
    assert in_tiles(weight, scale) == (run_ == 128 and columns % 64 == 0)
    x, out, want = draw(rows, depth), empty(rows, columns), expected((rows, columns))
    run(device, lambda lane: linear(lane, x, weight, None, out, weight_scale=scale))
    linear_ref(x.float(), weight, None, want, weight_scale=scale)
    assert error(out, want) < CHAINED


@pytest.mark.skipif(EMULATED, reason="minutes of emulation")
@pytest.mark.parametrize("rows", [16, 80])
def test_a_block_in_one_graph(device: Any, draw: Any, rows: int) -> None:
    """At the released sizes: kernels that start early see what those in front have written."""
    shapes = [(9216, 3072), (3072, 3072), (14336, 3072), (3072, 14336)]
    weights = [stored(draw, *shape) for shape in shapes]
    biases = [draw(weight.shape[0], scale=0.1) for weight, _ in weights]
    gain, shift = 1.0 + draw(3072, dtype=F32, scale=0.1), draw(3072, dtype=F32, scale=0.1)
    gate, x = draw(3072, dtype=F32, scale=0.3), draw(rows, 3072)
    merged, hidden = empty(rows, 9216), empty(rows, 14336)
    (qkv, out, up, down), norm = weights, (gain, shift)

    def normed(lane: Any, of: tuple[Tensor, Tensor], bias: Tensor, into: Tensor, act: Any) -> None:
        given = {"eps": 1e-6, "activation": act, "weight_scale": of[1]}
        layer_norm_linear(lane, x, *norm, of[0], bias, into, **given)

    def gated(lane: Any, y: Tensor, of: tuple[Tensor, Tensor], bias: Tensor) -> None:
        linear_gated_residual(lane, y, of[0], gate, x, bias=bias, weight_scale=of[1])

    ops: list[Callable[[Any], None]] = [
        lambda lane: normed(lane, qkv, biases[0], merged, "none"),
        lambda lane: gated(lane, merged[:, 3072:6144], out, biases[1]),
        lambda lane: normed(lane, up, biases[2], hidden, "gelu_tanh"),
        lambda lane: gated(lane, hidden, down, biases[3]),
    ]
    start = x.clone()
    for op in ops * 3:
        run(device, op)
        synchronize()
    alone = x.clone()
    x.copy_(start)
    program = run(device, lambda lane: [op(lane) for op in ops * 3])
    assert torch.equal(x, alone)
    for _ in range(20):
        x.copy_(start)
        synchronize()
        device.replay(program)
        synchronize()
        assert torch.equal(x, alone)
