"""Quantised operands and results of every op, against arithmetic that shares nothing with them.

E4M3 is built here from its definition: all values by sign, exponent and mantissa, and rounding by
search among them. Products of such values are exact in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flashrt_core.errors import ContractError
from flashrt_core.gemm import linear
from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu
from flashrt_core.kernels.ada_rms_norm_qkv_rope_kv import ada_rms_norm_qkv_rope_kv
from flashrt_core.kernels.attention import attention
from flashrt_core.kernels.embed_rows import EMBED_ROWS
from flashrt_core.kernels.glu_linear import glu_linear
from flashrt_core.kernels.launch import refuse_low_bit
from flashrt_core.kernels.layer_norm import layer_norm
from flashrt_core.kernels.linear_gated_residual import linear_gated_residual
from flashrt_core.kernels.quantised import E4M3, quantise, quantise_rows, quantise_whole
from flashrt_core.kernels.rms_norm import rms_norm

from .helpers import BF16, assert_rounded_once, gelu, normal, rms, run

EPS = 1e-6
FORMS = ("fp8", "w8a16", "i8a16")
Array = np.ndarray[Any, Any]


def _values() -> Array:
    """The 127 finite values >= 0, ascending; the mantissa is even at even indices."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    subnormal = mantissa * 2.0**-9
    usual = (1 + mantissa / 8) * 2.0 ** (exponent.astype(float) - 7)
    return np.where(exponent == 0, subnormal, usual)


VALUES = _values()


def rounded(x: Array) -> Array:
    """Nearest E4M3 value, ties to even, saturated."""
    magnitude = np.minimum(np.abs(x), VALUES[-1])
    above = np.clip(np.searchsorted(VALUES, magnitude), 1, len(VALUES) - 1)
    low, high = VALUES[above - 1], VALUES[above]
    middle = (low + high) / 2
    up = (magnitude > middle) | ((magnitude == middle) & ((above & 1) == 0))
    return np.sign(x) * np.where(up, high, low)


def through(x: Tensor, scale: float) -> Array:
    """What a number becomes in a quantised tensor: its stored value times the scale, exactly."""
    return rounded((x.float() / scale).double().numpy()) * scale


def scale_of(value: float) -> Tensor:
    return torch.tensor([value])


def quantised(x: Tensor, scale: float) -> Tensor:
    return quantise(x, scale_of(scale))


def packed(
    rows: int, columns: int, seed: int, form: str = "fp8", *, rows_scaled: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """A quantised weight, its scales, and what it stands for in float64."""
    weight = normal(rows, columns, seed=seed, std=columns**-0.5)
    int8 = form == "i8a16"
    if rows_scaled:
        values, scale = quantise_rows(weight, torch.int8 if int8 else E4M3)
    else:
        values, scale = quantise_whole(weight)
    parts = (weight / scale[:, None]).double().numpy()
    exact = torch.from_numpy(np.rint(parts) if int8 else rounded(parts))
    assert torch.equal(values.double(), exact)
    return values, scale, exact * scale.double()[:, None]


def test_every_value_and_every_tie() -> None:
    middles = (VALUES[:-1] + VALUES[1:]) / 2
    x = np.concatenate([VALUES, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9)])
    x = np.concatenate([x, -x, [449.0, 464.0, 1e30, np.inf, -np.inf, 1e-30]]).astype(np.float32)
    found = quantise(torch.from_numpy(x), scale_of(1.0))
    assert np.array_equal(found.double().numpy(), rounded(x.astype(np.float64)))
    assert len(VALUES) == 127 and VALUES[-1] == 448.0
    assert quantise(torch.tensor([torch.nan]), scale_of(1.0)).isnan().all()


def test_scales_divide_before_the_rounding() -> None:
    x = normal(64, 32, seed=1, std=30.0)
    for scale in (0.25, 0.1, 3.0):
        exact = rounded((x / np.float32(scale)).double().numpy())
        assert np.array_equal(quantised(x, scale).double().numpy(), exact)


def test_weights_use_the_whole_range_of_each_row() -> None:
    weight = normal(6, 40, seed=1) * torch.tensor([1e-6, 1e-3, 1.0, 50.0, 1e5, 0.0])[:, None]
    values, scale = quantise_rows(weight)
    assert torch.equal(values.float().abs().amax(1), torch.tensor([448.0] * 5 + [0.0]))
    assert float(scale[5]) == 1.0
    again = values.float() * scale[:, None]
    error = (again - weight).abs()
    # Half a unit in the last of 4 bits, and half a step of the subnormals at the bottom.
    assert (error <= weight.abs() / 16 + scale[:, None] * 2.0**-10 + 1e-12).all()


def test_weights_of_one_scale_use_its_whole_range() -> None:
    weight = normal(5, 40, seed=1) * torch.tensor([1e-2, 0.1, 1.0, 0.5, 0.0])[:, None]
    values, scale = quantise_whole(weight)
    assert scale.shape == (1,) and float(values.float().abs().max()) == 448.0
    # A floating-point format: rows a hundredth of the largest keep their 4 bits.
    error = (values.float() * scale - weight).abs()
    assert (error <= weight.abs() / 16 + scale * 2.0**-10).all()
    assert torch.equal(quantise_whole(torch.zeros(3, 4))[1], torch.ones(1))


def test_whole_numbers_of_each_row() -> None:
    weight = normal(5, 40, seed=1) * torch.tensor([1e-6, 1.0, 50.0, 1e5, 0.0])[:, None]
    values, scale = quantise_rows(weight, torch.int8)
    assert values.dtype is torch.int8
    assert values.float().abs().amax(1).tolist() == [127.0] * 4 + [0.0]
    assert ((values * scale[:, None] - weight).abs() <= scale[:, None] * 0.50001).all()
    ties, _ = quantise_rows(torch.tensor([[127.0, 0.5, 1.5, -2.5, 126.5]]), torch.int8)
    assert ties.tolist() == [[127, 0, 2, -2, 126]]


def assert_product(out: Tensor, exact: Array | Tensor, scale: float | None = None) -> None:
    """``out`` is ``exact``, rounded once to its format; quantised: to E4M3 or its neighbour.

    float32 accumulation may carry a number over the middle between two E4M3 values.
    """
    exact = torch.as_tensor(exact)
    if scale is None:
        assert_rounded_once(out, exact)
        return
    assert out.dtype is E4M3
    found, wanted = out.double().numpy(), rounded((exact / scale).numpy())
    wrong = found != wanted
    assert wrong.mean() < 2e-3
    distance = np.abs((exact / scale).numpy() - found)[wrong]
    assert (distance <= np.maximum(np.abs(found[wrong]) * 2.0**-4, 2.0**-10) * 1.001 + 1e-4).all()


@pytest.mark.parametrize("shape", [(24, 64, 96), (5, 1152, 33), (3, 7, 5)])
@pytest.mark.parametrize("form", FORMS)
def test_linear(shape: tuple[int, int, int], form: str) -> None:
    low = form == "fp8"
    rows, columns, width = shape
    weight, weight_scale, w = packed(width, columns, 2, form, rows_scaled=not low)
    x, bias = normal(rows, columns, seed=1, dtype=BF16), normal(width, seed=3)
    exact = torch.from_numpy(through(x, 2.0**-6)) if low else x.double()
    scales = {"weight_scale": weight_scale, "x_scale": scale_of(2.0**-6) if low else None}
    x = quantised(x, 2.0**-6) if low else x
    product = exact @ w.t() + bias.double()
    out = torch.empty(rows, width, dtype=BF16)
    run(lambda lane: linear(lane, x, weight, bias, out, **scales))
    assert_product(out, product)
    small = torch.empty(rows, width, dtype=E4M3)
    run(
        lambda lane: linear(
            lane, x, weight, bias, small, activation="gelu_tanh", out_scale=scale_of(0.01), **scales
        )
    )
    assert_product(small, gelu(product), float(scale_of(0.01)))
    stream = normal(rows, width, seed=4)
    added = stream.double() + product
    run(lambda lane: linear(lane, x, weight, bias, stream, residual=stream, **scales))
    assert_product(stream, added)


@pytest.mark.parametrize("form", FORMS)
def test_geglu(form: str) -> None:
    low = form == "fp8"
    rows, width, ffn = 9, 48, 40
    weight, weight_scale, w = packed(2 * ffn, width, 2, form)
    x = normal(rows, width, seed=1, dtype=BF16)
    exact = torch.from_numpy(through(x, 2.0**-5)) if low else x.double()
    scales = {"weight_scale": weight_scale, "x_scale": scale_of(2.0**-5) if low else None}
    stored = quantised(x, 2.0**-5) if low else x
    wanted = gelu(exact @ w[0::2].t()) * (exact @ w[1::2].t())
    out = torch.empty(rows, ffn, dtype=E4M3)
    run(lambda lane: glu_linear(lane, stored, weight, out, out_scale=scale_of(2.0**-8), **scales))
    assert_product(out, wanted, 2.0**-8)

    scale, shift = normal(width, seed=4, std=0.5), normal(width, seed=5, std=0.5)
    n = rms(x.double(), EPS) * (1 + scale.double()) + shift.double()
    wanted = _geglu_of(n, w, 2.0**-5 if low else None)
    wide = torch.empty(rows, ffn, dtype=BF16)
    run(lambda lane: ada_rms_norm_geglu(lane, x, scale, shift, weight, wide, eps=EPS, **scales))
    assert_product(wide, wanted)
    run(
        lambda lane: ada_rms_norm_geglu(
            lane, x, scale, shift, weight, out, eps=EPS, out_scale=scale_of(2.0**-7), **scales
        )
    )
    assert_product(out, wanted, 2.0**-7)


def _geglu_of(n: Tensor, w: Tensor, scale: float | None) -> Tensor:
    if scale is not None:
        n = torch.from_numpy(rounded((n / scale).numpy()) * scale)
    return gelu(n @ w[0::2].t()) * (n @ w[1::2].t())


@pytest.mark.parametrize("form", FORMS)
def test_conditioned_qkv(form: str) -> None:
    """Without a turn (angle 0) the outputs are the product's columns."""
    low = form == "fp8"
    rows, width, dim, heads = 6, 32, 8, 3
    weight, weight_scale, w = packed((heads + 2) * dim, width, 2, form)
    x, scale, shift = normal(rows, width, seed=1), normal(width, seed=4), normal(width, seed=5)
    n = rms(x.double(), EPS) * (1 + scale.double()) + shift.double()
    if low:
        n = torch.from_numpy(rounded((n / 2.0**-4).numpy()) * 2.0**-4)
    rope = torch.cat((torch.ones(rows, dim // 2), torch.zeros(rows, dim // 2)), dim=1)
    q, k, v = torch.empty(rows, heads * dim), torch.empty(rows, dim), torch.empty(rows, dim)
    scales = {"weight_scale": weight_scale, "x_scale": scale_of(2.0**-4) if low else None}
    run(
        lambda lane: ada_rms_norm_qkv_rope_kv(
            lane, x, scale, shift, weight, rope, q, k, v, head_dim=dim, eps=EPS, **scales
        )
    )
    assert_product(torch.cat((q, k, v), dim=1), n @ w.t())


@pytest.mark.parametrize("form", FORMS)
def test_gated_residual(form: str) -> None:
    low = form == "fp8"
    rows, columns, width = 10, 128, 24
    weight, weight_scale, w = packed(width, columns, 2, form)
    x, gate = normal(rows, columns, seed=1, dtype=BF16), normal(width, seed=3)
    out = normal(rows, width, seed=4, dtype=BF16)
    exact = torch.from_numpy(through(x, 2.0**-6)) if low else x.double()
    wanted = out.double() + gate.double() * (exact @ w.t())
    stored, x_scale = (quantised(x, 2.0**-6), scale_of(2.0**-6)) if low else (x, None)
    run(
        lambda lane: linear_gated_residual(
            lane, stored, weight, gate, out, x_scale=x_scale, weight_scale=weight_scale
        )
    )
    assert_product(out, wanted)


def test_norms_quantise_what_they_write() -> None:
    x, weight, bias = normal(7, 96, seed=1, std=3.0), normal(96, seed=2), normal(96, seed=3)
    out, scale = torch.empty(7, 96, dtype=E4M3), 2.0**-6
    run(lambda lane: rms_norm(lane, x, weight, out, eps=EPS, out_scale=scale_of(scale)))
    assert_product(out, rms(x.double(), EPS) * (1 + weight.double()), scale)
    run(lambda lane: layer_norm(lane, x, weight, bias, out, eps=EPS, out_scale=scale_of(scale)))
    exact = x.double() - x.double().mean(-1, keepdim=True)
    exact = exact / (exact.pow(2).mean(-1, keepdim=True) + EPS) ** 0.5
    assert_product(out, exact * weight.double() + bias.double(), scale)


def test_attention_quantises_what_it_writes() -> None:
    q, k, v = normal(6, 4, 8, seed=1), normal(9, 1, 8, seed=2), normal(9, 1, 8, seed=3)
    out, scale = torch.empty(6, 32, dtype=E4M3), 2.0**-7
    run(lambda lane: attention(lane, q, k, v, out, scale=0.3, out_scale=scale_of(scale)))
    scores = torch.einsum("ihd,jd->hij", q.double(), k[:, 0].double()) * 0.3
    mixed = torch.einsum("hij,jd->ihd", scores.softmax(-1), v[:, 0].double())
    assert_product(out, mixed.flatten(1), scale)


def test_saturation_is_at_448_scales() -> None:
    x, weight = torch.full((1, 8), 100.0), torch.zeros(8)
    x[0, ::2] = -100.0
    out = torch.empty(1, 8, dtype=E4M3)
    run(lambda lane: rms_norm(lane, x, weight, out, eps=EPS, out_scale=scale_of(2.0**-10)))
    assert torch.equal(out.float().abs(), torch.full((1, 8), 448.0))
    assert torch.equal(out.float().sign(), x.sign())


def _good() -> dict[str, Any]:
    weight, weight_scale, _ = packed(6, 8, 1, rows_scaled=False)
    return {
        "x": quantised(normal(3, 8, seed=2), 0.1),
        "weight": weight,
        "bias": None,
        "out": torch.empty(3, 6, dtype=E4M3),
        "x_scale": scale_of(0.1),
        "weight_scale": weight_scale,
        "out_scale": scale_of(0.1),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_scale": None}, "argument 'x_scale': expected a scale where 'x' is float8_e4m3fn"),
        (
            {"weight_scale": None},
            "argument 'weight_scale': expected a scale where 'weight' is float8_e4m3fn or int8",
        ),
        ({"x": torch.ones(3, 8).to(torch.int8)}, "argument 'x': expected .*, got int8"),
        ({"out_scale": None}, "argument 'out_scale': .*got 'out' of float8_e4m3fn, no scale"),
        ({"out": torch.empty(3, 6)}, "argument 'out_scale': .*got 'out' of float32, a scale"),
        ({"x": normal(3, 8, seed=2)}, "argument 'x_scale': .*got 'x' of float32, a scale"),
        ({"x_scale": torch.ones(2)}, r"argument 'x_scale': expected \[1\], got \[2\]"),
        ({"x_scale": torch.ones(1).double()}, "argument 'x_scale': expected float32, got float64"),
        ({"weight_scale": torch.ones(6)}, r"argument 'weight_scale': expected \[1\], got \[6\]"),
        (
            {"x": normal(3, 8, seed=2), "x_scale": None},
            r"argument 'weight_scale': expected \[N=6\], got \[1\]",
        ),
        (
            {"weight": normal(6, 8, seed=1), "weight_scale": None},
            "argument 'weight': expected float8_e4m3fn where 'x' is quantised, got float32",
        ),
        (
            {"weight": torch.ones(6, 8).to(torch.int8)},
            "argument 'weight': expected float8_e4m3fn where 'x' is quantised, got int8",
        ),
    ],
)
def test_scales_and_formats_go_together(changes: dict[str, Any], message: str) -> None:
    values = _good()
    run(lambda lane: linear(lane, **values))
    with pytest.raises(ContractError, match=f"^linear: {message}"):
        run(lambda lane: linear(lane, **(values | changes)))


def test_a_fused_product_cannot_quantise_for_a_wide_weight() -> None:
    x, rows = normal(3, 8, seed=1), torch.ones(8)
    out, weight = torch.empty(3, 5), normal(10, 8, seed=2)
    with pytest.raises(ContractError, match="argument 'weight': expected float8_e4m3fn where 'x'"):
        run(
            lambda lane: ada_rms_norm_geglu(
                lane, x, rows, rows, weight, out, eps=EPS, x_scale=scale_of(1.0)
            )
        )


def test_no_kernel_is_said_in_one_line() -> None:
    values = _good()
    with pytest.raises(ContractError, match="op 'embed_rows' on device 'cuda'.*no kernel.*'bf16'"):
        refuse_low_bit(EMBED_ROWS, values.values())
    with pytest.raises(ContractError, match="got int8, for which it has no kernel yet"):
        refuse_low_bit(EMBED_ROWS, [torch.zeros(2, 2, dtype=torch.int8)])
    refuse_low_bit(EMBED_ROWS, [normal(2, 2, seed=1).bfloat16(), None, 3])
