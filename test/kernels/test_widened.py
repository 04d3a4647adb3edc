"""What ops take beyond their first use: activations, norms that are there or not, other orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from flashrt_core.errors import ContractError
from flashrt_core.gemm import linear
from flashrt_core.kernels.action_in import action_in
from flashrt_core.kernels.action_out_euler import action_out_euler
from flashrt_core.kernels.add_rows import add_rows
from flashrt_core.kernels.copy_rows import copy_rows
from flashrt_core.kernels.glu_linear import glu_linear
from flashrt_core.kernels.image_patches import image_patches
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv
from flashrt_core.kernels.quantised import E4M3

from .helpers import BF16, DTYPES, F32, assert_rounded_once, gelu, layer, normal, rms, run, turn
from .test_low_bit import FORMS, assert_product, packed, rounded, scale_of, through

EPS = 1e-5
#: The same in float64, written out.
EXACT: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "gelu_tanh": gelu,
    "gelu": lambda y: y / 2 * (1 + torch.special.erf(y / 2**0.5)),
    "silu": lambda y: y / (1 + torch.exp(-y)),
    "relu": lambda y: torch.where(y > 0, y, torch.zeros_like(y)),
}


def weight_of(rows: int, columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    return normal(rows, columns, seed=seed, dtype=dtype, std=columns**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", EXACT)
def test_activations(activation: str, dtype: torch.dtype) -> None:
    """Of a product, of one behind a norm, of one with float32 weights."""
    x, weight = normal(41, 96, seed=1, dtype=dtype, std=2.0), weight_of(64, 96, 2, dtype)
    bias, residual = normal(64, seed=3, dtype=dtype), normal(41, 64, seed=4, dtype=dtype)
    act = EXACT[activation]
    product = act(x.double() @ weight.double().t() + bias.double())
    out = torch.empty(41, 64, dtype=dtype)
    run(lambda lane: linear(lane, x, weight, bias, out, activation=activation))  # type: ignore[arg-type]
    assert_rounded_once(out, product)
    exact = product + residual.double()
    run(
        lambda lane: linear(
            lane,
            x,
            weight,
            bias,
            residual,
            activation=activation,  # type: ignore[arg-type]
            residual=residual,
        )
    )
    assert_rounded_once(residual, exact)
    if activation in ("none", "silu", "relu"):
        wide = weight.float(), bias.float()
        sample = x.float()
        run(lambda lane: action_in(lane, sample, *wide, out, activation=activation))  # type: ignore[arg-type]
        assert_rounded_once(out, product)


# Queries, the first half of a feed-forward block and the last projection of a diffusion
# transformer; then odd sizes. The stream may be float32 where the weight is not.
@pytest.mark.parametrize(("stream", "dtype"), [(F32, F32), (BF16, BF16), (F32, BF16)])
@pytest.mark.parametrize(
    ("shape", "activation", "affine"),
    [
        ((41, 1536, 1536), "none", True),
        ((41, 1536, 600), "gelu_tanh", False),
        ((40, 1536, 128), "relu", True),
        ((3, 7, 5), "silu", False),
        ((1, 2, 1), "gelu", True),
    ],
)
def test_layer_norm_linear(
    shape: tuple[int, int, int],
    activation: str,
    affine: bool,
    stream: torch.dtype,
    dtype: torch.dtype,
) -> None:
    rows, columns, width = shape
    x = normal(rows, columns, seed=1, dtype=stream, std=3.0) + 2.0
    gain, shift = normal(columns, seed=2) + 1.0, normal(columns, seed=3)
    weight, bias = weight_of(width, columns, 4, dtype), normal(width, seed=5, dtype=dtype)
    out = torch.empty(rows, width, dtype=dtype)
    exact = layer(x.double(), EPS)
    if affine:
        exact = exact * gain.double() + shift.double()
    norm = (gain, shift) if affine else (None, None)
    act, product = EXACT[activation], exact @ weight.double().t()
    for offset in (bias, None):
        wanted = act(product if offset is None else product + offset.double())
        run(
            lambda lane, offset=offset: layer_norm_linear(
                lane, x, *norm, weight, offset, out, eps=EPS, activation=activation
            )
        )
        assert_rounded_once(out, wanted)


@pytest.mark.parametrize("form", FORMS)
def test_low_bit_layer_norm_linear(form: str) -> None:
    low = form == "fp8"
    rows, columns, width = 9, 64, 48
    weight, weight_scale, w = packed(width, columns, 2, form, rows_scaled=not low)
    x, bias = normal(rows, columns, seed=1, dtype=BF16), normal(width, seed=3)
    n = layer(x.double(), EPS)
    if low:
        n = torch.from_numpy(through(n, 2.0**-6))
    wanted = gelu(n @ w.t() + bias.double())
    scales = {"weight_scale": weight_scale, "x_scale": scale_of(2.0**-6) if low else None}
    out, small = torch.empty(rows, width, dtype=BF16), torch.empty(rows, width, dtype=E4M3)
    args = (x, None, None, weight, bias)
    run(lambda lane: layer_norm_linear(lane, *args, out, eps=EPS, activation="gelu_tanh", **scales))
    assert_product(out, wanted)
    scales["out_scale"] = scale_of(0.01)
    run(
        lambda lane: layer_norm_linear(
            lane, *args, small, eps=EPS, activation="gelu_tanh", **scales
        )
    )
    assert_product(small, wanted, float(scale_of(0.01)))
    if low:  # two E4M3 operands have a scale each
        scales["weight_scale"] = weight_scale.expand(width).contiguous()
        with pytest.raises(ContractError, match=r"'weight_scale': expected \[1\], got \[48\]"):
            run(lambda lane: layer_norm_linear(lane, *args, small, eps=EPS, **scales))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "ffn"), [(88, 256, 300), (3, 5, 7)])
def test_a_gate_of_silu(rows: int, width: int, ffn: int, dtype: torch.dtype) -> None:
    x, out = normal(rows, width, seed=1, dtype=dtype), torch.empty(rows, ffn, dtype=dtype)
    gate, up = weight_of(ffn, width, 2, dtype), weight_of(ffn, width, 3, dtype)
    weight = torch.stack((gate, up), dim=1).flatten(0, 1)
    run(lambda lane: glu_linear(lane, x, weight, out, activation="silu"))
    exact = x.double()
    wanted = EXACT["silu"](exact @ gate.double().t()) * (exact @ up.double().t())
    assert_rounded_once(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "actions", "width"), [(40, 132, 1024), (3, 5, 7)])
def test_a_step_without_a_norm(rows: int, actions: int, width: int, dtype: torch.dtype) -> None:
    hidden, sample = normal(rows, width, seed=1, dtype=dtype), normal(rows, actions, seed=2)
    weight, bias = weight_of(actions, width, 3, F32), normal(actions, seed=4)
    velocity = hidden.double() @ weight.double().t() + bias.double()
    out = torch.empty(rows, actions)
    run(
        lambda lane: action_out_euler(lane, hidden, None, None, weight, bias, sample, out, dt=-0.25)
    )
    assert_rounded_once(out, sample.double() - 0.25 * velocity)
    free, previous = out.clone(), normal(rows, actions, seed=5)
    guidance = torch.zeros(rows, actions)
    guidance[0] = 1.0
    run(
        lambda lane: action_out_euler(
            lane,
            hidden,
            None,
            None,
            weight,
            bias,
            sample,
            out,
            dt=-0.25,
            previous=previous,
            guidance=guidance,
            time=0.25,
        )
    )
    assert torch.equal(out[0], previous[0]) and torch.equal(out[1:], free[1:])


# rows, query heads, key heads, head width: a text stack, then odd ones
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(20, 16, 8, 128), (5, 6, 2, 4), (1, 1, 1, 2)])
def test_heads_are_normalised_before_they_turn(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    rows, heads, kv_heads, dim = shape
    positions = torch.arange(rows) * 3 + 1
    frequency = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    angles = positions.double()[:, None] * frequency
    rope = torch.cat((angles.cos(), angles.sin()), dim=1).float()
    qkv = normal(rows, (heads + 2 * kv_heads) * dim, seed=1, dtype=dtype, std=4.0)
    q_norm, k_norm = normal(dim, seed=2) + 1.0, normal(dim, seed=3) + 1.0
    q, k = (torch.empty(rows, count * dim, dtype=dtype) for count in (heads, kv_heads))
    v = torch.empty(rows, kv_heads * dim, dtype=dtype)
    norms = {"k_norm": k_norm, "eps": EPS}

    parts = qkv.double().split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)

    def wanted(part: Tensor, gain: Tensor) -> Tensor:
        normal_heads = rms(part.reshape(rows, -1, dim), EPS) * gain.double()
        return turn(normal_heads, positions, 10000.0).flatten(1)

    run(lambda lane: qkv_rope_kv(lane, qkv, rope, q, k, v, head_dim=dim, q_norm=q_norm, **norms))  # type: ignore[arg-type]
    assert_rounded_once(q, wanted(parts[0], q_norm))
    assert_rounded_once(k, wanted(parts[1], k_norm))
    assert torch.equal(v.double(), parts[2])
    again, tail = k.clone(), qkv[:, heads * dim :]
    run(lambda lane: qkv_rope_kv(lane, tail, rope, None, k, v, head_dim=dim, **norms))  # type: ignore[arg-type]
    assert torch.equal(k, again)


@pytest.mark.parametrize(("into", "dtype"), [(F32, F32), (BF16, BF16), (F32, BF16)])
def test_rows_are_added_to_a_stream(into: torch.dtype, dtype: torch.dtype) -> None:
    src, out = normal(64, 40, seed=1, dtype=dtype), normal(64, 40, seed=2, dtype=into)
    exact = out.double() + src.double()
    run(lambda lane: add_rows(lane, src, out))
    assert_rounded_once(out, exact)


def test_rows_are_quantised_on_their_way() -> None:
    src, out = normal(5, 24, seed=1), torch.empty(5, 24, dtype=E4M3)
    run(lambda lane: copy_rows(lane, src, out, out_scale=scale_of(0.1)))
    exact = rounded((src / np.float32(0.1)).double().numpy())
    assert np.array_equal(out.double().numpy(), exact)


@pytest.mark.parametrize(("height", "width", "patch", "merge"), [(64, 96, 16, 2), (18, 9, 3, 3)])
def test_patches_in_groups(height: int, width: int, patch: int, merge: int) -> None:
    """Groups in rows, patches of one in rows too: what a merge of neighbours takes as one row."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels)
    rows, columns = height // patch, width // patch
    plain, grouped = (torch.empty(rows * columns, 3 * patch * patch) for _ in range(2))
    run(lambda lane: image_patches(lane, image, plain, patch=patch))
    run(lambda lane: image_patches(lane, image, grouped, patch=patch, merge=merge))
    order = [
        (top + y) * columns + left + x
        for top in range(0, rows, merge)
        for left in range(0, columns, merge)
        for y in range(merge)
        for x in range(merge)
    ]
    assert torch.equal(grouped, plain[order])
