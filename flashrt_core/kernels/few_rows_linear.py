"""Kernels for products of few rows with bias, activation and addition, a norm in front or not.

What ``linear`` and ``layer_norm_linear`` share on the CUDA device; no op. Source:
csrc/ops/few_rows_linear.cu, and of four bits csrc/ops/four_bit_linear.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .four_bit_linear import Ends, four_bit_linear
from .launch import Launcher, require_bf16
from .maths import ACTIVATIONS, Activation
from .quantised import E4M3
from .skinny import SkinnyPlan, Squares, busiest

#: Most rows of x that the copy engine fetches.
_TOKENS = 48


def streamed_plan(
    kernel: str,
    depth: int,
    rows: int,
    shared_bytes: int,
    cluster: int,
    tokens: int = _TOKENS,
    *,
    others: bool = False,
    run: int = 0,
    alone: bool = False,
) -> SkinnyPlan:
    """A kernel that takes x and the weight as maps of tiles (streamed_product_sm90.cuh).

    Args:
        kernel: the name of its op.
        depth, rows, shared_bytes, cluster, tokens, run, alone: as of :class:`SkinnyPlan`.
        others: whether one of this name takes more tokens, so that the name says how many.
    """
    few = f"_{tokens}" if others else ""
    name = f"{kernel}_k{depth}_{rows}{few}_bf16_sm90"
    rest: dict[str, Any] = {"tiles": True, "mapped": True, "run": run, "alone": alone}
    return SkinnyPlan(name, depth, tokens, rows, shared_bytes, cluster=cluster, **rest)


def _whole(
    kernel: str, depth: int, tokens: int, shared_bytes: int, cluster: int, *, mapped: bool = False
) -> SkinnyPlan:
    """A kernel with int8 weights, 64 rows of them a cluster; the others as :class:`SkinnyPlan`."""
    name = f"{kernel}_k{depth}_by_{cluster}_i8_sm90"
    return SkinnyPlan(
        name, depth, tokens, 64, shared_bytes, cluster=cluster, mapped=mapped, asks=True
    )


#: With E4M3 rows and weights.
FP8_PLANS = (
    SkinnyPlan(
        "linear_k6144_96_fp8_sm90", 6144, _TOKENS, 96, 114528, cluster=8, tiles=True, mapped=True
    ),
)
LINEAR_PLANS = (
    streamed_plan("linear", 1536, 32, 67648, 4),
    streamed_plan("linear", 1536, 48, 83008, 4),
    streamed_plan("linear", 1536, 96, 92208, 2),
    streamed_plan("linear", 6144, 96, 114528, 8),
    streamed_plan("linear", 3072, 96, 92224, 4, tokens=16, others=True),
    streamed_plan("linear", 3072, 96, 110656, 4, tokens=32),
    _whole("linear", 1536, 48, 49216, 4, mapped=True),
    _whole("linear", 6144, 48, 86128, 8, mapped=True),
)
NORM_PLANS = (
    streamed_plan("layer_norm_linear", 1536, 32, 72992, 4),
    streamed_plan("layer_norm_linear", 1536, 48, 88608, 4),
    streamed_plan("layer_norm_linear", 1536, 72, 82768, 2),
    streamed_plan("layer_norm_linear", 1536, 96, 114272, 2, alone=True),
    streamed_plan("layer_norm_linear", 3072, 96, 99360, 4, tokens=16, run=24),
    streamed_plan("layer_norm_linear", 3072, 112, 117152, 1, tokens=16),
    streamed_plan("layer_norm_linear", 3072, 144, 103376, 2, tokens=16, run=24, alone=True),
    _whole("layer_norm_linear", 1536, 44, 48416, 2),
    _whole("layer_norm_linear", 1536, 44, 45344, 4),
)


#: Those whose results may be E4M3, in the form ``_into_fp8``.
_INTO_FP8 = ("layer_norm_linear_k1536_96_bf16_sm90",)


def _into_fp8(plan: SkinnyPlan) -> SkinnyPlan | None:
    """Its form with E4M3 results; None where there is none."""
    if plan.kernel not in _INTO_FP8:
        return None
    return replace(plan, kernel=plan.kernel.replace("_sm90", "_into_fp8_sm90"))


def _few_rows_plan(
    plans: Sequence[SkinnyPlan],
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    activation: Activation,
) -> SkinnyPlan | None:
    """The plan that keeps most multiprocessors busy at once; None for none."""
    if x.dtype is not torch.bfloat16 or activation == "gelu" or not weight.is_contiguous():
        return None
    if out.dtype is E4M3:
        plan = _few_rows_plan(plans, launcher, x, weight, x, activation)
        return None if plan is None else _into_fp8(plan)
    if out.dtype is not torch.bfloat16:
        return None
    tiles = {torch.bfloat16: True, torch.int8: False}.get(weight.dtype)
    fitting = [plan for plan in plans if plan.tiles == tiles]
    return busiest(fitting, launcher, x.shape[0], *weight.shape)


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
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    squares: Squares | None = None,
) -> bool:
    """Launches the op where a kernel takes it; arguments as the op's. Whether one does.

    ``squares``: sums that it has to leave too, of a product without activation.
    """
    if weight.dtype is torch.uint8 and weight_scale is not None:
        packed, norm = (weight, weight_scale), (gain, shift, eps)
        behind = Ends(bias, activation, squares=squares)
        return four_bit_linear(launcher, "layer_norm_linear", x, *packed, out, behind, norm)
    plan = _few_rows_plan(NORM_PLANS, launcher, x, weight, out, activation)
    if plan is None or (squares is not None and not squares.fits(plan)):
        return False
    require_bf16("layer_norm_linear", x=x, bias=bias, out=out if out_scale is None else None)
    operands, strides, last = _operands(launcher, plan, x, weight, weight_scale)
    into = () if out_scale is None else (out_scale,)
    found: _Args = (*operands, gain, shift, bias, out, *into)
    counts = (x.shape[0], *strides, out.stride(0))
    if squares is not None:
        values = squares.place(launcher, plan, x.shape[0])
        args: _Args = (*found, values, *counts, values.shape[1], eps)
        plan.with_squares().launch(launcher, weight.shape[0], args)
        return True
    args = (*found, *counts, list(ACTIVATIONS).index(activation), eps, *last)
    plan.launch(launcher, weight.shape[0], args)
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
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> bool:
    """Launches the op where a kernel takes it; arguments as the op's. Whether one does."""
    if x_scale is not None and weight_scale is not None:
        scales = (x_scale, weight_scale)
        return _linear_fp8(launcher, x, weight, scales, bias, out, activation, residual)
    if weight.dtype is torch.uint8 and weight_scale is not None:
        behind = Ends(bias, activation, residual=residual)
        return four_bit_linear(launcher, "linear", x, weight, weight_scale, out, behind)
    plan = _few_rows_plan(LINEAR_PLANS, launcher, x, weight, out, activation)
    if plan is None or (residual is not None and residual.shape != out.shape):
        return False
    require_bf16("linear", x=x, bias=bias, out=out, residual=residual)
    operands, strides, last = _operands(launcher, plan, x, weight, weight_scale)
    ends = (out.stride(0), 0 if residual is None else residual.stride(0))
    kind = list(ACTIVATIONS).index(activation)
    args = (*operands, bias, residual, out, x.shape[0], *strides, *ends, kind, *last)
    plan.launch(launcher, weight.shape[0], args)
    return True


def _linear_fp8(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    scales: tuple[Tensor, Tensor],
    bias: Tensor | None,
    out: Tensor,
    activation: Activation,
    residual: Tensor | None,
) -> bool:
    """The same of E4M3 rows and weights, with the scales of both."""
    plan = busiest(FP8_PLANS, launcher, x.shape[0], *weight.shape)
    whole = {x.dtype, weight.dtype} == {E4M3} and weight.is_contiguous() and activation != "gelu"
    if plan is None or not whole or out.dtype is not torch.bfloat16:
        return False
    if residual is not None and residual.shape != out.shape:
        return False
    require_bf16("linear", bias=bias, out=out, residual=residual)
    ends = (out.stride(0), 0 if residual is None else residual.stride(0))
    found = (plan.x(x), plan.weight(weight), *scales, bias, residual, out)
    args = (*found, x.shape[0], *ends, list(ACTIVATIONS).index(activation))
    plan.launch(launcher, weight.shape[0], args)
    return True


_Args = tuple[object, ...]


def _operands(
    launcher: Launcher, plan: SkinnyPlan, x: Tensor, weight: Tensor, weight_scale: Tensor | None
) -> tuple[_Args, tuple[int, ...], _Args]:
    """What a kernel is given of x and the weight, strides, and what of a weight further on."""
    last: _Args = ()
    if plan.asks:
        following = launcher.follow(weight)
        last = (following, 0 if following is None else following.numel())
    scales = () if plan.tiles else (weight_scale,)
    return (plan.x(x), plan.weight(weight), *scales), plan.x_strides(x), last
