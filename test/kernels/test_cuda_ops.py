"""Every CUDA kernel against the float32 reference of its op, at π0.5's shapes and at odd ones.

Inputs are bf16; the reference gets the same numbers in float32. Rounding the result to bf16 leaves
a relative error of at most 2^-7 / sqrt(12) = 2.3e-3 over a tensor; what exceeds it is said beside
each tolerance. Outputs are NaN before a kernel runs, so an element that is not written fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.action_in import action_in, action_in_ref
from flashrt_core.kernels.action_out_euler import action_out_euler, action_out_euler_ref
from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu, ada_rms_norm_geglu_ref
from flashrt_core.kernels.ada_rms_norm_qkv_rope_kv import (
    ada_rms_norm_qkv_rope_kv,
    ada_rms_norm_qkv_rope_kv_ref,
)
from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.copy_rows import copy_rows
from flashrt_core.kernels.embed_rows import embed_rows, embed_rows_ref
from flashrt_core.kernels.glu_linear import (
    _TILES,
    Tile,
    fused_glu_launch,
    glu_linear,
    glu_linear_ref,
)
from flashrt_core.kernels.image_patches import image_patches, image_patches_ref
from flashrt_core.kernels.layer_norm import layer_norm, layer_norm_ref
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.offset_count import offset_count
from flashrt_core.kernels.op import Op
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv, qkv_rope_kv_ref
from flashrt_core.kernels.rms_norm import rms_norm, rms_norm_ref
from flashrt_core.kernels.rope_rows import rope_rows, rope_rows_ref
from test.gpu import PLACE, error, run, runs_kernels, synchronize

pytestmark = runs_kernels

ROUNDED = 2.5e-3  # one rounding to bf16, and float32 sums in another order
PROBABILITIES = 3.5e-3  # and probabilities rounded to bf16
CHAINED = 5e-3  # and one or two intermediate results rounded to bf16
FLOAT32 = 2e-5


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.full(shape, float("nan"), device=PLACE, dtype=dtype)


def expected(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, device=PLACE, dtype=torch.float32)


def affine(draw: Any, width: int) -> tuple[Tensor, Tensor]:
    """Gain and shift of a norm."""
    return 1.0 + draw(width, dtype=F32, scale=0.3), draw(width, dtype=F32, scale=0.3)


def twice(device: Any, out: Tensor, body: Callable[[Any], None]) -> Tensor:
    """Runs a body, and again from NaN: equal bits, or what it reads is not there in time."""
    program = run(device, body)
    first = out.clone()
    out.fill_(float("nan"))
    synchronize()
    device.replay(program)
    assert torch.equal(first, out)
    return first


F32 = torch.float32


STREAMS = pytest.mark.parametrize("stream", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])


@STREAMS
@pytest.mark.parametrize(("rows", "width"), [(560, 2048), (968, 2048), (1, 64), (7, 1024), (3, 8)])
def test_rms_norm(device: Any, draw: Any, rows: int, width: int, stream: torch.dtype) -> None:
    x, weight = draw(rows, width, scale=3.0, dtype=stream), draw(width, dtype=F32)
    out, want = empty(rows, width), expected((rows, width))
    run(device, lambda lane: rms_norm(lane, x, weight, out, eps=1e-6))
    rms_norm_ref(x.float(), weight, want, eps=1e-6)
    assert error(out, want) < ROUNDED


@STREAMS
@pytest.mark.parametrize(("rows", "width"), [(512, 1152), (768, 1152), (1, 64), (5, 8), (2, 8192)])
def test_layer_norm(device: Any, draw: Any, rows: int, width: int, stream: torch.dtype) -> None:
    # A mean far from zero shows a variance that was computed by subtraction of squares.
    x = draw(rows, width, dtype=stream) + 20.0
    weight, bias = draw(width, dtype=F32), draw(width, dtype=F32)
    out, want = empty(rows, width), expected((rows, width))
    run(device, lambda lane: layer_norm(lane, x, weight, bias, out, eps=1e-6))
    layer_norm_ref(x.float(), weight, bias, want, eps=1e-6)
    assert error(out, want) < ROUNDED


@pytest.mark.parametrize(
    ("rows", "q_heads", "head_dim"), [(560, 8, 256), (968, 8, 256), (13, 4, 32), (304, 0, 256)]
)
def test_qkv_rope_kv(device: Any, draw: Any, rows: int, q_heads: int, head_dim: int) -> None:
    qkv = draw(rows, (q_heads + 2) * head_dim)
    rope = draw(rows, head_dim, dtype=F32)
    sizes = (q_heads * head_dim, head_dim, head_dim)
    out = [empty(rows, size) if size else None for size in sizes]
    want = [expected((rows, size)) if size else None for size in sizes]
    run(device, lambda lane: qkv_rope_kv(lane, qkv, rope, *out, head_dim=head_dim))
    qkv_rope_kv_ref(qkv.float(), rope, *want, head_dim=head_dim)
    for got, right in zip(out, want, strict=True):
        if got is not None:
            assert error(got, right) < ROUNDED


@pytest.mark.parametrize("side", [224, 56])
def test_image_patches(device: Any, side: int) -> None:
    image = torch.randint(0, 256, (side, side, 3), dtype=torch.uint8, device=PLACE)
    out, want = (make((side // 14) ** 2, 588) for make in (empty, lambda *s: expected(s)))
    run(device, lambda lane: image_patches(lane, image, out, patch=14))
    # On the CPU, as torch on a GPU divides by multiplication with the reciprocal.
    image_patches_ref(image.cpu(), host := want.cpu(), patch=14)
    assert torch.equal(out.cpu(), host.bfloat16())


@pytest.mark.parametrize(("views", "heads", "dim"), [(1, 16, 72), (2, 16, 72), (3, 16, 72)])
def test_attention_in_segments(device: Any, draw: Any, views: int, heads: int, dim: int) -> None:
    packed = draw(views * 256, 3 * heads * dim, scale=1.5)
    q, k, v = packed.view(-1, 3, heads, dim).unbind(1)
    out, want = empty(views * 256, heads * dim), expected((views * 256, heads * dim))
    run(device, lambda lane: attention(lane, q, k, v, out, scale=dim**-0.5, segments=views))
    attention_ref(q.float(), k.float(), v.float(), want, scale=dim**-0.5, segments=views)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize(
    ("rows", "keys", "heads", "dim", "length", "prefix"),
    [
        (560, 560, 8, 256, 530, 560),
        (560, 560, 8, 256, 560, 560),
        (968, 968, 8, 256, 801, 968),
        (304, 304, 8, 256, 257, 304),
        (200, 200, 8, 256, 161, 200),
        (65, 65, 8, 256, 20, 65),
        (10, 570, 8, 256, 530, 560),
        (50, 1018, 8, 256, 800, 968),
        (15, 583, 8, 256, 1, 568),
        (1, 65, 8, 256, 64, 64),
        (10, 58, 4, 32, 40, 48),
        (48, 48, 4, 32, 17, 48),
    ],
)
def test_attention_over_a_prefix(
    device: Any, draw: Any, rows: int, keys: int, heads: int, dim: int, length: int, prefix: int
) -> None:
    q, k, v = draw(rows, heads, dim, scale=2.0), draw(keys, 1, dim), draw(keys, 1, dim)
    # What is hidden must not matter, whatever it holds.
    k[length:prefix], v[length:prefix] = float("nan"), float("inf")
    valid = torch.tensor([length], dtype=torch.int32, device=PLACE)
    out, want = empty(rows, heads * dim), expected((rows, heads * dim))
    mask: dict[str, Any] = {"scale": dim**-0.5, "prefix_length": valid, "prefix_rows": prefix}
    run(device, lambda lane: attention(lane, q, k, v, out, **mask))
    k[length:prefix], v[length:prefix] = 0.0, 0.0
    attention_ref(q.float(), k.float(), v.float(), want, **mask)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize("rows", [1, 7, 8, 10, 15, 16, 33, 50, 64])
@pytest.mark.parametrize("prefix", [304, 560, 568, 712, 968])
def test_attention_of_few_queries(device: Any, draw: Any, rows: int, prefix: int) -> None:
    q, cache = draw(rows, 8, 256, scale=2.0), draw(2, prefix + rows, 1, 256)
    valid = torch.zeros(1, dtype=torch.int32, device=PLACE)
    out, want = empty(rows, 2048), expected((rows, 2048))
    mask: dict[str, Any] = {"scale": 1 / 16, "prefix_length": valid, "prefix_rows": prefix}
    k, v = cache.unbind()
    program = run(device, lambda lane: attention(lane, q, k, v, out, **mask))
    for length in (prefix, prefix - 7, prefix // 2 + 1, 1, 0):
        # Hidden rows hold what must not leak; the length is read when the graph runs.
        valid.fill_(length)
        k[length:prefix], v[length:prefix] = float("nan"), float("inf")
        results = []
        for _ in range(2):
            out.fill_(float("nan"))
            synchronize()
            device.replay(program)
            results.append(out.clone())
        visible = cache.float()
        visible[:, length:prefix] = 0.0
        attention_ref(q.float(), *visible.unbind(), want, **mask)
        assert error(out, want) < PROBABILITIES, length
        assert torch.equal(*results)


@pytest.mark.parametrize("rows", [304, 512, 560, 968, 10, 1])
@pytest.mark.parametrize(
    ("columns", "depth", "bias", "activation", "residual"),
    [
        (3456, 1152, True, "none", "none"),
        (1152, 1152, True, "none", "in place"),
        (4304, 1152, True, "gelu_tanh", "none"),
        (1152, 588, True, "none", "none"),
        (2048, 16384, False, "none", "in place"),
        (64, 64, False, "none", "other"),
    ],
)
def test_linear(
    device: Any,
    draw: Any,
    rows: int,
    columns: int,
    depth: int,
    bias: bool,
    activation: Any,
    residual: str,
) -> None:
    x, weight = draw(rows, depth), draw(columns, depth, scale=depth**-0.5)
    offset = draw(columns) if bias else None
    out = draw(rows, columns) if residual == "in place" else empty(rows, columns)
    added = {"none": None, "in place": out, "other": draw(rows, columns)}[residual]
    want = expected((rows, columns))
    linear_ref(
        x.float(),
        weight.float(),
        None if offset is None else offset.float(),
        want,
        activation=activation,
        residual=None if added is None else added.float(),
    )
    run(
        device,
        lambda lane: linear(lane, x, weight, offset, out, activation=activation, residual=added),
    )
    # The library's gelu rounds its argument.
    assert error(out, want) < CHAINED


@STREAMS
def test_linear_adds_a_table_to_every_run(device: Any, draw: Any, stream: torch.dtype) -> None:
    x, weight = draw(512, 588), draw(1152, 588, scale=0.04)
    table, bias = draw(256, 1152, dtype=stream), draw(1152, dtype=stream)
    out, want = empty(512, 1152, dtype=stream), expected((512, 1152))
    run(device, lambda lane: linear(lane, x, weight, bias, out, residual=table))
    linear_ref(x.float(), weight.float(), bias.float(), want, residual=table.float())
    # cuBLASLt rounds the product to bf16 before it adds the bf16 table.
    assert error(out, want) < (CHAINED if stream is torch.bfloat16 else FLOAT32)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "bias"),
    [(512, 1152, 4304, True), (768, 1152, 1152, True), (560, 2048, 16384, False)],
)
def test_linear_into_a_float32_stream(
    device: Any, draw: Any, rows: int, columns: int, depth: int, bias: bool
) -> None:
    x, weight = draw(rows, depth), draw(columns, depth, scale=depth**-0.5)
    offset = draw(columns, dtype=F32) if bias else None
    out, want = draw(rows, columns, dtype=F32), expected((rows, columns))
    linear_ref(x.float(), weight.float(), offset, want, residual=out)
    run(device, lambda lane: linear(lane, x, weight, offset, out, residual=out))
    assert error(out, want) < FLOAT32


@pytest.mark.parametrize(
    ("rows", "width", "depth"),
    [
        (560, 16384, 2048),
        (968, 16384, 2048),
        (304, 16384, 2048),
        (713, 16384, 2048),
        (1, 256, 64),
        (33, 512, 192),
        (10, 160, 64),
    ],
)
def test_glu_linear(device: Any, draw: Any, rows: int, width: int, depth: int) -> None:
    x, weight = draw(rows, depth), draw(2 * width, depth, scale=depth**-0.5)
    out, want = empty(rows, width), expected((rows, width))
    run(device, lambda lane: glu_linear(lane, x, weight, out))
    glu_linear_ref(x.float(), weight.float(), want)
    assert error(out, want) < CHAINED  # the library's way rounds gate and up


@pytest.mark.parametrize("tile", _TILES, ids=lambda tile: tile.kernel)
@pytest.mark.parametrize("rows", [8, 191, 407])
def test_fused_geglu_tiles(device: Any, draw: Any, tile: Tile, rows: int) -> None:
    if device.launcher.architecture != 90:
        pytest.skip("the fused kernel is for sm_90")
    x, weight = draw(rows, 256), draw(1024, 256, scale=0.06)
    out, want = empty(rows, 512), expected((rows, 512))
    fused = Op(
        "fused", glu_linear_ref, lambda launcher, *args: fused_glu_launch(launcher, *args, tile)
    )
    run(device, lambda lane: lane.issue(fused, x, weight, out))
    glu_linear_ref(x.float(), weight.float(), want)
    assert error(out, want) < ROUNDED


def test_prompt_rows(device: Any, draw: Any) -> None:
    table, tokens = draw(1000, 2048), torch.randint(0, 1000, (48,), device=PLACE).int()
    length = torch.tensor([31], dtype=torch.int32, device=PLACE)
    first = torch.zeros(1, dtype=torch.int32, device=PLACE)
    embedded, copied, rope = empty(48, 2048), empty(48, 2048), empty(10, 256, dtype=F32)
    widened, coarse = empty(48, 2048, dtype=F32), empty(10, 256, dtype=F32)

    def body(lane: Any) -> None:
        embed_rows(lane, tokens, length, table, embedded, scale=45.25)
        copy_rows(lane, embedded, copied)
        copy_rows(lane, embedded, widened)
        offset_count(lane, length, first, offset=512)
        rope_rows(lane, first, rope, theta=10000.0)
        rope_rows(lane, first, coarse, theta=10000.0, rounded=True)

    run(device, body)
    want, angles = expected((48, 2048)), expected((10, 256))
    embed_rows_ref(tokens, length, table.float(), want, scale=45.25)
    rope_rows_ref(first, angles, theta=10000.0)
    assert torch.equal(embedded, want.bfloat16())
    assert torch.equal(copied, embedded)
    assert torch.equal(widened, embedded.float())
    assert int(first) == 543
    assert error(rope, angles) < 1e-6
    rope_rows_ref(first, angles, theta=10000.0, rounded=True)
    assert error(coarse, angles) < 1e-6
    assert error(coarse, rope) > 0.1


@pytest.mark.parametrize("rows", [1, 10, 14, 15, 17, 30, 33, 50, 54, 55, 62, 64])
def test_expert_ops(device: Any, draw: Any, rows: int) -> None:
    x, table = draw(rows, 1024), draw(3, 1024, dtype=F32, scale=0.3)
    rope, qkv_weight = draw(rows, 256, dtype=F32), draw(2560, 1024, scale=1 / 32)
    out = [empty(rows, size) for size in (2048, 256, 256)]
    want = [expected((rows, size)) for size in (2048, 256, 256)]
    settings: dict[str, Any] = {"head_dim": 256, "eps": 1e-6}
    args = (table[0], table[1], qkv_weight, rope)
    run(device, lambda lane: ada_rms_norm_qkv_rope_kv(lane, x, *args, *out, **settings))
    ada_rms_norm_qkv_rope_kv_ref(
        x.float(), table[0], table[1], qkv_weight.float(), rope, *want, **settings
    )
    assert max(map(error, out, want)) < CHAINED

    gate_up, hidden, wanted = (
        draw(8192, 1024, scale=1 / 32),
        empty(rows, 4096),
        expected((rows, 4096)),
    )
    norm = (table[0], table[1])
    run(device, lambda lane: ada_rms_norm_geglu(lane, x, *norm, gate_up, hidden, eps=1e-6))
    ada_rms_norm_geglu_ref(x.float(), *norm, gate_up.float(), wanted, eps=1e-6)
    assert error(hidden, wanted) < CHAINED

    for depth in (2048, 4096):
        branch, weight = draw(rows, depth), draw(1024, depth, scale=depth**-0.5)
        stream = draw(rows, 1024)
        wanted = stream.float()
        run(device, lambda lane: linear_gated_residual(lane, branch, weight, table[2], stream))  # noqa: B023
        linear_gated_residual_ref(branch.float(), weight.float(), table[2], wanted)
        assert error(stream, wanted) < CHAINED


@pytest.mark.parametrize("rows", [1, 10, 50])
def test_ends_of_a_step(device: Any, draw: Any, rows: int) -> None:
    sample, weight_in = draw(rows, 32, dtype=F32), draw(1024, 32, dtype=F32)
    bias_in, hidden = draw(1024, dtype=F32), empty(rows, 1024)
    want = expected((rows, 1024))
    run(device, lambda lane: action_in(lane, sample, weight_in, bias_in, hidden))
    action_in_ref(sample, weight_in, bias_in, want)
    assert error(hidden, want) < ROUNDED

    table = draw(2, 1024, dtype=F32, scale=0.3)
    weight, bias = draw(32, 1024, dtype=F32), draw(32, dtype=F32)
    result = sample.clone()
    args = (table[0], table[1], weight, bias)
    step: dict[str, Any] = {"dt": -0.1, "eps": 1e-6}
    wanted = expected((rows, 32))
    action_out_euler_ref(hidden.float(), *args, sample, wanted, **step)
    run(device, lambda lane: action_out_euler(lane, hidden, *args, result, result, **step))
    assert error(result, wanted) < FLOAT32
