"""End of a flow-matching step: final conditioned norm, projection to a velocity, Euler update."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, ArgCheck
from .launch import Launcher, require_bf16, row_threads
from .maths import ada_rms_normalise
from .op import Lane, Op


def action_out_euler_ref(
    hidden: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    out: Tensor,
    *,
    dt: float,
    eps: float,
) -> None:
    """float32 throughout."""
    normal = ada_rms_normalise(hidden, scale, shift, eps)
    velocity = torch.addmm(bias, normal, weight.t())
    torch.add(x, velocity, alpha=dt, out=out)


def action_out_euler_launch(
    launcher: Launcher,
    hidden: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    out: Tensor,
    *,
    dt: float,
    eps: float,
) -> None:
    """One block a row."""
    require_bf16("action_out_euler", hidden=hidden)
    rows, width = hidden.shape
    if x.shape[1] == 32 and width == 1024 and weight.is_contiguous():
        pitches = (hidden.stride(0), x.stride(0), out.stride(0))
        small = (hidden, scale, shift, weight, bias, x, out, *pitches, dt, eps)
        launcher.launch("action_out_euler_d32_bf16", rows, 512, small)
        return
    strides = (hidden.stride(0), x.stride(0), out.stride(0))
    args = (hidden, scale, shift, weight, bias, x, out, width, x.shape[1], *strides, dt, eps)
    threads = row_threads("action_out_euler", width)
    launcher.launch("action_out_euler_rows_bf16", rows, threads, args)


ACTION_OUT_EULER = Op("action_out_euler", action_out_euler_ref, action_out_euler_launch)


def action_out_euler(
    lane: Lane,
    hidden: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    out: Tensor,
    *,
    dt: float,
    eps: float,
) -> None:
    """out = x + dt * (n W^T + b), n = hidden / sqrt(mean(hidden^2) + eps) * (1 + scale) + shift.

    Args:
        lane: where the op goes.
        hidden: [H, D] float, the expert's residual stream after its last layer.
        scale: [D] float32, one row of the step table.
        shift: [D] float32, likewise.
        weight: [A, D] float32.
        bias: [A] float32.
        x: [H, A] float32, the sample before the step.
        out: [H, A] float32, the sample after it; may be ``x``.
        dt: step of the integration (negative: time runs from 1 to 0).
        eps: added to the mean square.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("action_out_euler")
    check.tensor("hidden", hidden, ("H", "D"))
    check.tensor("scale", scale, ("D",), F32)
    check.tensor("shift", shift, ("D",), F32)
    check.tensor("weight", weight, ("A", "D"), F32)
    check.tensor("bias", bias, ("A",), F32)
    check.tensor("x", x, ("H", "A"), F32)
    check.tensor("out", out, ("H", "A"), F32)
    check.apart("out", out, "hidden", hidden)
    lane.issue(ACTION_OUT_EULER, hidden, scale, shift, weight, bias, x, out, dt=dt, eps=eps)
