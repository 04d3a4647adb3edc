"""Running one op the way a device runs it, and comparing the result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.kernels.op import Lane

F32, BF16 = torch.float32, torch.bfloat16
DTYPES = (F32, BF16)


def run(issue: Callable[[Lane], None]) -> None:
    """Captures what ``issue`` issues and replays it once, as a device does."""
    device = CpuDevice()
    program = device.capture([("op", issue)])
    device.replay(program)


def normal(*shape: int, seed: int, dtype: torch.dtype = F32, std: float = 1.0) -> Tensor:
    """Normal values, rounded to ``dtype``."""
    values = np.random.default_rng(seed).standard_normal(shape) * std
    return torch.from_numpy(values).to(dtype)


def assert_rounded_once(out: Tensor, exact: Tensor) -> None:
    """``out`` is the float64 value ``exact``, computed in float32 and rounded to its format.

    float32 leaves accumulation errors of some 1e-6 of the largest value; a bf16 result adds one
    rounding, half a unit in the last of its 8 bits (2^-8 relative at most), and nothing more.
    """
    assert exact.dtype == torch.float64 and out.shape == exact.shape
    scale = float(exact.abs().max())
    allowed = torch.full_like(exact, 5e-6 * scale)
    if out.dtype == BF16:
        allowed += exact.abs() * 2.0**-8
    excess = (out.double() - exact).abs() - allowed
    assert float(excess.max()) <= 0.0, f"off by {float((out.double() - exact).abs().max()):.3g}"


def rms(x: Tensor, eps: float) -> Tensor:
    """x over the root of its mean square."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps) ** 0.5


def layer(x: Tensor, eps: float) -> Tensor:
    """x less its mean, over the root of its variance."""
    return rms(x - x.mean(-1, keepdim=True), eps)


def gelu(x: Tensor) -> Tensor:
    """The tanh form."""
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x.pow(3))))


def turn(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of [rows, heads, d] by complex multiplication: dims i and i + d/2 pair."""
    half = x.shape[-1] // 2
    frequency = torch.tensor([theta ** (-i / half) for i in range(half)], dtype=torch.float64)
    phase = torch.polar(torch.ones(1, dtype=torch.float64), positions.double()[:, None] * frequency)
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * phase[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)
