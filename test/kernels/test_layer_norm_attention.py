"""A norm, its product and attention as one op: what it computes, and how it is launched."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.errors import ContractError
from flashrt_core.kernels.few_rows_linear import LINEAR_PLANS, NORM_PLANS
from flashrt_core.kernels.four_bit_linear import FOUR_BIT_NORM
from flashrt_core.kernels.layer_norm_attention import (
    _CONTEXT_PLANS,
    _SELF_PLANS,
    layer_norm_attention,
)
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear
from flashrt_core.kernels.quantised import E4M3
from flashrt_core.kernels.skinny import Squares
from test.kernels.signatures import OPS, CheckingLauncher, Lane

from .helpers import DTYPES, F32, assert_rounded_once, layer, normal, run

EPS = 1e-5


def operands(rows: int, keys: int, heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    width, depth = heads * dim, 40
    return (
        normal(rows, depth, seed=1, dtype=dtype),
        1 + normal(depth, seed=2, std=0.3),
        normal(depth, seed=3),
        normal(width, depth, seed=4, dtype=dtype, std=0.2),
        normal(width, seed=5, dtype=dtype),
        torch.empty(rows, width, dtype=dtype),
        *normal(2, keys, heads, dim, seed=6, dtype=dtype),
        torch.empty(rows, width, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [None, 3])
def test_queries_attend(dtype: torch.dtype, length: int | None) -> None:
    args = operands(5, 9, 2, 16, dtype)
    x, gain, shift, weight, bias, q, k, v, out = args
    mask: dict[str, Any] = {}
    if length is not None:
        mask = {"prefix_length": torch.tensor([length], dtype=torch.int32), "prefix_rows": 9}
    settings: dict[str, Any] = {"head_dim": 16, "eps": EPS, "scale": 0.25}
    run(lambda lane: layer_norm_attention(lane, *args, **settings, **mask))
    exact = layer(x.double(), EPS) * gain.double() + shift.double()
    exact = exact @ weight.double().t() + bias.double()
    assert_rounded_once(q, exact)
    heads = q.double().view(5, 2, 16)
    shown = slice(0, length)
    scores = torch.einsum("mhd,nhd->hmn", heads, k[shown].double()) * 0.25
    mixed = torch.einsum("hmn,nhd->mhd", torch.softmax(scores, -1), v[shown].double())
    assert_rounded_once(out, mixed.reshape(5, 32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_are_normalised_and_attend_in_runs(dtype: torch.dtype) -> None:
    args = operands(4, 6, 2, 16, dtype)
    q, k, v, out = args[5:]
    gain, added = normal(32, seed=9), normal(6, seed=10)
    added[[0, 4]] = -torch.inf
    settings: dict[str, Any] = {"head_dim": 16, "eps": EPS, "scale": 0.25}
    run(lambda lane: layer_norm_attention(lane, *args, **settings))
    made = q.double()
    settings |= {"q_norm": gain, "segments": 2, "key_bias": added}
    run(lambda lane: layer_norm_attention(lane, *args, **settings))
    normed = made / (made.square().mean(1, keepdim=True) + EPS).sqrt() * (1.0 + gain.double())
    assert_rounded_once(q, normed)
    heads, keys, values = (each.double().view(2, -1, 2, 16) for each in (q, k, v))
    scores = torch.einsum("rmhd,rnhd->rhmn", heads, keys) * 0.25
    weights = torch.softmax(scores + added.double().view(2, 1, 1, 3), -1)
    mixed = torch.einsum("rhmn,rnhd->rmhd", weights, values)
    assert_rounded_once(out, mixed.reshape(4, 32))


def test_arguments_are_checked() -> None:
    args = list(operands(5, 9, 2, 16, F32))
    lane = Lane(CheckingLauncher())
    settings: dict[str, Any] = {"head_dim": 16, "eps": EPS, "scale": 1.0}
    length = torch.tensor([1], dtype=torch.int32)
    for others, told in (
        ({"prefix_length": length, "prefix_rows": 10}, "prefix_rows: expected 1..9, got 10"),
        ({"head_dim": 5}, "head_dim: expected a divisor of 32, got 5"),
        ({"segments": 2}, "rows of 'x' and 'k': expected multiples of segments 2, got 5 and 9"),
        ({"q_norm": torch.ones(16)}, "argument 'q_norm'"),
        ({"key_bias": torch.ones(8)}, "argument 'key_bias'"),
    ):
        with pytest.raises(ContractError, match=told):
            layer_norm_attention(lane, *args, **(settings | others))
    with pytest.raises(ContractError, match="'k' and 'v': expected both or none"):
        layer_norm_attention(lane, *args[:7], None, args[8], **settings)
    among = (*args[:3], torch.ones(96, 40), torch.ones(96), torch.ones(5, 96), None, None, args[8])
    with pytest.raises(ContractError, match="argument 'k': expected keys, with this"):
        layer_norm_attention(lane, *among, **settings, q_norm=torch.ones(32))
    args[3] = args[3][:-1]
    with pytest.raises(ContractError, match="weight"):
        layer_norm_attention(lane, *args, **settings)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_attend_to_each_other(dtype: torch.dtype) -> None:
    x, gain, shift, _weight, _bias, _q, _k, _v, out = operands(5, 9, 2, 16, dtype)
    weight, bias = normal(96, 40, seed=7, dtype=dtype, std=0.2), normal(96, seed=8, dtype=dtype)
    merged, apart = torch.empty(5, 96, dtype=dtype), torch.empty(5, 32, dtype=dtype)
    settings: dict[str, Any] = {"head_dim": 16, "eps": EPS, "scale": 0.25}
    args = (x, gain, shift, weight, bias, merged, None, None, out)
    run(lambda lane: layer_norm_attention(lane, *args, **settings))
    q, k, v = merged.view(5, 3, 2, 16).unbind(1)
    first = (weight[:32], bias[:32], torch.empty(5, 32, dtype=dtype))
    run(lambda lane: layer_norm_attention(lane, x, gain, shift, *first, k, v, apart, **settings))
    assert torch.equal(first[2], q.reshape(5, 32)) and torch.equal(out, apart)


def bf16(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("architecture", "rows", "narrow", "kernels"),
    [
        (90, 41, False, ["layer_norm_attention_k1536_d48_bf16_sm90"]),
        (90, 41, True, ["layer_norm_linear_k1536_48_bf16_sm90", "attention_heads_d48_fp8"]),
        (90, 49, False, ["layer_norm_bf16", "attention_heads_d48_short_bf16"]),
        (90, 49, True, ["layer_norm_bf16", "attention_heads_d48_fp8"]),
        (120, 41, False, ["layer_norm_bf16", "attention_heads_d48_short_bf16"]),
    ],
)
def test_one_kernel_where_it_fits(
    architecture: int, rows: int, narrow: bool, kernels: list[str]
) -> None:
    launcher = CheckingLauncher(architecture)
    table = torch.empty(2, 1536)
    k, v = bf16(24, 2, 32, 48).unbind(1)
    layer_norm_attention(
        Lane(launcher),
        bf16(rows, 1536),
        table[0],
        table[1],
        bf16(1536, 1536),
        bf16(1536),
        bf16(rows, 1536),
        k,
        v,
        bf16(rows, 1536).to(E4M3) if narrow else bf16(rows, 1536),
        head_dim=48,
        eps=EPS,
        scale=1.0,
        out_scale=torch.ones(1) if narrow else None,
    )
    assert [launch.kernel for launch in launcher.launches] == kernels
    if len(kernels) == 1:
        (launch,) = launcher.launches
        assert (launch.grid, launch.block, launch.cluster) == (128, 256, 4)
        assert (
            f"kSharedBytes == {launch.shared_bytes},"
            in (OPS / "layer_norm_attention.cu").read_text()
        )


NORMED = ["layer_norm_linear_squares_k3072_96_bf16_sm90", "attention_heads_d128_normed_"]
APART = ["rms_norm_bf16", "attention_heads_d128_biased_bf16"]


@pytest.mark.parametrize(
    ("architecture", "rows", "keys", "kernels"),
    [
        (90, 16, 64, [NORMED[0], NORMED[1] + "short_bf16_hopper"]),
        (90, 16, 65, [NORMED[0], NORMED[1] + "bf16_hopper"]),
        (90, 17, 64, ["layer_norm_bf16", *APART]),
        (120, 16, 64, ["layer_norm_bf16", *APART]),
    ],
)
def test_the_norm_of_queries_is_in_front_of_their_attention(
    architecture: int, rows: int, keys: int, kernels: list[str]
) -> None:
    launcher = CheckingLauncher(architecture)
    norm, k, v = torch.empty(3072), bf16(keys, 24, 128), bf16(keys, 24, 128)
    layer_norm_attention(
        Lane(launcher),
        bf16(rows, 3072),
        norm,
        norm,
        bf16(3072, 3072),
        bf16(3072),
        bf16(rows, 3072),
        k,
        v,
        bf16(rows, 3072),
        head_dim=128,
        eps=EPS,
        scale=1.0,
        q_norm=norm,
        key_bias=torch.empty(keys),
    )
    assert [launch.kernel for launch in launcher.launches] == kernels
    if "normed" in kernels[-1]:
        asserted = f"kPitch * 2 == {launcher.launches[-1].shared_bytes},"
        assert asserted in (OPS / "attention_heads.cu").read_text()


@pytest.mark.parametrize("width", [3072, 384, 320, 96 * 128 * 2])
def test_sums_of_squares_are_of_whole_norms(width: int) -> None:
    for plan in (*NORM_PLANS[torch.bfloat16], *FOUR_BIT_NORM):
        name = "few_rows_linear" if plan.tiles else "four_bit_linear"
        source, squares = (OPS / f"{name}.cu").read_text(), Squares(width, width)
        entry = re.search(rf"SQUARES\({plan.with_squares().kernel}, (\w+),", source)
        assert (entry is not None) == (plan.run > 0)
        if entry is not None:
            assert f"SquaresOut<{entry[1]}>::kRun * 4 == {plan.run}," in source
        whole = plan.run > 0 and width % plan.run == 0 and width // plan.run in range(4, 129, 4)
        assert squares.fits(plan) == whole


@pytest.mark.parametrize(
    ("columns", "rows", "clusters", "cluster"),
    [(1024, 32, 32, 4), (1536, 48, 32, 4), (4608, 72, 64, 2), (6144, 96, 64, 2)],
)
def test_every_product_of_a_block_keeps_128_multiprocessors_busy(
    columns: int, rows: int, clusters: int, cluster: int
) -> None:
    launcher = CheckingLauncher()
    x, out = bf16(41, 1536), bf16(41, columns)
    layer_norm_linear(Lane(launcher), x, None, None, bf16(columns, 1536), None, out, eps=EPS)
    (launch,) = launcher.launches
    assert launch.kernel == f"layer_norm_linear_k1536_{rows}_bf16_sm90"
    assert (launch.grid, launch.cluster) == (clusters * cluster, cluster)
    # Those of two kernels in a row share a multiprocessor, which has 228 KiB: behind the norm come
    # products of a stream.
    others = [
        plan.shared_bytes for plan in LINEAR_PLANS[torch.bfloat16] if plan.depth in (1536, 6144)
    ]
    assert launch.shared_bytes + max(others) + 2 * 1024 <= 228 * 1024


def test_shared_memory_is_what_the_source_asserts() -> None:
    source = (OPS / "layer_norm_attention.cu").read_text()
    for shape, plan in (
        ("ContextAttention", _CONTEXT_PLANS[torch.bfloat16]),
        ("SelfAttention<bf16>", _SELF_PLANS[torch.bfloat16]),
        ("SelfAttention<e4m3>", _SELF_PLANS[E4M3]),
    ):
        assert f"{shape}::kSharedBytes == {plan.shared_bytes}," in source


def test_plans_give_the_shared_memory_that_the_source_asserts() -> None:
    source = (OPS / "few_rows_linear.cu").read_text()
    for plan in chain.from_iterable((*LINEAR_PLANS.values(), *NORM_PLANS.values())):
        (shape,) = (
            line.split(",")[1].strip() for line in source.splitlines() if f"({plan.kernel}," in line
        )
        assert f"{shape}::kSharedBytes == {plan.shared_bytes}," in source, plan.kernel
