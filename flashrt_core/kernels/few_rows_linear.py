"""Kernels for products of few rows with bias, activation and addition, a norm in front or not.

What ``linear`` and ``layer_norm_linear`` share on the CUDA device; no op. Source:
csrc/ops/few_rows_linear.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .launch import Launcher, TensorMap, require_bf16
from .maths import ACTIVATIONS, Activation
from .skinny import SkinnyPlan

#: Most rows of x.
_TOKENS = 48


def _plan(kernel: str, depth: int, rows: int, shared_bytes: int, cluster: int) -> SkinnyPlan:
    name = f"{kernel}_k{depth}_{rows}_bf16_sm90"
    return SkinnyPlan(name, depth, _TOKENS, rows, shared_bytes, cluster=cluster, tiles=True)


LINEAR_PLANS = (
    _plan("linear", 1536, 32, 67648, 4),
    _plan("linear", 1536, 48, 83008, 4),
    _plan("linear", 1536, 96, 92208, 2),
    _plan("linear", 6144, 96, 92208, 8),
)
NORM_PLANS = (
    _plan("layer_norm_linear", 1536, 32, 74560, 4),
    _plan("layer_norm_linear", 1536, 48, 90176, 4),
    _plan("layer_norm_linear", 1536, 72, 85872, 2),
    _plan("layer_norm_linear", 1536, 96, 103152, 2),
)


def few_rows_plan(
    plans: Sequence[SkinnyPlan],
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    activation: Activation,
) -> SkinnyPlan | None:
    """The plan that keeps most multiprocessors busy in one round; None where none takes this."""
    formats = {x.dtype, weight.dtype, out.dtype}
    if formats != {torch.bfloat16} or activation == "gelu" or not weight.is_contiguous():
        return None
    fitting = [plan for plan in plans if plan.fits(launcher, x.shape[0], *weight.shape)]

    def blocks_of(plan: SkinnyPlan) -> int:
        return weight.shape[0] // plan.rows * plan.cluster

    at_once = [plan for plan in fitting if blocks_of(plan) <= launcher.multiprocessors]
    return max(at_once, key=blocks_of, default=min(fitting, key=blocks_of, default=None))


def layer_norm_linear_few_rows(
    launcher: Launcher,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    activation: Activation,
) -> bool:
    """Launches the op where a kernel takes it; arguments as the op's. Whether one does."""
    plan = few_rows_plan(NORM_PLANS, launcher, x, weight, out, activation)
    if plan is None:
        return False
    require_bf16("layer_norm_linear", x=x, weight=weight, bias=bias, out=out)
    kind = list(ACTIVATIONS).index(activation)
    operands = (_rows(x), plan.weight(weight), gain, shift, bias, out)
    plan.launch(launcher, weight.shape[0], (*operands, x.shape[0], out.stride(0), kind, eps))
    return True


def linear_few_rows(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    activation: Activation,
    residual: Tensor | None,
) -> bool:
    """Launches the op where a kernel takes it; arguments as the op's. Whether one does."""
    plan = few_rows_plan(LINEAR_PLANS, launcher, x, weight, out, activation)
    if plan is None or (residual is not None and residual.shape != out.shape):
        return False
    require_bf16("linear", x=x, weight=weight, bias=bias, out=out, residual=residual)
    kind = list(ACTIVATIONS).index(activation)
    strides = (out.stride(0), 0 if residual is None else residual.stride(0))
    operands = (_rows(x), plan.weight(weight), bias, residual, out)
    plan.launch(launcher, weight.shape[0], (*operands, x.shape[0], *strides, kind))
    return True


def _rows(x: Tensor) -> TensorMap:
    """All rows of x, 64 columns at a time; what is behind the last one is zero."""
    return TensorMap(x.data_ptr(), x.shape[0], x.shape[1], x.stride(0), _TOKENS, 64)
