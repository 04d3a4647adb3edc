"""CUDA kernels of GR00T's ops against their float32 references, at its shapes and at odd ones.

As in test_cuda_ops.py: inputs are bf16, the reference gets the same numbers in float32, outputs are
NaN before a kernel runs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.action_in import action_in, action_in_ref
from flashrt_core.kernels.action_out_euler import action_out_euler, action_out_euler_ref
from flashrt_core.kernels.add_rows import add_rows
from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.copy_rows import copy_rows
from flashrt_core.kernels.glu_linear import (
    _SILU_TILES,
    Tile,
    fused_glu_launch,
    glu_linear,
    glu_linear_ref,
)
from flashrt_core.kernels.image_patches import image_patches, image_patches_ref
from flashrt_core.kernels.layer_norm import layer_norm, layer_norm_ref
from flashrt_core.kernels.op import Op
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv, qkv_rope_kv_ref
from flashrt_core.kernels.quantised import E4M3, quantise
from flashrt_core.kernels.rope_attention import rope_attention, rope_attention_ref
from test.gpu import PLACE, error, run, runs_kernels, synchronize

from .test_cuda_ops import CHAINED, F32, FLOAT32, PROBABILITIES, ROUNDED, empty, expected, twice

pytestmark = runs_kernels

BF16 = torch.bfloat16
STEPS = 3e-2  # one number of E4M3 in 30 a step off, which is 6 to 12 % of it
ACTIVATIONS = ("none", "gelu_tanh", "gelu", "silu", "relu")


@pytest.mark.parametrize("stream", [BF16, F32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("rows", "width"), [(41, 1536), (64, 4096), (230, 2048), (3, 8)])
def test_layer_norm_without_gain(
    device: Any, draw: Any, rows: int, width: int, stream: torch.dtype
) -> None:
    x, out, want = (
        draw(rows, width, dtype=stream) + 20.0,
        empty(rows, width),
        expected((rows, width)),
    )
    run(device, lambda lane: layer_norm(lane, x, None, None, out, eps=1e-5))
    layer_norm_ref(x.float(), None, None, want, eps=1e-5)
    assert error(out, want) < ROUNDED


def test_layer_norm_into_a_float32_stream(device: Any, draw: Any) -> None:
    x, weight, bias = draw(88, 2048, dtype=F32), draw(2048, dtype=F32), draw(2048, dtype=F32)
    out, want = empty(88, 2048, dtype=F32), expected((88, 2048))
    run(device, lambda lane: layer_norm(lane, x, weight, bias, out, eps=1e-5))
    layer_norm_ref(x, weight, bias, want, eps=1e-5)
    assert error(out, want) < FLOAT32


@pytest.mark.parametrize(
    ("rows", "q_heads", "kv_heads", "head_dim"),
    [(88, 16, 8, 128), (230, 16, 8, 128), (5, 3, 1, 64), (7, 0, 2, 32), (2, 1, 1, 256)],
)
def test_normalised_heads(
    device: Any, draw: Any, rows: int, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    qkv, rope = draw(rows, (q_heads + 2 * kv_heads) * head_dim), draw(rows, head_dim, dtype=F32)
    sizes = (q_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    norms: dict[str, Any] = {"k_norm": draw(head_dim, dtype=F32), "eps": 1e-6}
    if q_heads:
        norms["q_norm"] = draw(head_dim, dtype=F32)
    out = [empty(rows, size) if size else None for size in sizes]
    want = [expected((rows, size)) if size else None for size in sizes]
    run(device, lambda lane: qkv_rope_kv(lane, qkv, rope, *out, head_dim=head_dim, **norms))
    qkv_rope_kv_ref(qkv.float(), rope, *want, head_dim=head_dim, **norms)
    for got, right in zip(out, want, strict=True):
        if got is not None:
            assert error(got, right) < ROUNDED


def test_rotary_rows_of_many_key_heads(device: Any, draw: Any) -> None:
    qkv, rope = draw(512, 3 * 1024), draw(512, 64, dtype=F32)
    out, want = ([make((512, 1024)) for _ in range(3)] for make in (lambda s: empty(*s), expected))
    run(device, lambda lane: qkv_rope_kv(lane, qkv, rope, *out, head_dim=64))
    qkv_rope_kv_ref(qkv.float(), rope, *want, head_dim=64)
    assert max(map(error, out, want)) < ROUNDED


@pytest.mark.parametrize("side", [256, 64])
def test_grouped_patches(device: Any, side: int) -> None:
    image = torch.randint(0, 256, (side, side, 3), dtype=torch.uint8, device=PLACE)
    out, want = empty((side // 16) ** 2, 768), expected(((side // 16) ** 2, 768))
    run(device, lambda lane: image_patches(lane, image, out, patch=16, merge=2))
    image_patches_ref(image.cpu(), host := want.cpu(), patch=16, merge=2)
    assert torch.equal(out.cpu(), host.bfloat16())


@pytest.mark.parametrize("views", [1, 2, 3])
def test_attention_of_views(device: Any, draw: Any, views: int) -> None:
    q, k, v = (draw(views * 256, 16, 64, scale=1.5) for _ in range(3))
    out, want = empty(views * 256, 1024), expected((views * 256, 1024))
    twice(device, out, lambda lane: attention(lane, q, k, v, out, scale=0.125, segments=views))
    attention_ref(q.float(), k.float(), v.float(), want, scale=0.125, segments=views)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim", "views", "normed"),
    [
        (256, 16, 16, 64, 1, False),
        (512, 16, 16, 64, 2, False),
        (768, 16, 16, 64, 3, False),
        (512, 3, 3, 64, 2, False),
        (88, 16, 8, 128, 1, True),
        (36, 4, 2, 64, 2, False),
    ],
)
def test_rows_turn_and_attend(
    device: Any, draw: Any, rows: int, heads: int, kv_heads: int, dim: int, views: int, normed: bool
) -> None:
    qkv, rope = draw(rows, (heads + 2 * kv_heads) * dim), draw(rows, dim, dtype=F32)
    sizes = (heads * dim, kv_heads * dim, kv_heads * dim)
    settings: dict[str, Any] = {"head_dim": dim, "scale": dim**-0.5, "segments": views}
    if normed:
        norms = {name: draw(dim, dtype=F32) for name in ("q_norm", "k_norm")}
        settings |= {**norms, "eps": 1e-6, "causal": True}
    parts = [empty(rows, size) for size in sizes]
    out, want = empty(rows, heads * dim), expected((rows, heads * dim))
    twice(device, out, lambda lane: rope_attention(lane, qkv, rope, *parts, out, **settings))
    # Between turning and attention numbers are rounded.
    rounded = [empty(rows, size) for size in sizes]
    rope_attention_ref(qkv.float(), rope, *rounded, want, **settings)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("low", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 88, 96, 160, 200, 256, 257])
@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 8), (4, 1), (3, 1)])
def test_causal_rows_turn_and_attend(
    device: Any, draw: Any, rows: int, heads: int, kv_heads: int, low: bool
) -> None:
    widths = (heads * 128, kv_heads * 128, kv_heads * 128)
    qkv = draw(rows, sum(widths) + 8)[:, :-8]  # rows further apart than they are wide
    phase = 3.0 * draw(rows, 64, dtype=F32)
    rope = torch.cat((phase.cos(), phase.sin()), dim=1)
    settings: dict[str, Any] = {"head_dim": 128, "scale": 128**-0.5, "causal": True, "eps": 1e-6}
    settings |= {name: draw(128, dtype=F32) + 1.0 for name in ("q_norm", "k_norm")}
    into = E4M3 if low else BF16
    if low:
        settings["out_scale"] = torch.tensor([2.0**-6], device=PLACE)
    out, want = (empty(rows, widths[0]).to(into) for _ in range(2))
    parts, rounded = ([empty(rows, width) for width in widths] for _ in range(2))
    run(device, lambda lane: rope_attention(lane, qkv, rope, *parts, out, **settings))
    rope_attention_ref(qkv, rope, *rounded, want, **settings)
    bound = STEPS if low else CHAINED
    assert error(out.float(), want.float()) < bound
    if half := rows // 32 * 16:  # no row sees a tile of 16 behind its own, whatever that holds
        qkv[half:] = float("nan")
        run(device, lambda lane: rope_attention(lane, qkv, rope, *parts, out, **settings))
        assert error(out[:half].float(), want[:half].float()) < bound


@pytest.mark.parametrize(
    ("rows", "keys", "heads", "kv_heads", "dim", "segments"),
    [
        (41, 41, 32, 32, 48, 1),
        (41, 24, 32, 32, 48, 1),
        (41, 64, 32, 32, 48, 1),
        (41, 192, 32, 32, 48, 1),
        (41, 200, 32, 32, 48, 1),
        (88, 88, 32, 32, 64, 1),
        (230, 230, 32, 32, 64, 1),
        (36, 36, 4, 2, 64, 3),
        (700, 700, 16, 8, 128, 1),
        (1, 1, 2, 1, 128, 1),
        (17, 5, 6, 3, 48, 1),
    ],
)
def test_attention_of_many_heads(
    device: Any, draw: Any, rows: int, keys: int, heads: int, kv_heads: int, dim: int, segments: int
) -> None:
    q = draw(rows, heads, dim, scale=2.0)
    k, v = draw(keys, 2, kv_heads, dim).unbind(1)  # rows of both, as they are cached
    out, want = empty(rows, heads * dim), expected((rows, heads * dim))
    settings: dict[str, Any] = {"scale": dim**-0.5, "segments": segments}
    twice(device, out, lambda lane: attention(lane, q, k, v, out, **settings))
    attention_ref(q.float(), k.float(), v.float(), want, **settings)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 64, 65, 88, 156, 230, 700])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(16, 8, 128), (4, 4, 64), (4, 2, 32)])
def test_causal_attention(
    device: Any, draw: Any, rows: int, heads: int, kv_heads: int, dim: int
) -> None:
    q, k, v = (draw(rows, count, dim, scale=1.5) for count in (heads, kv_heads, kv_heads))
    out, want = empty(rows, heads * dim), expected((rows, heads * dim))
    settings: dict[str, Any] = {"scale": dim**-0.5, "causal": True}
    twice(device, out, lambda lane: attention(lane, q, k, v, out, **settings))
    attention_ref(q.float(), k.float(), v.float(), want, **settings)
    assert error(out, want) < PROBABILITIES
    # No row sees a tile of 16 behind its own, whatever that holds; within one, weights are zero.
    half = rows // 32 * 16
    q[half:], k[half:], v[half:] = float("nan"), float("nan"), float("inf")
    run(device, lambda lane: attention(lane, q, k, v, out, **settings))
    if half:
        assert error(out[:half], want[:half]) < PROBABILITIES


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "heads", "dim", "prefix"),
    [(88, 88, 32, 64, 88), (41, 200, 32, 48, 200), (41, 32, 32, 48, 32), (20, 40, 4, 128, 24)],
)
def test_keys_beyond_a_length_are_not_read(
    device: Any, draw: Any, rows: int, keys: int, heads: int, dim: int, prefix: int, kept: bool
) -> None:
    q, cache = draw(rows, heads, dim, scale=2.0), draw(2, keys, heads, dim)
    k, v = cache.unbind()
    valid = torch.zeros(1, dtype=torch.int32, device=PLACE)
    out, want = empty(rows, heads * dim), expected((rows, heads * dim))
    mask: dict[str, Any] = {"scale": dim**-0.5, "prefix_length": valid, "prefix_rows": prefix}
    program = run(device, lambda lane: attention(lane, q, k, v, out, **mask, kept=kept))
    for length in (prefix, prefix - 7, 17, 16, 1):
        valid.fill_(length)
        k[length:prefix], v[length:prefix] = float("nan"), float("inf")
        out.fill_(float("nan"))
        synchronize()
        device.replay(program)
        visible = cache.float()
        visible[:, length:prefix] = 0.0
        attention_ref(q.float(), *visible.unbind(), want, **mask)
        assert error(out, want) < PROBABILITIES, length


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 64, 230])
def test_activations_behind_a_product(device: Any, draw: Any, rows: int, activation: Any) -> None:
    x, weight, bias = draw(rows, 4096), draw(1024, 4096, scale=1 / 64), draw(1024)
    out, want = empty(rows, 1024), expected((rows, 1024))
    run(device, lambda lane: linear(lane, x, weight, bias, out, activation=activation))
    linear_ref(x.float(), weight.float(), bias.float(), want, activation=activation)
    assert error(out, want) < CHAINED


@pytest.mark.parametrize(
    ("rows", "width", "depth"),
    [(88, 6144, 2048), (156, 6144, 2048), (230, 6144, 2048), (1, 256, 64)],
)
def test_gate_of_silu(device: Any, draw: Any, rows: int, width: int, depth: int) -> None:
    x, weight = draw(rows, depth), draw(2 * width, depth, scale=depth**-0.5)
    out, want = empty(rows, width), expected((rows, width))
    run(device, lambda lane: glu_linear(lane, x, weight, out, activation="silu"))
    glu_linear_ref(x.float(), weight.float(), want, activation="silu")
    assert error(out, want) < CHAINED


@pytest.mark.parametrize("tile", _SILU_TILES, ids=lambda tile: tile.kernel)
@pytest.mark.parametrize("rows", [8, 88, 191, 407])
def test_fused_silu_tiles(device: Any, draw: Any, tile: Tile, rows: int) -> None:
    if device.launcher.architecture != 90:
        pytest.skip("the fused kernel is for sm_90")
    x, weight = draw(rows, 256), draw(1024, 256, scale=0.06)
    out, want = empty(rows, 512), expected((rows, 512))
    fused = Op(
        "fused", glu_linear_ref, lambda launcher, *args: fused_glu_launch(launcher, *args, tile)
    )
    twice(device, out, lambda lane: lane.issue(fused, x, weight, out))
    glu_linear_ref(x.float(), weight.float(), want, activation="silu")
    assert error(out, want) < ROUNDED


@pytest.mark.parametrize("stream", [BF16, F32], ids=["bf16", "f32"])
def test_additions_and_narrowing_copies(device: Any, draw: Any, stream: torch.dtype) -> None:
    src, out = draw(64, 2048), draw(64, 2048, dtype=stream)
    want = out.float() + src.float()
    run(device, lambda lane: add_rows(lane, src, out))
    assert torch.equal(out, want.to(stream))
    narrow, scale = empty(64, 2048), torch.tensor([0.25], device=PLACE)
    small = torch.empty(64, 2048, device=PLACE).to(E4M3)
    run(device, lambda lane: copy_rows(lane, out, narrow))
    run(device, lambda lane: copy_rows(lane, out, small, out_scale=scale))
    assert torch.equal(narrow, out.bfloat16())
    assert torch.equal(small.float(), quantise(out, scale).float())


@pytest.mark.parametrize("activation", ["none", "silu", "relu"])
@pytest.mark.parametrize(
    ("rows", "depth", "width"), [(40, 132, 1536), (1, 132, 1024), (97, 64, 32), (3, 7, 24)]
)
def test_entry_of_wide_actions(
    device: Any, draw: Any, rows: int, depth: int, width: int, activation: Any
) -> None:
    x, weight = draw(rows, depth, dtype=F32), draw(width, depth, dtype=F32, scale=depth**-0.5)
    bias, out, want = draw(width, dtype=F32), empty(rows, width), expected((rows, width))
    run(device, lambda lane: action_in(lane, x, weight, bias, out, activation=activation))
    action_in_ref(x, weight, bias, want, activation=activation)
    # Few actions take a pass of their own for what follows the product, which is rounded before it.
    assert error(out, want) < (ROUNDED if activation == "none" else CHAINED)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(("rows", "width", "actions"), [(40, 1024, 132), (1, 64, 7), (9, 3072, 4)])
def test_end_of_a_step_without_a_norm(
    device: Any, draw: Any, rows: int, width: int, actions: int, guided: bool
) -> None:
    hidden, weight = draw(rows, width), draw(actions, width, dtype=F32, scale=width**-0.5)
    bias, sample = draw(actions, dtype=F32), draw(rows, actions, dtype=F32)
    step: dict[str, Any] = {"dt": -0.25}
    if guided:
        step |= {"previous": draw(rows, actions, dtype=F32), "time": 0.75}
        step["guidance"] = torch.rand(rows, actions, device=PLACE).mul_(2).clamp_(max=1.0)
    want = expected((rows, actions))
    action_out_euler_ref(hidden.float(), None, None, weight, bias, sample, want, eps=0.0, **step)
    ends = (hidden, None, None, weight, bias, sample, sample)
    run(device, lambda lane: action_out_euler(lane, *ends, **step))
    assert error(sample, want) < FLOAT32
