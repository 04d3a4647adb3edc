"""layer_norm and rms_norm."""

from __future__ import annotations

import pytest
import torch

from flashrt_core.kernels.layer_norm import layer_norm
from flashrt_core.kernels.rms_norm import rms_norm

from .helpers import DTYPES, assert_rounded_once, layer, normal, rms, run

# The widths of tower, trunk and expert; then odd ones.
SHAPES = ((256, 1152), (48, 2048), (10, 1024), (1, 1), (3, 7), (17, 129))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = normal(*shape, seed=1, dtype=dtype, std=3.0), normal(shape[1], seed=2, std=0.3)
    out = torch.empty_like(x)
    run(lambda lane: rms_norm(lane, x, weight, out, eps=1e-6))
    assert_rounded_once(out, rms(x.double(), 1e-6) * (1 + weight.double()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = normal(*shape, seed=1, dtype=dtype, std=3.0) + 5.0
    weight, bias = normal(shape[1], seed=2), normal(shape[1], seed=3)
    out = torch.empty_like(x)
    run(lambda lane: layer_norm(lane, x, weight, bias, out, eps=1e-6))
    exact = layer(x.double(), 1e-6)
    assert_rounded_once(out, exact * weight.double() + bias.double())
    run(lambda lane: layer_norm(lane, x, None, None, out, eps=1e-6))
    assert_rounded_once(out, exact)


def test_norms_may_write_over_their_input() -> None:
    x, weight, bias = normal(5, 32, seed=1), normal(32, seed=2), normal(32, seed=3)
    apart, together = torch.empty_like(x), x.clone()
    run(lambda lane: rms_norm(lane, x, weight, apart, eps=1e-6))
    run(lambda lane: rms_norm(lane, together, weight, together, eps=1e-6))
    assert torch.equal(apart, together)
    together = x.clone()
    run(lambda lane: layer_norm(lane, x, weight, bias, apart, eps=1e-6))
    run(lambda lane: layer_norm(lane, together, weight, bias, together, eps=1e-6))
    assert torch.equal(apart, together)


def test_a_row_of_zeros_stays_finite() -> None:
    x, weight, out = torch.zeros(2, 8), normal(8, seed=2), torch.full((2, 8), torch.nan)
    run(lambda lane: rms_norm(lane, x, weight, out, eps=1e-6))
    assert torch.equal(out, x)
