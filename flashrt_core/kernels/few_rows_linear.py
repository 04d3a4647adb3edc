"""Kernels for products of few rows with bias, activation and addition, a norm in front or not.

What ``linear`` and ``layer_norm_linear`` share on the CUDA device; no op. Source:
csrc/ops/few_rows_linear.cu, and of four bits csrc/ops/four_bit_linear.cu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .four_bit_linear import Ends, four_bit_linear
from .launch import Launcher, require_bf16
from .low_bit import require_e4m3
from .maths import ACTIVATIONS, Activation
from .quantised import E4M3
from .row_moments import RowMoments, left_moments
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
    weights: str = "bf16",
) -> SkinnyPlan:
    """A kernel that takes x and the weight as maps of tiles (streamed_product_sm90.cuh).

    Args:
        kernel: the name of its op.
        depth, rows, shared_bytes, cluster, tokens, run, alone: as of :class:`SkinnyPlan`.
        others: whether one of this name takes more tokens, so that the name says how many.
        weights: their format, which is that of x.
    """
    few = f"_{tokens}" if others else ""
    name = f"{kernel}_k{depth}_{rows}{few}_{weights}_sm90"
    rest: dict[str, Any] = {"tiles": True, "mapped": True, "run": run, "alone": alone}
    return SkinnyPlan(name, depth, tokens, rows, shared_bytes, cluster=cluster, **rest)


#: Of weights of a type; of E4M3 ones for rows of that type.
LINEAR_PLANS: Mapping[torch.dtype, Sequence[SkinnyPlan]] = {
    torch.bfloat16: (
        streamed_plan("linear", 1536, 32, 67648, 4),
        streamed_plan("linear", 1536, 48, 83008, 4),
        streamed_plan("linear", 1536, 96, 92208, 2),
        streamed_plan("linear", 6144, 96, 114528, 8),
        streamed_plan("linear", 3072, 96, 92224, 4, tokens=16, others=True),
        streamed_plan("linear", 3072, 96, 110656, 4, tokens=32),
    ),
    E4M3: (
        streamed_plan("linear", 1536, 48, 40352, 4, weights="fp8"),
        streamed_plan("linear", 6144, 96, 106464, 8, weights="fp8"),
    ),
}
NORM_PLANS: Mapping[torch.dtype, Sequence[SkinnyPlan]] = {
    torch.bfloat16: (
        streamed_plan("layer_norm_linear", 1536, 32, 72992, 4),
        streamed_plan("layer_norm_linear", 1536, 48, 88608, 4),
        streamed_plan("layer_norm_linear", 1536, 72, 82768, 2),
        streamed_plan("layer_norm_linear", 1536, 96, 114272, 2, alone=True),
        streamed_plan("layer_norm_linear", 3072, 96, 99360, 4, tokens=16, run=24),
        streamed_plan("layer_norm_linear", 3072, 112, 117152, 1, tokens=16),
        streamed_plan("layer_norm_linear", 3072, 144, 103376, 2, tokens=16, run=24, alone=True),
    ),
    E4M3: (
        SkinnyPlan(
            "layer_norm_linear_k1536_96_fp8_sm90", 1536, 48, 96, 116048, cluster=2, tiles=True
        ),
    ),
}
#: Those that have a form with E4M3 results.
_INTO_FP8 = (
    "layer_norm_linear_k1536_96_bf16_sm90",
    "layer_norm_linear_k1536_96_fp8_sm90",
)


def _few_rows_plan(
    plans: Mapping[torch.dtype, Sequence[SkinnyPlan]],
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    activation: Activation,
    rows: torch.dtype = torch.bfloat16,
) -> SkinnyPlan | None:
    """The plan that keeps most multiprocessors busy at once; None for none, and for other rows."""
    fitting = plans.get(weight.dtype, ()) if weight.is_contiguous() else ()
    if x.dtype is not rows or activation == "gelu":
        return None
    plan = busiest(fitting, launcher, x.shape[0], *weight.shape)
    if plan is None or out.dtype is torch.bfloat16:
        return plan
    return plan.into_fp8() if out.dtype is E4M3 and plan.kernel in _INTO_FP8 else None


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
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
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
    affine = gain is not None or shift is not None
    if weight.dtype is E4M3 and (x_scale is None or affine):
        return False
    if out.dtype is E4M3 and (out.data_ptr() % 4 or out.stride(0) % 4):  # four at once
        return False
    require_bf16("layer_norm_linear", x=x, bias=bias, out=out if out_scale is None else None)
    between = (x_scale, weight_scale) if weight.dtype is E4M3 else (gain, shift)
    found = (plan.x(x), plan.weight(weight), *between, bias, out)
    counts = (x.shape[0], *plan.x_strides(x), out.stride(0))
    if squares is not None:
        values = squares.place(launcher, plan, x.shape[0])
        args: tuple[Any, ...] = (*found, values, *counts, values.shape[1], eps)
        plan.with_squares().launch(launcher, weight.shape[0], args)
        return True
    left = (out_scale, *left_moments(moments))
    args = (*found, *left, *counts, list(ACTIVATIONS).index(activation), eps)
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
    moments: RowMoments | None = None,
) -> bool:
    """Launches the op where a kernel takes it; arguments as the op's. Whether one does."""
    if moments is not None:
        moments.leave(0)  # unless a kernel leaves more
    if weight.dtype is torch.uint8 and weight_scale is not None:
        behind = Ends(bias, activation, residual=residual)
        return four_bit_linear(launcher, "linear", x, weight, weight_scale, out, behind)
    rows = E4M3 if weight.dtype is E4M3 else torch.bfloat16
    plan = _few_rows_plan(LINEAR_PLANS, launcher, x, weight, out, activation, rows)
    if plan is None or out.dtype is not torch.bfloat16:
        return False
    if residual is not None and residual.shape != out.shape:
        return False
    scales: tuple[Tensor | None, ...] = ()
    if weight.dtype is E4M3:
        require_e4m3("linear", x, weight)
        scales = (x_scale, weight_scale)
    else:
        require_bf16("linear", x=x)
    require_bf16("linear", bias=bias, out=out, residual=residual)
    ends = (out.stride(0), 0 if residual is None else residual.stride(0))
    room = None if moments is None else moments.leave(weight.shape[0] // plan.rows)
    found = (plan.x(x), plan.weight(weight), *scales, bias, residual, out, room)
    args = (*found, x.shape[0], *ends, list(ACTIVATIONS).index(activation))
    plan.launch(launcher, weight.shape[0], args)
    return True
