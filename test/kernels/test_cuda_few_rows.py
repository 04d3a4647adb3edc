"""Kernels of products of few rows, with a norm in front or an addition behind, against float32.

As in test_cuda_ops.py, at the shapes of GR00T's head, at those of no kernel, and as a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.few_rows_linear import LINEAR_PLANS, NORM_PLANS
from flashrt_core.kernels.layer_norm_attention import (
    layer_norm_attention,
)
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear, layer_norm_linear_ref
from flashrt_core.kernels.quantised import E4M3, quantise, quantise_rows, quantise_whole
from flashrt_core.kernels.row_moments import RowMoments
from test.gpu import EMULATED, PLACE, error, run, runs_kernels, synchronize

from .test_cuda_low_bit import FAST, MORE_STEPS
from .test_cuda_ops import CHAINED, F32, affine, empty, expected, twice

pytestmark = runs_kernels

#: Widths of the head's products: what follows a norm, and what is added to the stream.
NORMED = [(1536, 1536), (4608, 1536), (6144, 1536), (1024, 1536), (96, 1536)]
ADDED = [(1536, 1536), (1536, 6144), (3072, 1536), (1024, 1536), (96, 6144)]
#: No kernel of few rows takes these.
OTHERS = [(41, 256, 512), (49, 1536, 1536), (41, 136, 1536)]


@pytest.mark.parametrize("activation", ["none", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gained", [True, False])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(rows, *s) for s in NORMED for rows in (1, 40, 41, 48)] + OTHERS
)
def test_norm_in_front_of_few_rows(
    device: Any, draw: Any, rows: int, columns: int, depth: int, gained: bool, activation: Any
) -> None:
    x = draw(rows, depth, scale=2.0) + draw(rows, 1)
    weight, bias = draw(columns, depth, scale=depth**-0.5), draw(columns)
    gain, shift = affine(draw, depth)
    norm = (gain, shift) if gained else (None, None)
    out, want = empty(rows, columns), expected((rows, columns))
    ends: dict[str, Any] = {"eps": 1e-5, "activation": activation}
    twice(device, out, lambda lane: layer_norm_linear(lane, x, *norm, weight, bias, out, **ends))
    layer_norm_linear_ref(x.float(), *norm, weight.float(), bias.float(), want, **ends)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("residual", ["none", "in place", "other"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(rows, *s) for s in ADDED for rows in (1, 40, 41, 48)] + OTHERS
)
def test_few_rows_into_the_stream(
    device: Any, draw: Any, rows: int, columns: int, depth: int, residual: str, activation: Any
) -> None:
    x, weight = draw(rows, depth), draw(columns, depth, scale=depth**-0.5)
    bias = draw(columns)
    out = draw(rows, columns) if residual == "in place" else empty(rows, columns)
    added = {"none": None, "in place": out, "other": draw(rows, columns)}[residual]
    want = expected((rows, columns))
    linear_ref(
        x.float(),
        weight.float(),
        bias.float(),
        want,
        activation=activation,
        residual=None if added is None else added.float(),
    )
    ends: dict[str, Any] = {"activation": activation, "residual": added}
    run(device, lambda lane: linear(lane, x, weight, bias, out, **ends))
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("gained", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [
        *((rows, *shape) for shape in NORMED[:3] for rows in (1, 41, 44)),
        *((rows, *shape) for shape in ADDED[:2] for rows in (1, 41, 48)),
        (41, 128, 1536),
        (41, 128, 6144),
    ],
)
def test_few_rows_with_int8_weights(
    device: Any, draw: Any, rows: int, columns: int, depth: int, gained: bool
) -> None:
    weight, scale = quantise_rows(draw(columns, depth, scale=depth**-0.5), torch.int8)
    x, bias = draw(rows, depth, scale=2.0) + draw(rows, 1), draw(columns)
    if depth == 1536 and rows <= 44:
        norm: tuple[Any, Any] = (None, None)
        if gained:
            norm = affine(draw, depth)
        ends: dict[str, Any] = {"eps": 1e-5, "activation": "gelu_tanh", "weight_scale": scale}
        out, want = empty(rows, columns), expected((rows, columns))
        args = (x, *norm, weight, bias)
        twice(device, out, lambda lane: layer_norm_linear(lane, *args, out, **ends))
        layer_norm_linear_ref(x.float(), *norm, weight, bias.float(), want, **ends)
        assert error(out, want) < CHAINED
    if columns in (1536, 128):
        stream, want = draw(rows, columns), expected((rows, columns))
        linear_ref(
            x.float(), weight, bias.float(), want, residual=stream.float(), weight_scale=scale
        )
        args = (x, weight, bias, stream)
        run(device, lambda lane: linear(lane, *args, residual=stream, weight_scale=scale))
        assert error(stream, want) < CHAINED


@pytest.mark.parametrize("into", [E4M3, torch.bfloat16], ids=["into-fp8", "into-bf16"])
@pytest.mark.parametrize("gained", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(41, 6144), (1, 192), (48, 96), (17, 128)])
def test_norm_in_front_of_few_rows_in_e4m3(
    device: Any, draw: Any, rows: int, columns: int, gained: bool, into: torch.dtype
) -> None:
    """What a norm makes is quantised: in one kernel where it has no gain, else in two more."""
    x, bias = draw(rows, 1536, scale=2.0) + draw(rows, 1), draw(columns)
    norm: tuple[Any, Any] = (None, None)
    if gained:
        norm = (1.0 + draw(1536, dtype=F32, scale=0.3), draw(1536, dtype=F32, scale=0.3))
    weight, weight_scale = quantise_whole(draw(columns, 1536, dtype=F32, scale=1 / 40))
    one = torch.full((1,), 2.0**-6, device=PLACE)
    ends: dict[str, Any] = {"eps": 1e-5, "activation": "gelu_tanh"}
    ends |= {"x_scale": one, "weight_scale": weight_scale}
    if into is E4M3:
        ends["out_scale"] = one
    out, want = empty(rows, columns, dtype=into), empty(rows, columns, dtype=into)
    run(device, lambda lane: layer_norm_linear(lane, x, *norm, weight, bias, out, **ends))
    layer_norm_linear_ref(x.float(), *norm, weight, bias.float(), want, **ends)
    assert error(out.float(), want.float()) < MORE_STEPS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=["bf16", "int8"])
@pytest.mark.parametrize(
    ("rows", "columns", "activation"),
    [(41, 6144, "gelu_tanh"), (1, 192, "none"), (48, 96, "none"), (44, 128, "gelu_tanh")],
)
def test_norm_in_front_of_few_rows_into_e4m3(
    device: Any, draw: Any, rows: int, columns: int, activation: Any, dtype: torch.dtype
) -> None:
    """Of products that a kernel makes so, and of those that none does."""
    x, bias, weight = draw(rows, 1536, scale=2.0), draw(columns), draw(columns, 1536, scale=1 / 40)
    ends: dict[str, Any] = {"eps": 1e-5, "activation": activation}
    ends["out_scale"] = torch.full((1,), 2.0**-6, device=PLACE)
    if dtype is torch.int8:
        weight, ends["weight_scale"] = quantise_rows(weight.float(), dtype)
    out, want = empty(rows, columns, dtype=E4M3), empty(rows, columns, dtype=E4M3)
    run(device, lambda lane: layer_norm_linear(lane, x, None, None, weight, bias, out, **ends))
    wide = weight if dtype is torch.int8 else weight.float()
    layer_norm_linear_ref(x.float(), None, None, wide, bias.float(), want, **ends)
    assert error(out.float(), want.float()) < MORE_STEPS


@pytest.mark.parametrize("residual", ["none", "in place", "other"])
@pytest.mark.parametrize(("rows", "columns"), [(41, 1536), (1, 96), (17, 192), (48, 96)])
def test_few_e4m3_rows_into_the_stream(
    device: Any, draw: Any, rows: int, columns: int, residual: str
) -> None:
    scale = torch.full((1,), 2.0**-6, device=PLACE)
    x, bias = quantise(draw(rows, 6144), scale), draw(columns)
    weight, weight_scale = quantise_whole(draw(columns, 6144, dtype=F32, scale=1 / 80))
    scales = {"x_scale": scale, "weight_scale": weight_scale}
    stream, out, want = draw(rows, columns), empty(rows, columns), expected((rows, columns))
    added = None if residual == "none" else stream
    into = stream if residual == "in place" else out
    wide = None if added is None else added.float()
    linear_ref(x, weight, bias.float(), want, residual=wide, **scales)
    run(device, lambda lane: linear(lane, x, weight, bias, into, residual=added, **scales))
    assert error(into, want) < FAST


def test_rows_of_a_stream_are_a_view(device: Any, draw: Any) -> None:
    """The head's action rows: from the second on, in and out; and no bias."""
    stream, weight = draw(41, 1536), draw(1024, 1536, scale=1 / 40)
    gain, shift = 1.0 + draw(1536, dtype=F32, scale=0.3), draw(1536, dtype=F32)
    out, want = empty(41, 1024), expected((40, 1024))
    args = (stream[1:], gain, shift)
    run(device, lambda lane: layer_norm_linear(lane, *args, weight, None, out[1:], eps=1e-6))
    layer_norm_linear_ref(stream[1:].float(), gain, shift, weight.float(), None, want, eps=1e-6)
    assert error(out[1:], want) < CHAINED
    assert bool(out[0].isnan().all()), "a row that nobody may write"


@pytest.mark.parametrize(
    "narrow", range(5), ids=["bf16", "second-fp8", "both-fp8", "out-fp8", "all-fp8"]
)
def test_a_head_block_in_one_graph(device: Any, draw: Any, narrow: int) -> None:
    """Kernels that start early see all that those in front have written: equal to one by one."""
    weights = [
        draw(*shape, scale=shape[1] ** -0.5)
        for shape in [(4608, 1536), (1536, 1536), (6144, 1536), (1536, 6144)]
    ]
    biases = [draw(weight.shape[0], scale=0.1) for weight in weights]
    gain, shift = 1.0 + draw(1536, dtype=F32, scale=0.1), draw(1536, dtype=F32, scale=0.1)
    x, merged = draw(41, 1536), empty(41, 4608)
    mixed, hidden = empty(41, 1536), empty(41, 6144)
    cache, settings = draw(64, 2, 32, 48), {"head_dim": 48, "eps": 1e-5, "scale": 48**-0.5}
    k, v = cache.unbind(1)
    qkv, project, up, down = zip(weights, biases, strict=True)
    behind = project  # of attention
    into: dict[str, Any] = {}
    scales: dict[str, Any] = {}
    if narrow > 0:
        one = torch.full((1,), 2.0**-6, device=PLACE)
        stored, weight_scale = quantise_whole(weights[3].float())
        hidden, down, into = hidden.to(E4M3), (stored, biases[3]), {"out_scale": one}
        scales = {"x_scale": one, "weight_scale": weight_scale}
    if narrow > 1:
        stored, weight_scale = quantise_whole(weights[2].float())
        up = (stored, biases[2])
        into |= {"x_scale": one, "weight_scale": weight_scale}
    moments = RowMoments(empty(41, 2 * RowMoments.MOST, dtype=F32))
    settings["moments"] = into["moments"] = moments
    ends: dict[str, Any] = {"residual": x, "moments": moments}
    after, mixing = dict(ends), dict(settings)
    if narrow > 2:
        stored, weight_scale = quantise_whole(weights[1].float())
        mixed, behind = mixed.to(E4M3), (stored, biases[1])
        mixing["out_scale"] = one
        after |= {"x_scale": one, "weight_scale": weight_scale}
    queries = dict(mixing)
    if narrow > 3:
        stored, weight_scale = quantise_whole(weights[0].float())
        qkv, mixing = (stored, biases[0]), mixing | {"x_scale": one, "weight_scale": weight_scale}
        stored, weight_scale = quantise_whole(weights[1].float())
        project = (stored, biases[1])
        queries |= {"x_scale": one, "weight_scale": weight_scale}
    ops: list[Callable[[Any], None]] = [
        lambda lane: layer_norm_attention(
            lane, x, gain, shift, *qkv, merged, None, None, mixed, **mixing
        ),
        lambda lane: linear(lane, mixed, *behind, x, **after),
        lambda lane: layer_norm_linear(
            lane, x, None, None, *up, hidden, eps=1e-5, activation="gelu_tanh", **into
        ),
        lambda lane: linear(lane, hidden, *down, x, **ends, **scales),
        lambda lane: layer_norm_attention(
            lane, x, gain, shift, *project, merged[:, :1536], k, v, mixed, **queries, kept=True
        ),
        lambda lane: linear(lane, mixed, *behind, x, **after),
    ]
    assert_early_is_late(device, ops, x, moments)


def assert_early_is_late(
    device: Any, ops: list[Callable[[Any], None]], x: torch.Tensor, moments: RowMoments
) -> None:
    """Four times these ops, which change x: one by one, and behind each other without a stop."""
    start = x.clone()
    moments.slabs = 0
    for _ in range(4):
        for op in ops:
            run(device, op)
            synchronize()
    alone = x.clone()
    x.copy_(start)

    def whole(lane: Any) -> None:
        moments.slabs = 0
        for _ in range(4):
            for op in ops:
                op(lane)

    program = run(device, whole)
    assert torch.equal(x, alone)
    for _ in range(1 if EMULATED else 20):  # emulation repeats itself to the bit
        x.copy_(start)
        synchronize()
        device.replay(program)
        synchronize()
        assert torch.equal(x, alone)


def test_kernels_of_few_rows_are_all_tried() -> None:
    """The shapes above reach every built kernel but those of test_cuda_history.py."""
    tried = {(columns, depth) for columns, depth in NORMED + ADDED}
    plans = [*LINEAR_PLANS.values(), *NORM_PLANS.values()]
    for plan in chain.from_iterable(plans):
        if plan.depth == 3072:
            continue
        assert any(depth == plan.depth and columns % plan.rows == 0 for columns, depth in tried)
