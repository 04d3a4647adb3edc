"""CUDA kernels with 8-bit operands and results against the references of their ops.

Products get the same stored numbers as the reference, so what differs is the order of float32 sums
and the roundings of what passes in bf16 between two kernels. Results in E4M3 are compared as
numbers: where a float32 value lies next to a tie they may differ by one step, 2^-3 of the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu, ada_rms_norm_geglu_ref
from flashrt_core.kernels.ada_rms_norm_qkv_rope_kv import (
    ada_rms_norm_qkv_rope_kv,
    ada_rms_norm_qkv_rope_kv_ref,
)
from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.glu_linear import (
    _FP8_TILES,
    Tile,
    fused_glu_launch,
    glu_linear,
    glu_linear_ref,
)
from flashrt_core.kernels.layer_norm import layer_norm, layer_norm_ref
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.op import Op
from flashrt_core.kernels.quantised import E4M3, quantise, quantise_rows, quantise_whole
from flashrt_core.kernels.rms_norm import rms_norm, rms_norm_ref
from test.gpu import PLACE, error, kernel_device, run, runs_kernels

pytestmark = runs_kernels

CHAINED = 5e-3  # one or two roundings to bf16 and float32 sums in another order
FAST = 1e-2  # products of E4M3 are summed with fewer bits than float32 has
STEPS = 5e-3  # few values of E4M3, one step off
# An error of 0.3 % in front puts one value in 30 a step off, which is 6 to 12 % of it.
MORE_STEPS = 3e-2
F32 = torch.float32


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with kernel_device() as device:
        yield device


def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.randn(shape, device=PLACE) * scale).to(dtype)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.full(shape, float("nan"), device=PLACE, dtype=F32).to(dtype)


def one(value: float) -> Tensor:
    return torch.tensor([value], device=PLACE)


def assert_quantised(out: Tensor, want: Tensor) -> None:
    """E4M3 results: all finite, none more than a step off, few at all."""
    out, want = out.float(), want.float()
    # A step is an eighth of a number, or the smallest subnormal.
    assert bool(((out - want).abs() <= want.abs() / 7 + 2.0**-9).all())
    assert error(out, want) < STEPS


def assert_steps(out: Tensor, want: Tensor) -> None:
    """E4M3 results of products that are summed in another order: none more than a step off and what
    of a column's size that is, one in ten at all; of few rows the size of all stands for that of a
    column. A whole result's error says less: a few large numbers make it, and one of them a step
    off is 6 to 12 %.
    """
    out, want = out.float(), want.float()
    size = want.square().mean(0) if len(want) >= 8 else want.square().mean()
    near = want.abs() / 7 + 2.0**-9 + 0.02 * size.sqrt()
    assert bool(((out - want).abs() <= near).all())
    assert float((out != want).float().mean()) < 0.1


@pytest.mark.parametrize("stream", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("rows", "width"), [(560, 2048), (512, 1152), (7, 1024), (3, 8)])
def test_norms_into_e4m3(device: Any, rows: int, width: int, stream: torch.dtype) -> None:
    x, weight, bias = (draw(*s, dtype=d) for s, d in (
        ((rows, width), stream), ((width,), F32), ((width,), F32),
    ))  # fmt: skip
    for scale in (2.0**-6, 2.0**-10):  # the second one saturates
        out, want = empty(rows, width, dtype=E4M3), empty(rows, width, dtype=E4M3)
        given: dict[str, Any] = {"eps": 1e-6, "out_scale": one(scale)}
        run(device, lambda lane: rms_norm(lane, x, weight, out, **given))  # noqa: B023
        rms_norm_ref(x, weight, want, **given)
        assert_quantised(out, want)
        run(device, lambda lane: layer_norm(lane, x, weight, bias, out, **given))  # noqa: B023
        layer_norm_ref(x, weight, bias, want, **given)
        assert_quantised(out, want)


def test_every_tie_and_end_of_e4m3(device: Any) -> None:
    """Through the op that does nothing else to a number: bf16 products with the identity."""
    finite = torch.arange(127, dtype=torch.uint8).view(E4M3).double()
    values = torch.cat([finite, (finite[:-1] + finite[1:]) / 2]).to(PLACE)
    x = torch.cat([values, -values, torch.tensor([449.0, 1e30, -1e30, 2.0**-11]).to(PLACE)])
    x = torch.nn.functional.pad(x, (0, -len(x) % 64)).view(-1, 64).bfloat16()
    identity = torch.eye(64, device=PLACE).bfloat16()
    out, want = empty(*x.shape, dtype=E4M3), empty(*x.shape, dtype=E4M3)
    scale = one(1.0)
    run(device, lambda lane: linear(lane, x, identity, None, out, out_scale=scale))
    linear_ref(x, identity, None, want, out_scale=scale)
    assert torch.equal(out.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("views", [1, 3])
def test_attention_in_segments_into_e4m3(device: Any, views: int) -> None:
    packed = draw(views * 256, 3 * 16 * 72, scale=1.5)
    q, k, v = packed.view(-1, 3, 16, 72).unbind(1)
    out, want = (empty(views * 256, 1152, dtype=E4M3) for _ in range(2))
    given: dict[str, Any] = {"scale": 72**-0.5, "segments": views, "out_scale": one(2.0**-8)}
    run(device, lambda lane: attention(lane, q, k, v, out, **given))
    attention_ref(q, k, v, want, **given)
    assert error(out, want) < MORE_STEPS


@pytest.mark.parametrize(
    ("rows", "keys", "heads", "dim", "length", "prefix"),
    [
        (560, 560, 8, 256, 530, 560),
        (968, 968, 8, 256, 801, 968),
        (10, 570, 8, 256, 530, 560),
        (48, 48, 4, 32, 17, 48),
    ],
)
def test_attention_over_a_prefix_into_e4m3(
    device: Any, rows: int, keys: int, heads: int, dim: int, length: int, prefix: int
) -> None:
    q, k, v = draw(rows, heads, dim, scale=2.0), draw(keys, 1, dim), draw(keys, 1, dim)
    k[length:prefix], v[length:prefix] = float("nan"), float("inf")
    valid = torch.tensor([length], dtype=torch.int32, device=PLACE)
    out, want = (empty(rows, heads * dim, dtype=E4M3) for _ in range(2))
    mask: dict[str, Any] = {"scale": dim**-0.5, "prefix_length": valid, "prefix_rows": prefix}
    mask["out_scale"] = one(2.0**-8)
    run(device, lambda lane: attention(lane, q, k, v, out, **mask))
    k[length:prefix], v[length:prefix] = 0.0, 0.0
    attention_ref(q, k, v, want, **mask)
    assert error(out, want) < MORE_STEPS


def operands(
    rows: int, columns: int, depth: int, *, rows_scaled: bool = False
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """x and weight in E4M3; rows of the weight differ much in size."""
    scale = 2.0**-6
    x = quantise(draw(rows, depth), one(scale))
    sizes = torch.logspace(-2, 0, columns, device=PLACE)[torch.randperm(columns)]
    weight = draw(columns, depth, dtype=F32) * sizes[:, None] / depth**0.5
    stored, scales = (quantise_rows if rows_scaled else quantise_whole)(weight)
    return x, stored, {"x_scale": one(scale), "weight_scale": scales}


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "bias"),
    [
        (512, 1152, 1152, True),
        (768, 1152, 4304, True),
        (560, 2048, 2048, False),
        (968, 2048, 16384, False),
        (10, 64, 64, True),
    ],
)
def test_fp8_product_into_a_stream(
    device: Any, rows: int, columns: int, depth: int, bias: bool
) -> None:
    x, weight, scales = operands(rows, columns, depth)
    offset = draw(columns) if bias else None
    for stream in (F32, torch.bfloat16):
        out = draw(rows, columns, dtype=stream)
        want = out.float()
        linear_ref(x, weight, offset, want, residual=want.clone(), **scales)
        run(device, lambda lane: linear(lane, x, weight, offset, out, residual=out, **scales))  # noqa: B023
        assert error(out, want) < FAST


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(512, 4304, 1152), (768, 4304, 1152), (33, 64, 64)]
)
def test_fp8_product_into_e4m3(device: Any, rows: int, columns: int, depth: int) -> None:
    x, weight, scales = operands(rows, columns, depth)
    bias, out, want = draw(columns), *(empty(rows, columns, dtype=E4M3) for _ in range(2))
    for scale in (2.0**-4, 2.0**-9):  # the second one saturates
        given: dict[str, Any] = {"activation": "gelu_tanh", "out_scale": one(scale), **scales}
        run(device, lambda lane: linear(lane, x, weight, bias, out, **given))  # noqa: B023
        linear_ref(x, weight, bias, want, **given)
        assert error(out, want) < MORE_STEPS  # a product behind another kernel passes in bf16


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gelu", [True, False])
def test_fp8_product_both_ways(device: Any, gelu: bool, bias: bool) -> None:
    """The library's epilogue and a kernel behind, whichever of them was the faster one."""
    x, weight, scales = operands(512, 1152, 1152)
    offset = draw(1152) if bias else None
    given: dict[str, Any] = {"activation": "gelu_tanh" if gelu else "none", **scales}
    launcher, tried = device.launcher, []
    for dtype in (E4M3, F32):
        want = draw(512, 1152, dtype=F32)
        start, added = want.clone(), {} if dtype is E4M3 else {"residual": want}
        if dtype is E4M3:
            want, given["out_scale"] = empty(512, 1152, dtype=E4M3), one(2.0**-4)
        else:
            given.pop("out_scale")
        linear_ref(x, weight, offset, want, **given, **added)

        def each(key: str, ways: Any, x: Tensor, out: Tensor) -> None:
            tried.append(sorted(ways))
            ways[name if name in ways else "kernel behind"](x, out)  # noqa: B023

        for name in ("epilogue", "kernel behind"):
            out = start.clone().to(dtype)
            into = {} if dtype is E4M3 else {"residual": out}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(launcher, "fastest", each)
                run(device, lambda lane: linear(lane, x, weight, offset, out, **given, **into))  # noqa: B023
            assert error(out, want) < (MORE_STEPS if dtype is E4M3 else FAST), (name, dtype)
    assert all("kernel behind" in ways for ways in tried)


@pytest.mark.parametrize("out_dtype", [E4M3, torch.bfloat16], ids=["fp8", "bf16"])
@pytest.mark.parametrize(
    ("rows", "width", "depth"),
    [(560, 16384, 2048), (968, 16384, 2048), (33, 512, 256), (10, 160, 64)],
)
def test_fp8_geglu(device: Any, rows: int, width: int, depth: int, out_dtype: torch.dtype) -> None:
    x, weight, scales = operands(rows, 2 * width, depth, rows_scaled=True)
    narrow = out_dtype is E4M3
    given = scales | ({"out_scale": one(2.0**-4)} if narrow else {})
    out, want = empty(rows, width, dtype=out_dtype), empty(rows, width, dtype=out_dtype)
    run(device, lambda lane: glu_linear(lane, x, weight, out, **given))
    glu_linear_ref(x, weight, want, **given)
    if narrow:
        assert_steps(out, want)
    else:
        assert error(out, want) < FAST


@pytest.mark.parametrize("tile", _FP8_TILES, ids=lambda tile: tile.kernel)
@pytest.mark.parametrize("rows", [8, 191, 407])
def test_fused_fp8_geglu_tiles(device: Any, tile: Tile, rows: int) -> None:
    if device.launcher.architecture != 90:
        pytest.skip("the fused kernel is for sm_90")
    x, weight, scales = operands(rows, 1024, 512, rows_scaled=True)
    out, want = empty(rows, 512, dtype=E4M3), empty(rows, 512, dtype=E4M3)
    given = scales | {"out_scale": one(2.0**-4)}

    def launch(launcher: Any, *args: Tensor, **scales: Tensor) -> None:
        fused_glu_launch(launcher, *args, tile=tile, **scales)

    fused = Op("fused", glu_linear_ref, launch, low_bit=True)
    run(device, lambda lane: lane.issue(fused, x, weight, out, **given))
    glu_linear_ref(x, weight, want, **given)
    assert error(out, want) < MORE_STEPS


def whole(columns: int, depth: int) -> tuple[Tensor, Tensor]:
    """int8 weights whose rows differ much in size, with every value in them, and their scales."""
    sizes = torch.logspace(-2, 1, columns, device=PLACE)[torch.randperm(columns)]
    weight = draw(columns, depth, dtype=F32) * sizes[:, None] / depth**0.5
    values, scale = quantise_rows(weight, torch.int8)
    values[0, :255] = torch.arange(-127, 128, device=PLACE).to(torch.int8)
    return values, scale


@pytest.mark.parametrize("rows", [1, 10, 14, 15, 17, 30, 33, 50, 54, 55, 62, 64])
def test_expert_ops_with_int8_weights(device: Any, rows: int) -> None:
    x, table = draw(rows, 1024), draw(3, 1024, dtype=F32, scale=0.3)
    norm = (table[0], table[1])
    rope, (weight, scale) = draw(rows, 256, dtype=F32), whole(2560, 1024)
    settings: dict[str, Any] = {"head_dim": 256, "eps": 1e-6, "weight_scale": scale}
    out = [empty(rows, size) for size in (2048, 256, 256)]
    want = [empty(rows, size, dtype=F32) for size in (2048, 256, 256)]
    run(
        device,
        lambda lane: ada_rms_norm_qkv_rope_kv(lane, x, *norm, weight, rope, *out, **settings),
    )
    ada_rms_norm_qkv_rope_kv_ref(x.float(), *norm, weight, rope, *want, **settings)
    assert max(map(error, out, want)) < CHAINED

    gate_up, scale = whole(8192, 1024)
    hidden, wanted = empty(rows, 4096), empty(rows, 4096, dtype=F32)
    given: dict[str, Any] = {"eps": 1e-6, "weight_scale": scale}
    run(device, lambda lane: ada_rms_norm_geglu(lane, x, *norm, gate_up, hidden, **given))
    ada_rms_norm_geglu_ref(x.float(), *norm, gate_up, wanted, **given)
    assert error(hidden, wanted) < CHAINED

    for depth in (2048, 4096):
        branch, (down, scale) = draw(rows, depth), whole(1024, depth)
        stream = draw(rows, 1024)
        wanted = stream.float()
        run(
            device,
            lambda lane: linear_gated_residual(
                lane,
                branch,  # noqa: B023
                down,  # noqa: B023
                table[2],
                stream,  # noqa: B023
                weight_scale=scale,  # noqa: B023
            ),
        )
        linear_gated_residual_ref(branch.float(), down, table[2], wanted, weight_scale=scale)
        assert error(stream, wanted) < CHAINED


@pytest.mark.parametrize("out_dtype", [E4M3, torch.bfloat16], ids=["fp8", "bf16"])
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 4096), (10, 4096), (50, 4096), (56, 64), (41, 192)]
)
def test_conditioned_geglu_of_e4m3(
    device: Any, rows: int, width: int, out_dtype: torch.dtype
) -> None:
    if device.launcher.architecture != 90:
        pytest.skip("the kernel is for sm_90")
    x, norm = draw(rows, 1024, scale=2.0) + draw(rows, 1), draw(2, 1024, dtype=F32, scale=0.3)
    _, weight, scales = operands(1, 2 * width, 1024, rows_scaled=True)
    narrow = out_dtype is E4M3
    given = {"eps": 1e-6, **scales} | ({"out_scale": one(2.0**-4)} if narrow else {})
    out, want = empty(rows, width, dtype=out_dtype), empty(rows, width, dtype=out_dtype)
    run(device, lambda lane: ada_rms_norm_geglu(lane, x, *norm, weight, out, **given))
    ada_rms_norm_geglu_ref(x, *norm, weight, want, **given)
    if narrow:
        assert_steps(out, want)
    else:
        assert error(out, want) < FAST


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(1, 1024, 4096), (10, 1024, 4096), (50, 1024, 4096), (56, 64, 4096), (57, 1024, 4096)],
)
def test_gated_residual_of_e4m3(
    device: Any, rows: int, columns: int, depth: int, bias: bool
) -> None:
    x, weight, scales = operands(rows, columns, depth, rows_scaled=True)
    gate, stream = draw(columns, dtype=F32), draw(rows, columns)
    given = scales | ({"bias": draw(columns)} if bias else {})
    want = stream.float()
    run(device, lambda lane: linear_gated_residual(lane, x, weight, gate, stream, **given))
    linear_gated_residual_ref(x, weight, gate, want, **given)
    assert error(stream, want) < FAST
