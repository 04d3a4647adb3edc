"""Conditioned RMS norm and the gated half of a GeGLU block in one op."""

from __future__ import annotations

import torch
from torch import Tensor

from .ada_rms_norm import ada_rms_norm_launch
from .check import F32, ArgCheck
from .expand_rows import expand_rows_launch
from .glu_linear import glu_rows_launch
from .launch import Launcher, require_bf16
from .low_bit import no_kernel
from .maths import ada_rms_normalise, glu
from .op import Lane, Op
from .quantised import E4M3, given, store
from .skinny import SIDE_BY_SIDE, SkinnyPlan, choose_plan, whole_plans


def _e4m3_plan(formats: str) -> SkinnyPlan:
    name = f"ada_rms_norm_geglu_56_{formats}_sm90"
    return SkinnyPlan(name, 1024, 56, 128, 106432, cluster=2, tiles=True)


#: Fused kernels, best first.
_PLANS = (
    SkinnyPlan("ada_rms_norm_geglu_14_bf16_cluster", 1024, 14, 64, 137808),
    SkinnyPlan("ada_rms_norm_geglu_30_bf16_cluster", 1024, 30, 64, 142416),
    SkinnyPlan("ada_rms_norm_geglu_54_bf16_sm90", 1024, 54, 64, 113568, cluster=2),
    SkinnyPlan("ada_rms_norm_geglu_62_bf16_sm90", 1024, 62, 64, 171552),
    SkinnyPlan("ada_rms_norm_geglu_62_bf16_cluster", 1024, 62, 64, 155728),
    SkinnyPlan("ada_rms_norm_geglu_14_bf16", 1024, 14, 32, 23088),
    SkinnyPlan("ada_rms_norm_geglu_62_bf16", 1024, 62, 16, 57376),
)
#: Those with E4M3 weights, a scale a row, for results of a type.
_E4M3_PLANS = {
    torch.bfloat16: _e4m3_plan("fp8"),
    E4M3: _e4m3_plan("fp8_into_fp8"),
}
#: Those with int8 weights.
_WHOLE_PLANS = (
    SkinnyPlan("ada_rms_norm_geglu_14_i8_sm90", 1024, 14, 64, 102928, carveout=SIDE_BY_SIDE),
    SkinnyPlan("ada_rms_norm_geglu_14_i8_cluster", 1024, 14, 64, 70224),
    SkinnyPlan("ada_rms_norm_geglu_30_i8_cluster", 1024, 30, 64, 80976),
    SkinnyPlan("ada_rms_norm_geglu_54_i8_sm90", 1024, 54, 64, 49248, cluster=2),
    SkinnyPlan("ada_rms_norm_geglu_14_i8", 1024, 14, 32, 23088),
    SkinnyPlan("ada_rms_norm_geglu_62_i8", 1024, 62, 16, 57376),
)


def ada_rms_norm_geglu_ref(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """float32 throughout, one rounding into ``out``."""
    normal = ada_rms_normalise(x, scale, shift, eps)
    store(glu(normal, weight, x_scale, weight_scale), out, out_scale)


def ada_rms_norm_geglu_launch(
    launcher: Launcher,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """One kernel where it was built for the shape; else norm, product and gate as three."""
    require_bf16("ada_rms_norm_geglu", x=x)
    rows, width = x.shape

    def fused(run: slice, plan: SkinnyPlan) -> None:
        part, into = x[run], out[run]
        weights = (scale, shift, weight, weight_scale)
        args = (part, *weights, into, part.shape[0], x.stride(0), out.stride(0), eps)
        plan.launch(launcher, weight.shape[0], args)

    if x_scale is not None and (plan := _E4M3_PLANS.get(out.dtype)) is not None:
        if not (weight.is_contiguous() and plan.fits(launcher, rows, *weight.shape)):
            raise no_kernel(
                "ada_rms_norm_geglu",
                expected=f"up to {plan.tokens} rows of {plan.depth} on architecture 9.0 where "
                "weights are float8_e4m3fn",
                got=f"{rows} rows of {width} on {launcher.architecture / 10}",
            )
        weights = (plan.weight(weight), x_scale, weight_scale)
        ends = (out, out_scale, rows, x.stride(0), out.stride(0), eps)
        plan.launch(launcher, weight.shape[0], (x, scale, shift, *weights, *ends))
        return
    require_bf16("ada_rms_norm_geglu", out=out)
    if weight_scale is not None:
        runs = whole_plans(
            "ada_rms_norm_geglu", _WHOLE_PLANS, launcher, x, weight, (x_scale, out_scale)
        )
        for run, plan in runs:
            fused(run, plan)
        if runs:
            return
        weight = expand_rows_launch(launcher, "ada_rms_norm_geglu", weight, weight_scale)
        weight_scale = None
    require_bf16("ada_rms_norm_geglu", weight=weight)
    chosen = choose_plan(_PLANS, launcher, rows, *weight.shape)
    if chosen is not None and weight.is_contiguous():
        fused(slice(0, rows), chosen)
        return
    scratch = launcher.workspace(rows * (width + weight.shape[0]))
    normal = scratch[: rows * width].view(rows, width)
    merged = scratch[rows * width :].view(rows, -1)
    ada_rms_norm_launch(launcher, x, scale, shift, normal, eps)
    launcher.matmul(normal, weight, None, merged)
    glu_rows_launch(launcher, merged, out)


def ada_rms_norm_geglu_operands(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    **_scales: Tensor,
) -> tuple[Tensor, Tensor]:
    """Weight and normalised rows, as :class:`Op` has them."""
    return weight, ada_rms_normalise(x, scale, shift, eps)


ADA_RMS_NORM_GEGLU = Op(
    "ada_rms_norm_geglu",
    ada_rms_norm_geglu_ref,
    ada_rms_norm_geglu_launch,
    ada_rms_norm_geglu_operands,
    low_bit=True,
)


def ada_rms_norm_geglu(
    lane: Lane,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """out = gelu_tanh(n Wg^T) * (n Wu^T), n = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift.

    Args:
        lane: where the op goes.
        x: [M, D] float, the residual stream.
        scale: [D] float32, one row of the step table.
        shift: [D] float32, likewise.
        weight: [2F, D] float, gate and up rows interleaved as in ``glu_linear``.
        out: [M, F] float, apart from ``x``.
        eps: added to the mean square.
        x_scale: [1] float32: n is quantised with it before the product.
        weight_scale: [2F] float32, of a float8_e4m3fn ``weight``: a row's.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("ada_rms_norm_geglu")
    check.tensor("x", x, ("M", "D"))
    check.tensor("scale", scale, ("D",), F32)
    check.tensor("shift", shift, ("D",), F32)
    check.quantised("out", out, ("M", "F"), "out_scale", out_scale, (1,))
    check.weight(weight, x_scale, weight_scale, (2 * check.sizes["F"], "D"))
    check.apart("out", out, "x", x)
    scales = given(x_scale=x_scale, weight_scale=weight_scale, out_scale=out_scale)
    lane.issue(ADA_RMS_NORM_GEGLU, x, scale, shift, weight, out, eps=eps, **scales)
