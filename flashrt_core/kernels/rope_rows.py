"""Rows of rotary angles (cosines, then sines) at consecutive positions from a device-held start."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, I32, ArgCheck
from .launch import Float64, Launcher
from .op import Lane, Op


def rope_rows_ref(first: Tensor, out: Tensor, *, theta: float, rounded: bool = False) -> None:
    """Angles in float64, as position * theta^(-2i/d); one rounding into ``out``."""
    rows, width = out.shape
    device = out.device
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    positions = torch.arange(rows, dtype=torch.float64, device=device) + first
    frequencies = theta**-exponent
    if rounded:
        frequencies = frequencies.float().bfloat16().double()
    angles = positions[:, None] * frequencies
    out.copy_(torch.cat((angles.cos(), angles.sin()), dim=1))


def rope_rows_launch(
    launcher: Launcher, first: Tensor, out: Tensor, *, theta: float, rounded: bool = False
) -> None:
    """One block a row."""
    rows, width = out.shape
    args = (first, out, width, out.stride(0), Float64(theta), int(rounded))
    launcher.launch("rope_rows_f32", rows, 128, args)


ROPE_ROWS = Op("rope_rows", rope_rows_ref, rope_rows_launch)


def rope_rows(
    lane: Lane, first: Tensor, out: Tensor, *, theta: float, rounded: bool = False
) -> None:
    """out[j] = [cos(a_0) .. cos(a_{d/2-1}), sin(a_0) ..] with a_i = (first + j) theta^(-2i/d).

    Args:
        lane: where the op goes.
        first: [1] int32, position of row 0; read when the op runs.
        out: [M, d] float32, d even.
        theta: base of the frequencies.
        rounded: theta^(-2i/d) goes through float32 and bfloat16 before it is used, as in a PyTorch
            module that was cast to bfloat16.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("rope_rows")
    check.tensor("first", first, (1,), I32)
    check.tensor("out", out, ("M", "d"), F32)
    check.require(out.shape[1] % 2 == 0, "argument 'out'", expected="even d", got=out.shape[1])
    lane.issue(ROPE_ROWS, first, out, theta=theta, rounded=rounded)
