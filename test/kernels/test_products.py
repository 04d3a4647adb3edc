"""Products with what is fused around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear
from flashrt_core.kernels.action_in import action_in
from flashrt_core.kernels.action_out_euler import action_out_euler
from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu
from flashrt_core.kernels.ada_rms_norm_qkv_rope_kv import ada_rms_norm_qkv_rope_kv
from flashrt_core.kernels.glu_linear import glu_linear
from flashrt_core.kernels.linear_gated_residual import linear_gated_residual
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv
from flashrt_core.kernels.rope_rows import rope_rows

from .helpers import DTYPES, F32, assert_rounded_once, gelu, normal, rms, run, turn

EPS = 1e-6
# [rows, in, out]: patch embedding, tower, projector, trunk, expert (with few rows), odd ones.
LINEARS = (
    (40, 588, 1152),
    (40, 1152, 3456),
    (24, 1152, 4304),
    (24, 4304, 1152),
    (24, 1152, 2048),
    (16, 2048, 2560),
    (4, 16384, 2048),
    (10, 2048, 1024),
    (3, 7, 5),
    (1, 1, 1),
)


def weight_of(rows: int, columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    return normal(rows, columns, seed=seed, dtype=dtype, std=columns**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", LINEARS)
def test_linear(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, width = shape
    x, weight = normal(rows, columns, seed=1, dtype=dtype), weight_of(width, columns, 2, dtype)
    bias, residual = normal(width, seed=3, dtype=dtype), normal(rows, width, seed=4, dtype=dtype)
    out = torch.empty(rows, width, dtype=dtype)
    product = x.double() @ weight.double().t()
    run(lambda lane: linear(lane, x, weight, None, out))
    assert_rounded_once(out, product)
    run(lambda lane: linear(lane, x, weight, bias, out, activation="gelu_tanh"))
    assert_rounded_once(out, gelu(product + bias.double()))
    exact = product + bias.double() + residual.double()
    run(lambda lane: linear(lane, x, weight, bias, residual, residual=residual))
    assert_rounded_once(residual, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_repeats_a_short_residual(dtype: torch.dtype) -> None:
    x, weight = normal(12, 9, seed=1, dtype=dtype), weight_of(5, 9, 2, dtype)
    table, out = normal(4, 5, seed=3, dtype=dtype), torch.empty(12, 5, dtype=dtype)
    run(lambda lane: linear(lane, x, weight, None, out, residual=table))
    assert_rounded_once(out, x.double() @ weight.double().t() + table.double().repeat(3, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "ffn"), [(10, 1024, 4096), (8, 2048, 2048), (3, 5, 7)])
def test_geglu(rows: int, width: int, ffn: int, dtype: torch.dtype) -> None:
    x, out = normal(rows, width, seed=1, dtype=dtype), torch.empty(rows, ffn, dtype=dtype)
    gate, up = weight_of(ffn, width, 2, dtype), weight_of(ffn, width, 3, dtype)
    weight = torch.stack((gate, up), dim=1).flatten(0, 1)  # gate 0, up 0, gate 1, up 1, ...
    run(lambda lane: glu_linear(lane, x, weight, out))
    exact = x.double()
    assert_rounded_once(out, gelu(exact @ gate.double().t()) * (exact @ up.double().t()))

    scale, shift = normal(width, seed=4, std=0.5), normal(width, seed=5, std=0.5)
    run(lambda lane: ada_rms_norm_geglu(lane, x, scale, shift, weight, out, eps=EPS))
    exact = rms(x.double(), EPS) * (1 + scale.double()) + shift.double()
    assert_rounded_once(out, gelu(exact @ gate.double().t()) * (exact @ up.double().t()))


# rows, width, query heads, key heads, head width
QKVS = ((10, 1024, 8, 1, 256), (20, 64, 4, 1, 32), (5, 12, 6, 2, 4), (1, 3, 1, 1, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", QKVS)
def test_qkv_rope_kv(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> None:
    rows, width, heads, kv_heads, dim = shape
    first = 533
    rope, start = torch.empty(rows, dim), torch.tensor([first], dtype=torch.int32)
    run(lambda lane: rope_rows(lane, start, rope, theta=10000.0))
    cache = torch.full((2, rows + 3, kv_heads * dim), torch.nan, dtype=dtype)
    k, v = cache[0, 2 : 2 + rows], cache[1, 2 : 2 + rows]
    q = torch.empty(rows, heads * dim, dtype=dtype)
    merged = (heads + 2 * kv_heads) * dim
    positions = first + torch.arange(rows)

    def check(exact: Tensor) -> None:
        parts = exact.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        for out, part in ((q, parts[0]), (k, parts[1])):
            turned = turn(part.reshape(rows, -1, dim), positions, 10000.0)
            assert_rounded_once(out, turned.flatten(1))
        assert_rounded_once(v, parts[2])
        outside = torch.cat((cache[:, :2], cache[:, 2 + rows :]), dim=1)
        assert outside.isnan().all()

    qkv = normal(rows, merged, seed=1, dtype=dtype)
    run(lambda lane: qkv_rope_kv(lane, qkv, rope, q, k, v, head_dim=dim))
    check(qkv.double())

    tail = qkv[:, heads * dim :].contiguous()
    before = (k.clone(), v.clone())
    run(lambda lane: qkv_rope_kv(lane, tail, rope, None, k, v, head_dim=dim))
    assert torch.equal(k, before[0]) and torch.equal(v, before[1])

    x, weight = normal(rows, width, seed=2, dtype=dtype), weight_of(merged, width, 3, dtype)
    scale, shift = normal(width, seed=4, std=0.5), normal(width, seed=5, std=0.5)
    run(
        lambda lane: ada_rms_norm_qkv_rope_kv(
            lane, x, scale, shift, weight, rope, q, k, v, head_dim=dim, eps=EPS
        )
    )
    exact = rms(x.double(), EPS) * (1 + scale.double()) + shift.double()
    check(exact @ weight.double().t())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(10, 2048, 1024), (50, 4096, 1024), (3, 7, 5)])
def test_linear_gated_residual(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, width = shape
    x, weight = normal(rows, columns, seed=1, dtype=dtype), weight_of(width, columns, 2, dtype)
    gate, out = normal(width, seed=3), normal(rows, width, seed=4, dtype=dtype)
    exact = out.double() + gate.double() * (x.double() @ weight.double().t())
    run(lambda lane: linear_gated_residual(lane, x, weight, gate, out))
    assert_rounded_once(out, exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "actions"), [(10, 1024, 32), (50, 1024, 32), (3, 5, 2)])
def test_action_ends(rows: int, width: int, actions: int, dtype: torch.dtype) -> None:
    sample, hidden = normal(rows, actions, seed=1), torch.empty(rows, width, dtype=dtype)
    weight, bias = weight_of(width, actions, 2, F32), normal(width, seed=3)
    run(lambda lane: action_in(lane, sample, weight, bias, hidden))
    assert_rounded_once(hidden, sample.double() @ weight.double().t() + bias.double())

    weight, bias = weight_of(actions, width, 4, F32), normal(actions, seed=5)
    scale, shift = normal(width, seed=6, std=0.5), normal(width, seed=7, std=0.5)
    normed = rms(hidden.double(), EPS) * (1 + scale.double()) + shift.double()
    exact = sample.double() - 0.1 * (normed @ weight.double().t() + bias.double())
    out = torch.empty(rows, actions)
    for target in (out, sample):  # the update may happen in place
        run(
            lambda lane, target=target: action_out_euler(
                lane, hidden, scale, shift, weight, bias, sample, target, dt=-0.1, eps=EPS
            )
        )
        assert_rounded_once(target, exact)


@pytest.mark.parametrize(("rows", "width", "actions"), [(10, 1024, 32), (3, 5, 2)])
def test_guided_step(rows: int, width: int, actions: int) -> None:
    """Every weight: between by the formula, 1 in the last step and 0 in every one to the bit."""
    hidden, sample = normal(rows, width, seed=1), normal(rows, actions, seed=2)
    weight, bias = weight_of(actions, width, 3, F32), normal(actions, seed=4)
    table = (normal(width, seed=5, std=0.5), normal(width, seed=6, std=0.5))
    previous = normal(rows, actions, seed=7)
    guidance = torch.rand(rows, actions, generator=torch.Generator().manual_seed(8))
    guidance[0], guidance[-1] = 0.0, 1.0
    normed = rms(hidden.double(), EPS) * (1 + table[0].double()) + table[1].double()
    velocity = normed @ weight.double().t() + bias.double()
    out, free = torch.empty(rows, actions), torch.empty(rows, actions)

    def step(target: Tensor, **guide: object) -> None:
        args = (hidden, *table, weight, bias, sample, target)
        run(lambda lane: action_out_euler(lane, *args, dt=-0.1, eps=EPS, **guide))  # type: ignore[arg-type]

    step(free)
    for time in (1.0, 0.4, 0.1):
        step(out, previous=previous, guidance=guidance, time=time)
        clean = sample.double() - time * velocity
        clean += guidance.double() * (previous.double() - clean)
        exact = sample.double() - 0.1 * (sample.double() - clean) / time
        torch.testing.assert_close(out.double(), exact, rtol=0.0, atol=3e-6)
        assert torch.equal(out[0], free[0])
        assert torch.equal(out[-1], previous[-1]) == (time == 0.1)
    # Rows on the straight line from noise to the previous action stay on it.
    guidance[:] = 1.0
    step(out, previous=previous, guidance=guidance, time=0.4)
    line = previous.double() + (sample.double() - previous.double()) * 0.3 / 0.4
    torch.testing.assert_close(out.double(), line, rtol=0.0, atol=1e-6)
    step(sample, previous=previous, guidance=guidance, time=0.4)  # in place
    assert torch.equal(sample, out)
