"""Conditioned RMS norm, merged q|k|v product, rotary turn and cache write in one op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .ada_rms_norm import ada_rms_norm_launch
from .check import F32, ArgCheck
from .expand_rows import expand_rows_launch
from .launch import Launcher, require_bf16
from .maths import ada_rms_normalise, matmul, split_qkv_rope
from .op import Lane, Op
from .qkv_rope_kv import check_qkv_outputs, qkv_rope_kv_launch
from .quantised import given
from .skinny import SIDE_BY_SIDE, SkinnyPlan, choose_plan, whole_plans

#: Fused kernels, best first.
_PLANS = (
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_14_bf16_cluster", 1024, 14, 80, 51552, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_30_bf16_cluster", 1024, 30, 80, 103520, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_54_bf16_sm90", 1024, 54, 64, 48160, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_62_bf16_sm90", 1024, 62, 64, 54816, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_14_bf16", 1024, 14, 16, 14880),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_62_bf16", 1024, 62, 16, 57376),
)
#: Those with int8 weights.
_WHOLE_PLANS = (
    SkinnyPlan(
        "ada_rms_norm_qkv_rope_kv_14_i8_hopper",
        1024,
        14,
        64,
        42704,
        cluster=2,
        carveout=SIDE_BY_SIDE,
    ),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_14_i8_cluster", 1024, 14, 80, 51552, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_30_i8_cluster", 1024, 30, 80, 103520, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_54_i8_sm90", 1024, 54, 64, 48160, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_62_i8_sm90", 1024, 62, 64, 54816, cluster=4),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_14_i8", 1024, 14, 16, 14880),
    SkinnyPlan("ada_rms_norm_qkv_rope_kv_62_i8", 1024, 62, 16, 57376),
)


def ada_rms_norm_qkv_rope_kv_ref(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    rope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    head_dim: int,
    eps: float,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> None:
    """float32 throughout, one rounding into each output."""
    normal = ada_rms_normalise(x, scale, shift, eps)
    split_qkv_rope(matmul(normal, weight, x_scale, weight_scale), rope, q, k, v, head_dim)


def ada_rms_norm_qkv_rope_kv_launch(
    launcher: Launcher,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    rope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    head_dim: int,
    eps: float,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> None:
    """One kernel where it was built for the shape; else norm, product and turn as three."""
    op = "ada_rms_norm_qkv_rope_kv"
    require_bf16(op, x=x, q=q, k=k, v=v)
    rows, width = x.shape
    one_key_head = k.shape[1] == head_dim == 256 and k.stride(0) == v.stride(0)

    def fused(run: slice, plan: SkinnyPlan) -> None:
        part, *outputs = x[run], rope[run], q[run], k[run], v[run]
        counts = (part.shape[0], q.shape[1] // head_dim)
        pitches = (x.stride(0), rope.stride(0), q.stride(0), k.stride(0))
        args = (part, scale, shift, weight, weight_scale, *outputs, *counts, *pitches, eps)
        plan.launch(launcher, weight.shape[0], args)

    if weight_scale is not None:
        plans = _WHOLE_PLANS if one_key_head else ()
        runs = whole_plans(op, plans, launcher, x, weight, (x_scale,))
        for run, plan in runs:
            fused(run, plan)
        if runs:
            return
        weight = expand_rows_launch(launcher, op, weight, weight_scale)
        weight_scale = None
    require_bf16(op, weight=weight)
    chosen = choose_plan(_PLANS, launcher, rows, *weight.shape)
    if chosen is not None and one_key_head and weight.is_contiguous():
        fused(slice(0, rows), chosen)
        return
    scratch = launcher.workspace(rows * (width + weight.shape[0]))
    normal = scratch[: rows * width].view(rows, width)
    merged = scratch[rows * width :].view(rows, -1)
    ada_rms_norm_launch(launcher, x, scale, shift, normal, eps)
    launcher.matmul(normal, weight, None, merged)
    qkv_rope_kv_launch(launcher, merged, rope, q, k, v, head_dim=head_dim)


def ada_rms_norm_qkv_rope_kv_operands(
    x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, *_out: Tensor, eps: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Weight and normalised rows, as :class:`Op` has them."""
    return weight, ada_rms_normalise(x, scale, shift, eps)


ADA_RMS_NORM_QKV_ROPE_KV = Op(
    "ada_rms_norm_qkv_rope_kv",
    ada_rms_norm_qkv_rope_kv_ref,
    ada_rms_norm_qkv_rope_kv_launch,
    ada_rms_norm_qkv_rope_kv_operands,
    low_bit=True,
)


def ada_rms_norm_qkv_rope_kv(
    lane: Lane,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    rope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    head_dim: int,
    eps: float,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> None:
    """n = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift, then ``qkv_rope_kv`` of n W^T.

    Args:
        lane: where the op goes.
        x: [M, D] float, the residual stream.
        scale: [D] float32, one row of the step table.
        shift: [D] float32, likewise.
        weight: [Dq + 2 Dkv, D] float, rows q|k|v.
        rope: [M, head_dim] float32 rows of ``rope_rows``.
        q: [M, Dq] float.
        k: [M, Dkv] float, rows of the key cache.
        v: [M, Dkv] float, rows of the value cache.
        head_dim: width of a head.
        eps: added to the mean square.
        x_scale: [1] float32: n is quantised with it before the product.
        weight_scale: [Dq + 2 Dkv] float32, of a float8_e4m3fn ``weight``: a row's.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("ada_rms_norm_qkv_rope_kv")
    check.tensor("x", x, ("M", "D"))
    check.tensor("scale", scale, ("D",), F32)
    check.tensor("shift", shift, ("D",), F32)
    width = check_qkv_outputs(check, rope, q, k, v, head_dim)
    check.weight(weight, x_scale, weight_scale, (width, "D"))
    check.apart("q", q, "x", x)
    lane.issue(
        ADA_RMS_NORM_QKV_ROPE_KV,
        x,
        scale,
        shift,
        weight,
        rope,
        q,
        k,
        v,
        head_dim=head_dim,
        eps=eps,
        **given(x_scale=x_scale, weight_scale=weight_scale),
    )
