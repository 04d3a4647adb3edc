"""Noisy action rows, or a robot's state, enter the expert: a small product, float32 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, ArgCheck
from .launch import Launcher, blocks, require_bf16
from .low_bit import no_kernel
from .maths import ACTIVATIONS, Activation
from .op import Lane, Op


def action_in_ref(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, *, activation: Activation = "none"
) -> None:
    """float32 throughout, one rounding into ``out``."""
    out.copy_(ACTIVATIONS[activation](torch.addmm(bias, x, weight.t())))


def action_in_launch(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    *,
    activation: Activation = "none",
) -> None:
    """Four rows a thread at the usual width of actions; else one thread a number."""
    if activation != "none":
        raise no_kernel("action_in", expected="activation none", got=activation)
    require_bf16("action_in", out=out)
    rows, width = out.shape
    if x.shape[1] == 32 and width % 128 == 0 and x.stride(0) % 4 == 0 and weight.is_contiguous():
        grid = (width // 128, blocks(rows, 4))
        few = (x, weight, bias, out, rows, x.stride(0), out.stride(0))
        launcher.launch("action_in_d32_bf16", grid, 128, few)
        return
    args = (x, weight, bias, out, width, x.shape[1], x.stride(0), out.stride(0))
    launcher.launch("action_in_rows_bf16", (blocks(width, 256), rows), 256, args)


ACTION_IN = Op("action_in", action_in_ref, action_in_launch)


def action_in(
    lane: Lane,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    *,
    activation: Activation = "none",
) -> None:
    """out = act(x W^T + b).

    Args:
        lane: where the op goes.
        x: [H, A] float32, the sample at this step.
        weight: [D, A] float32.
        bias: [D] float32.
        out: [H, D] float, apart from ``x``: the expert's residual stream, or what leads there.
        activation: "none", "silu" or "relu".

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("action_in")
    check.tensor("x", x, ("H", "A"), F32)
    check.tensor("weight", weight, ("D", "A"), F32)
    check.tensor("bias", bias, ("D",), F32)
    check.tensor("out", out, ("H", "D"))
    check.apart("out", out, "x", x)
    check.choice("activation", activation, ("none", "silu", "relu"))
    option = {} if activation == "none" else {"activation": activation}
    lane.issue(ACTION_IN, x, weight, bias, out, **option)
