"""Noisy action rows, or a robot's state, enter the expert: a small product, float32 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, ArgCheck
from .launch import Launcher, blocks, require_bf16
from .maths import ACTIVATIONS, Activation
from .op import Lane, Op
from .product_rows import product_rows_launch


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
    """Four rows a thread at the usual width of actions; for wide or activated ones tiles in shared
    memory; else one thread a number.
    """
    require_bf16("action_in", out=out)
    (rows, width), depth, kind = out.shape, x.shape[1], list(ACTIVATIONS).index(activation)
    strides = (x.stride(0), out.stride(0))
    packed = x.stride(0) % 4 == 0 and weight.is_contiguous()
    if depth == 32 and width % 128 == 0 and packed and activation == "none":
        grid = (width // 128, blocks(rows, 4))
        few = (x, weight, bias, out, rows, *strides)
        launcher.launch("action_in_d32_bf16", grid, 128, few)
        return
    tiled = packed and depth % 4 == 0 and width % 16 == 0
    if tiled and (depth > 32 or activation != "none") and depth <= _MOST_TILED:
        shared = 64 * (depth // 4 | 1) * 16
        tiles = (x, weight, bias, out, rows, depth, *strides, kind)
        grid = (width // 16, blocks(rows, 48))
        launcher.launch("action_in_activated_bf16", grid, 256, tiles, shared_bytes=shared)
        return
    args = (x, weight, bias, out, width, depth, *strides)
    launcher.launch("action_in_rows_bf16", (blocks(width, 256), rows), 256, args)
    if activation != "none":
        product_rows_launch(launcher, out, None, out, activation=activation)


#: Width of x that 64 rows of it and of the weight fit into a block's shared memory with.
_MOST_TILED = 320

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
