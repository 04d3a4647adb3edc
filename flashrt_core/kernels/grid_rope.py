"""Rotary rows (cosines, then sines) of tokens on a grid that moves with a count on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, I32, ArgCheck
from .launch import Launcher, require_packed
from .op import Lane, Op


def grid_rope_ref(start: Tensor, at: Tensor, rates: Tensor, axes: Tensor, out: Tensor) -> None:
    """Positions in float32, angles in float64 and rounded to float32, as the official code."""
    moved = at.clone()
    moved[:, 0] += start
    angles = (moved.double()[:, axes.long()] * rates.double().sum(dim=1)).float().double()
    turned = torch.cat((angles.cos(), angles.sin()), dim=1)
    out.view(-1, *turned.shape).copy_(turned)


def grid_rope_launch(
    launcher: Launcher, start: Tensor, at: Tensor, rates: Tensor, axes: Tensor, out: Tensor
) -> None:
    """One block a token."""
    rows, half = at.shape[0], axes.shape[0]
    require_packed("grid_rope", at=at, rates=rates)
    counts = (rows, out.shape[0] // rows, half, out.stride(0))
    launcher.launch("grid_rope_f32", rows, 128, (start, at, rates, axes, out, *counts))


GRID_ROPE = Op("grid_rope", grid_rope_ref, grid_rope_launch)


def grid_rope(
    lane: Lane, start: Tensor, at: Tensor, rates: Tensor, axes: Tensor, out: Tensor
) -> None:
    """out[j] = [cos(a_0) .., sin(a_0) ..] with a_i = position of j on axis i * rate of i.

    Args:
        lane: where the op goes.
        start: [1] int32, added to the first axis of every position; read when the op runs.
        at: [M, 3] float32, positions.
        rates: [d/2, 2] float32: a rate is the sum of two numbers, nearly float64.
        axes: [d/2] int32: which axis an angle turns with.
        out: [B M, d] float32: the rows, B times.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("grid_rope")
    check.tensor("start", start, (1,), I32)
    check.tensor("at", at, ("M", 3), F32)
    check.tensor("rates", rates, ("half", 2), F32)
    check.tensor("axes", axes, ("half",), I32)
    check.tensor("out", out, ("BM", 2 * check.sizes["half"]), F32)
    check.require(
        check.sizes["BM"] % check.sizes["M"] == 0,
        "rows of 'out'",
        expected=f"a multiple of {check.sizes['M']}",
        got=check.sizes["BM"],
    )
    lane.issue(GRID_ROPE, start, at, rates, axes, out)
