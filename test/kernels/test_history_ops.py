"""Ops of policies that remember: pools of rows, keys by weight, frames; 4-bit weights."""

from __future__ import annotations

from math import inf, log

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear
from flashrt_core.kernels.attention import attention
from flashrt_core.kernels.conv_frames import conv_frames
from flashrt_core.kernels.four_bits import four_bit_values, quantise_runs
from flashrt_core.kernels.grid_rope import grid_rope
from flashrt_core.kernels.guided_step import guided_step
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear
from flashrt_core.kernels.linear_gated_residual import linear_gated_residual
from flashrt_core.kernels.mean_frames import mean_frames
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv
from flashrt_core.kernels.rms_norm import rms_norm
from flashrt_core.kernels.span_bias import span_bias
from flashrt_core.kernels.take_rows import take_rows

from .helpers import BF16, DTYPES, assert_rounded_once, layer, normal, rms, run, turn


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_rows_are_taken_in_order_and_the_oldest_given_up() -> None:
    holders, kinds = i32(-1, 4, -1, 2, 2, 4, 3, 2), i32(1, 1, 1, 0, 0, 1, 0, 0)
    rows, bias = i32(*[0] * 10), torch.empty(16)
    run(lambda lane: take_rows(lane, holders, kinds, rows, bias, kind=7))
    # Two are free; of the three rows of pass 2 all are given up, none of pass 3.
    assert rows.tolist() == [0, 2, 3, 4, 7, 8, 10, 11, 12, 15]
    assert holders.tolist() == [5, 4, 5, 5, 5, 4, 3, 5]
    assert kinds.tolist() == [7, 1, 7, 7, 7, 1, 0, 7]
    assert bias.tolist() == [0.0] * 16


def test_of_the_oldest_pass_lower_rows_go_first() -> None:
    holders, kinds = i32(9, 1, 1, 9, 1), i32(0, 0, 0, 0, 0)
    rows, bias = i32(0, 0), torch.empty(5)
    run(lambda lane: take_rows(lane, holders, kinds, rows, bias, kind=1))
    assert rows.tolist() == [1, 2] and holders.tolist() == [9, 10, 10, 9, 1]


def test_what_was_predicted_is_forgotten_first() -> None:
    holders, kinds = i32(0, 1, 1, 2, -1), i32(0, 1, 1, 0, 1)
    rows, bias = i32(0), torch.empty(5)
    run(lambda lane: take_rows(lane, holders, kinds, rows, bias, kind=0, forgotten=1))
    assert rows.tolist() == [1] and holders.tolist() == [0, 3, -1, 2, -1]
    assert bias.tolist() == [0.0, 0.0, -inf, 0.0, -inf]
    empty = i32(-1, -1, -1)
    run(lambda lane: take_rows(lane, empty, i32(0, 0, 0), rows, torch.empty(3), kind=0))
    assert empty.tolist() == [0, -1, -1]


def test_padding_counts_as_often_as_there_is_of_it() -> None:
    out = torch.empty(2, 4)
    run(lambda lane: span_bias(lane, i32(2, 9), out, rows=9))
    assert out.tolist() == [[pytest.approx(log(7)), 0.0, 0.0, -inf], [-inf, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_count_as_their_bias_says(dtype: torch.dtype) -> None:
    """One key with the logarithm of five is five keys; one with -inf may hold anything."""
    q, k, v = (normal(rows, 2, 8, seed=rows, dtype=dtype) for rows in (4, 6, 7))
    v = v[:6].clone()
    bias = torch.tensor([0.0, log(5.0), -inf, 0.0, 0.0, -inf])
    k[2], v[2], v[5] = float("nan"), inf, float("nan")
    out = torch.empty(4, 16, dtype=dtype)
    run(lambda lane: attention(lane, q, k, v, out, scale=0.3, segments=2, key_bias=bias))
    for segment, keys in enumerate(([0, 1, 1, 1, 1, 1], [3, 4])):
        rows = slice(2 * segment, 2 * segment + 2)
        scores = torch.einsum("mhd,nhd->hmn", q[rows].double(), k[keys].double()) * 0.3
        mixed = torch.einsum("hmn,nhd->mhd", scores.softmax(-1), v[keys].double())
        assert_rounded_once(out[rows], mixed.reshape(2, 16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_of_a_whole_row_are_normalised_and_go_to_rows_of_a_pool(dtype: torch.dtype) -> None:
    qkv, rows = normal(3, 3 * 8, seed=1, dtype=dtype), i32(4, 0, 3)
    q_norm, k_norm = normal(8, seed=2), normal(8, seed=3)
    at = torch.tensor([5.0, 6.0, 9.0])
    angle = at[:, None] * torch.tensor([1.0, 0.1])
    rope = torch.cat((angle.cos(), angle.sin()), dim=1)
    q, k, v = torch.zeros(3, 8, dtype=dtype), *(torch.ones(5, 8, dtype=dtype) for _ in "kv")
    options = {"head_dim": 4, "q_norm": q_norm, "k_norm": k_norm, "eps": 1e-6, "rows": rows}
    run(lambda lane: qkv_rope_kv(lane, qkv, rope, q, k, v, **options))  # type: ignore[arg-type]
    wide = qkv.double()
    for out, part, gain in ((q, 0, q_norm), (k[rows], 1, k_norm)):
        normed = rms(wide[:, 8 * part : 8 * part + 8], 1e-6) * gain.double()
        heads = turn(normed.view(3, 2, 4), at, 1e2)
        assert_rounded_once(out, heads.reshape(3, 8))
    assert torch.equal(v[rows], qkv[:, 16:])
    assert bool((k[[1, 2]] == 1).all()) and bool((v[[1, 2]] == 1).all())


def test_tokens_turn_with_their_place_on_a_grid_that_moves() -> None:
    at, rates = torch.tensor([[0.25, 2.0, -1.0], [3.0, 0.0, 1.0]]), (0.1, 0.3)
    high = torch.tensor(rates, dtype=torch.float64)
    split = torch.stack((high.float(), (high - high.float().double()).float()), dim=1)
    out = torch.empty(4, 4)
    run(lambda lane: grid_rope(lane, i32(40), at, split, i32(0, 2), out))
    angles = torch.tensor([[40.25 * 0.1, -0.3], [43 * 0.1, 0.3]], dtype=torch.float64)
    exact = torch.cat((angles.cos(), angles.sin()), dim=1)
    assert_rounded_once(out, exact.repeat(2, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("strides", "past"), [((1, 1), 2), ((2, 1), 1), ((1, 2), 0)])
def test_frames_are_convolved_behind_what_came_before(
    dtype: torch.dtype, strides: tuple[int, int], past: int
) -> None:
    kt, k = {2: (3, 3), 1: (3, 1), 0: (1, 3)}[past]
    x, before = (normal(2, n, 4, 6, 3, seed=n, dtype=dtype) for n in (4, max(past, 1)))
    weight, bias = normal(5, kt, k, k, 3, seed=8, dtype=dtype), normal(5, seed=9)
    whole = torch.cat((before, x), dim=1) if past else x
    edge = (0, 1) if strides[1] == 2 else (k // 2, k // 2)
    padded = torch.zeros(2, whole.shape[1], 4 + sum(edge), 6 + sum(edge), 3, dtype=torch.float64)
    padded[:, :, edge[0] : edge[0] + 4, edge[0] : edge[0] + 6] = whole.double()
    windows = padded.unfold(1, kt, strides[0]).unfold(2, k, strides[1]).unfold(3, k, strides[1])
    exact = torch.einsum("vthwcxyz,oxyzc->vthwo", windows, weight.double()) + bias.double()
    added = normal(*exact.shape, seed=4, dtype=dtype)
    out = added.clone()
    run(
        lambda lane: conv_frames(
            lane,
            x,
            before if past else None,
            weight,
            bias,
            out,
            strides=strides,
            residual=out,
        )
    )
    assert_rounded_once(out, exact + added.double())


def test_means_over_what_falls_together() -> None:
    x = normal(1, 3, 2, 2, 1, seed=1)
    out = torch.zeros(1, 2, 1, 1, 2)
    run(lambda lane: mean_frames(lane, x, out, halved=(True, True)))
    means = x.double().mean(dim=(2, 3)).flatten()
    assert_rounded_once(out.flatten(), torch.stack((0 * means[0], *means)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_gates_and_activations(dtype: torch.dtype) -> None:
    wanted, other = (normal(3, 4, seed=n, dtype=dtype) for n in (1, 2))
    x = normal(3, 4, seed=3)
    exact = x.double() - 0.1 * (other.double() + 5 * (wanted.double() - other.double()))
    run(lambda lane: guided_step(lane, wanted, other, x, guidance=5.0, dt=-0.1))
    assert_rounded_once(x, exact)
    rows, weight = normal(3, 6, seed=4, dtype=dtype), normal(4, 6, seed=5, dtype=dtype)
    gate, bias, out = normal(4, seed=6), normal(4, seed=7, dtype=dtype), normal(3, 4, seed=8)
    out = out.to(dtype)
    product = rows.double() @ weight.double().t() + bias.double()
    exact = out.double() + gate.double() * product
    run(lambda lane: linear_gated_residual(lane, rows, weight, gate, out, bias=bias))
    assert_rounded_once(out, exact)
    gain, normed = normal(6, seed=9), torch.empty(3, 6, dtype=dtype)
    run(lambda lane: rms_norm(lane, rows, gain, normed, eps=1e-6, activation="silu"))
    scaled = rms(rows.double(), 1e-6) * (1 + gain.double())
    assert_rounded_once(normed, scaled / (1 + torch.exp(-scaled)))


class TestFourBits:
    def test_a_run_has_a_scale_and_sixteen_values(self) -> None:
        weight = normal(5, 64, seed=1)
        weight[2] = 0.0
        packed, scale = quantise_runs(weight, 16)
        assert (packed.shape, packed.dtype, scale.shape) == ((5, 32), torch.uint8, (5, 4))
        values = four_bit_values(packed, scale)
        whole = values.unflatten(1, (4, 16)) / scale[..., None]
        assert float((whole.round() - whole).abs().max()) < 1e-5
        whole = whole.round()
        assert float(whole.abs().max()) <= 8
        assert bool((values[2] == 0).all())
        # The low half of a byte is the even column.
        assert (packed[0, 0] & 15) - 8 == whole[0, 0, 0] and (packed[0, 0] >> 4) - 8 == whole[
            0, 0, 1
        ]

    def test_columns_of_large_inputs_lose_less(self) -> None:
        weight, importance = normal(64, 64, seed=2), torch.ones(64)
        importance[::8] = 100.0

        def error(found: tuple[Tensor, Tensor]) -> float:
            return float(((four_bit_values(*found) - weight).square() * importance).sum())

        plain, aware = quantise_runs(weight, 32), quantise_runs(weight, 32, importance)
        assert error(aware) < error(plain)
        largest = quantise_runs(weight[:, :32], 32)[1].amax() * 7
        assert largest <= weight[:, :32].abs().amax() * 1.001

    @pytest.mark.parametrize("rows", [1, 16, 41])
    def test_products_are_those_of_the_values(self, rows: int) -> None:
        x, weight = normal(rows, 64, seed=3, dtype=BF16), normal(24, 64, seed=4)
        packed, scale = quantise_runs(weight, 16)
        values = four_bit_values(packed, scale).double()
        out = torch.empty(rows, 24, dtype=BF16)
        run(lambda lane: linear(lane, x, packed, None, out, weight_scale=scale))
        assert_rounded_once(out, x.double() @ values.t())
        gate, stream = normal(24, seed=5), normal(rows, 24, seed=6, dtype=BF16)
        exact = stream.double() + gate.double() * (x.double() @ values.t())
        run(lambda lane: linear_gated_residual(lane, x, packed, gate, stream, weight_scale=scale))
        assert_rounded_once(stream, exact)
        norm = (None, None, packed, None, out)
        run(lambda lane: layer_norm_linear(lane, x, *norm, eps=1e-6, weight_scale=scale))
        assert_rounded_once(out, layer(x.double(), 1e-6) @ values.t())
