"""y += gate * (x W^T): the end of a block whose residual branch is gated column by column."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, ArgCheck
from .expand_rows import expand_rows_launch
from .four_bit_linear import Ends, four_bit_linear
from .launch import Launcher, require_bf16, row_threads
from .low_bit import no_kernel
from .maths import matmul
from .op import Lane, Op
from .quantised import given
from .skinny import SkinnyPlan, choose_plan, whole_plans

#: Fused kernels, best first.
_PLANS = (
    SkinnyPlan(
        "linear_gated_residual_k2048_16_bf16_cluster", 2048, 16, 32, 12336, threads=128, cluster=4
    ),
    SkinnyPlan("linear_gated_residual_k2048_32_bf16_cluster", 2048, 32, 16, 26656, cluster=2),
    SkinnyPlan("linear_gated_residual_k2048_56_bf16_sm90", 2048, 56, 64, 44832, cluster=8),
    SkinnyPlan("linear_gated_residual_k2048_64_bf16_sm90", 2048, 64, 64, 51232, cluster=8),
    SkinnyPlan("linear_gated_residual_k2048_64_bf16_cluster", 2048, 64, 16, 53280, cluster=2),
    SkinnyPlan("linear_gated_residual_k2048_16_bf16", 2048, 16, 8, 4112),
    SkinnyPlan("linear_gated_residual_k2048_64_bf16", 2048, 64, 8, 16400),
    SkinnyPlan("linear_gated_residual_k4096_16_bf16_cluster", 4096, 16, 32, 22576, cluster=4),
    SkinnyPlan("linear_gated_residual_k4096_32_bf16_cluster", 4096, 32, 32, 71728, cluster=4),
    SkinnyPlan(
        "linear_gated_residual_k4096_56_bf16_sm90", 4096, 56, 64, 108592, cluster=8, tiles=True
    ),
    SkinnyPlan(
        "linear_gated_residual_k4096_64_bf16_sm90", 4096, 64, 64, 114736, cluster=8, tiles=True
    ),
    SkinnyPlan("linear_gated_residual_k4096_64_bf16_cluster", 4096, 64, 32, 90160, cluster=4),
    SkinnyPlan("linear_gated_residual_k4096_16_bf16", 4096, 16, 8, 4112),
)
#: Those with int8 weights.
_WHOLE_PLANS = (
    SkinnyPlan(
        "linear_gated_residual_k2048_16_i8_cluster", 2048, 16, 32, 12336, threads=128, cluster=4
    ),
    SkinnyPlan("linear_gated_residual_k2048_32_i8_cluster", 2048, 32, 16, 26656, cluster=2),
    SkinnyPlan("linear_gated_residual_k2048_56_i8_sm90", 2048, 56, 64, 44832, cluster=8),
    SkinnyPlan("linear_gated_residual_k2048_64_i8_sm90", 2048, 64, 64, 51232, cluster=8),
    SkinnyPlan("linear_gated_residual_k2048_64_i8_cluster", 2048, 64, 16, 53280, cluster=2),
    SkinnyPlan("linear_gated_residual_k2048_16_i8", 2048, 16, 8, 4112),
    SkinnyPlan("linear_gated_residual_k2048_64_i8", 2048, 64, 8, 16400),
    SkinnyPlan("linear_gated_residual_k4096_16_i8_cluster", 4096, 16, 32, 22576, cluster=4),
    SkinnyPlan("linear_gated_residual_k4096_32_i8_cluster", 4096, 32, 32, 45104, cluster=4),
    SkinnyPlan("linear_gated_residual_k4096_56_i8_sm90", 4096, 56, 64, 44832, cluster=8),
    SkinnyPlan("linear_gated_residual_k4096_64_i8_sm90", 4096, 64, 64, 51232, cluster=8),
    SkinnyPlan("linear_gated_residual_k4096_64_i8_cluster", 4096, 64, 32, 90160, cluster=4),
    SkinnyPlan("linear_gated_residual_k4096_16_i8", 4096, 16, 8, 4112),
)


def linear_gated_residual_ref(
    x: Tensor,
    weight: Tensor,
    gate: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> None:
    """float32 accumulation, one rounding into ``out``."""
    branch = matmul(x, weight, x_scale, weight_scale)
    if bias is not None:
        branch.add_(bias)
    out.copy_(torch.addcmul(out.float(), branch, gate))


def linear_gated_residual_launch(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    gate: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> None:
    """One kernel where it was built for the shape; else product and gated addition as two."""
    if weight.dtype is torch.uint8 and weight_scale is not None:
        ends = Ends(bias, gate=gate, residual=out)
        if four_bit_linear(launcher, "linear_gated_residual", x, weight, weight_scale, out, ends):
            return
    if bias is not None:
        raise no_kernel("linear_gated_residual", expected="no bias", got="one")
    require_bf16("linear_gated_residual", x=x, out=out)
    rows, width = out.shape

    def fused(run: slice, plan: SkinnyPlan) -> None:
        part, into = x[run], out[run]
        counts = (part.shape[0], x.stride(0), out.stride(0))
        args = (part, plan.weight(weight), weight_scale, gate, into, *counts)
        plan.launch(launcher, width, args)

    if weight_scale is not None:
        runs = whole_plans("linear_gated_residual", _WHOLE_PLANS, launcher, x, weight, (x_scale,))
        for run, plan in runs:
            fused(run, plan)
        if runs:
            return
        weight = expand_rows_launch(launcher, "linear_gated_residual", weight, weight_scale)
        weight_scale = None
    require_bf16("linear_gated_residual", weight=weight)
    chosen = choose_plan(_PLANS, launcher, rows, *weight.shape)
    if chosen is not None and weight.is_contiguous():
        fused(slice(0, rows), chosen)
        return
    branch = launcher.workspace(rows, width)
    launcher.matmul(x, weight, None, branch)
    args = (branch, gate, out, width, width, out.stride(0))
    threads = row_threads("linear_gated_residual", width)
    launcher.launch("gated_residual_bf16", rows, threads, args)


def linear_gated_residual_operands(
    x: Tensor, weight: Tensor, gate: Tensor, out: Tensor, **_options: Tensor
) -> tuple[Tensor, Tensor]:
    """Weight and input, as :class:`Op` has them."""
    return weight, x


LINEAR_GATED_RESIDUAL = Op(
    "linear_gated_residual",
    linear_gated_residual_ref,
    linear_gated_residual_launch,
    linear_gated_residual_operands,
    low_bit=True,
)


def linear_gated_residual(
    lane: Lane,
    x: Tensor,
    weight: Tensor,
    gate: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> None:
    """out = out + gate * (x W^T + b), in place.

    Args:
        lane: where the op goes.
        x: [M, K] float.
        weight: [N, K] float.
        gate: [N] float32, one row of the step table.
        out: [M, N] float, the residual stream; apart from ``x``.
        bias: [N] float, or None.
        x_scale: [1] float32, of a float8_e4m3fn ``x``.
        weight_scale: [N] float32, of a quantised ``weight``: a row's; [N, K/run] of four bits.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("linear_gated_residual")
    check.operands(x, weight, x_scale, weight_scale)
    check.tensor("gate", gate, ("N",), F32)
    check.tensor("out", out, ("M", "N"))
    check.apart("out", out, "x", x)
    if bias is not None:
        check.tensor("bias", bias, ("N",))
    scales = given(bias=bias, x_scale=x_scale, weight_scale=weight_scale)
    lane.issue(LINEAR_GATED_RESIDUAL, x, weight, gate, out, **scales)
