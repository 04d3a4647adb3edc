"""y += gate * (x W^T): the end of a block whose residual branch is gated column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ContractError
from .check import F32, ArgCheck
from .expand_rows import expand_rows_launch
from .few_rows_linear import streamed_plan
from .four_bit_linear import Ends, four_bit_linear
from .launch import Launcher, output_suffix, require_bf16, require_bf16_rows, row_threads
from .layer_norm import layer_norm_launch, layer_norm_ref
from .low_bit import require_e4m3
from .maths import matmul
from .op import Lane, Op
from .quantised import given
from .skinny import SIDE_BY_SIDE, SkinnyPlan, choose_plan, whole_plans

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
#: Those that stream weights of many megabytes, and add a bias.
_STREAMED_PLANS = (
    streamed_plan("linear_gated_residual", 3072, 96, 92224, 4, tokens=16, others=True),
    streamed_plan("linear_gated_residual", 14336, 96, 92224, 4, tokens=16, others=True),
    streamed_plan("linear_gated_residual", 3072, 96, 110656, 4, tokens=32),
    streamed_plan("linear_gated_residual", 14336, 96, 110656, 4, tokens=32),
)
#: Those of E4M3 rows and weights, a scale a row.
_E4M3_PLANS = (
    streamed_plan("linear_gated_residual", 4096, 64, 67760, 8, tokens=56, weights="fp8"),
)
#: Those with int8 weights.
_WHOLE_PLANS = (
    SkinnyPlan(
        "linear_gated_residual_k2048_16_i8_cluster",
        2048,
        16,
        32,
        12336,
        threads=128,
        cluster=4,
        carveout=SIDE_BY_SIDE,
    ),
    SkinnyPlan("linear_gated_residual_k2048_32_i8_cluster", 2048, 32, 16, 26656, cluster=2),
    SkinnyPlan("linear_gated_residual_k2048_56_i8_sm90", 2048, 56, 64, 44832, cluster=8),
    SkinnyPlan("linear_gated_residual_k2048_64_i8_sm90", 2048, 64, 64, 51232, cluster=8),
    SkinnyPlan("linear_gated_residual_k2048_64_i8_cluster", 2048, 64, 16, 53280, cluster=2),
    SkinnyPlan("linear_gated_residual_k2048_16_i8", 2048, 16, 8, 4112),
    SkinnyPlan("linear_gated_residual_k2048_64_i8", 2048, 64, 8, 16400),
    SkinnyPlan(
        "linear_gated_residual_k4096_16_i8_cluster",
        4096,
        16,
        32,
        22576,
        cluster=4,
        carveout=SIDE_BY_SIDE,
    ),
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
    normal: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 0.0,
    normal_scale: Tensor | None = None,
) -> None:
    """float32 accumulation, one rounding into ``out`` and into ``normal``."""
    branch = matmul(x, weight, x_scale, weight_scale)
    if bias is not None:
        branch.add_(bias)
    out.copy_(torch.addcmul(out.float(), branch, gate))
    if normal is not None:
        layer_norm_ref(out.float(), norm_weight, norm_bias, normal, eps=eps, out_scale=normal_scale)


@dataclass(frozen=True)
class _Norm:
    """The norm of a stream behind an addition."""

    weight: Tensor
    bias: Tensor
    out: Tensor
    eps: float
    scale: Tensor | None


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
    normal: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 0.0,
    normal_scale: Tensor | None = None,
) -> None:
    """One kernel where it was built for the shape; else product and gated addition as two."""
    norm = None
    if normal is not None and norm_weight is not None and norm_bias is not None:
        norm = _Norm(norm_weight, norm_bias, normal, eps, normal_scale)
    if _added(launcher, x, weight, gate, out, bias, x_scale, weight_scale, norm) or not norm:
        return
    stream = (out, norm.weight, norm.bias, norm.out)
    layer_norm_launch(launcher, *stream, eps=eps, out_scale=normal_scale)


def _added(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    gate: Tensor,
    out: Tensor,
    bias: Tensor | None,
    x_scale: Tensor | None,
    weight_scale: Tensor | None,
    norm: _Norm | None,
) -> bool:
    """Adds to the stream. Whether it is normalised, too."""
    if weight.dtype is torch.uint8 and weight_scale is not None:
        ends, packed = Ends(bias, gate=gate, residual=out), (weight, weight_scale)
        if four_bit_linear(launcher, "linear_gated_residual", x, *packed, out, ends):
            return False
    require_bf16("linear_gated_residual", out=out)
    rows, width = out.shape
    if x_scale is not None:
        require_e4m3("linear_gated_residual", x, weight)
        if _streamed(launcher, _E4M3_PLANS, x, weight, (x_scale, weight_scale), gate, out, bias):
            return False
        branch = launcher.workspace(rows, width)
        launcher.matmul(x, weight, None, branch, x_scale=x_scale)
        return _add_gated(launcher, branch, gate, out, bias=bias, scale=weight_scale, norm=norm)
    require_bf16("linear_gated_residual", x=x)
    if weight_scale is not None:
        if bias is None and _whole_weights(launcher, x, weight, weight_scale, gate, out):
            return False
        weight = expand_rows_launch(launcher, "linear_gated_residual", weight, weight_scale)
    require_bf16("linear_gated_residual", weight=weight)
    if _fused(launcher, x, weight, gate, out, bias):
        return False
    branch = launcher.workspace(rows, width)
    launcher.matmul(x, weight, None, branch)
    return _add_gated(launcher, branch, gate, out, bias=bias, scale=None, norm=norm)


def _fused(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    gate: Tensor,
    out: Tensor,
    bias: Tensor | None,
) -> bool:
    """Launches one kernel where it was built for the shape. Whether it was."""
    rows, width = out.shape
    if _streamed(launcher, _STREAMED_PLANS, x, weight, (), gate, out, bias):
        return True
    if not weight.is_contiguous():
        return False
    chosen = None if bias is not None else choose_plan(_PLANS, launcher, rows, *weight.shape)
    if chosen is None:
        return False
    counts = (rows, x.stride(0), out.stride(0))
    args = (x, chosen.weight(weight), None, gate, out, *counts)
    chosen.launch(launcher, width, args)
    return True


def _streamed(
    launcher: Launcher,
    plans: Sequence[SkinnyPlan],
    x: Tensor,
    weight: Tensor,
    scales: tuple[Tensor | None, ...],
    gate: Tensor,
    out: Tensor,
    bias: Tensor | None,
) -> bool:
    """Launches a kernel that takes x and the weight as tiles. Whether one of ``plans`` fits."""
    rows, width = out.shape
    plan = choose_plan(plans, launcher, rows, *weight.shape)
    if plan is None or not weight.is_contiguous():
        return False
    require_bf16("linear_gated_residual", bias=bias)
    found = (plan.x(x), plan.weight(weight), *scales, bias)
    plan.launch(launcher, width, (*found, gate, out, rows, out.stride(0)))
    return True


def _whole_weights(
    launcher: Launcher, x: Tensor, weight: Tensor, scale: Tensor, gate: Tensor, out: Tensor
) -> bool:
    """Launches kernels that read int8 weights as they are. Whether there are any."""
    runs = whole_plans("linear_gated_residual", _WHOLE_PLANS, launcher, x, weight, (None,))
    for run, plan in runs:
        counts = (x[run].shape[0], x.stride(0), out.stride(0))
        args = (x[run], plan.weight(weight), scale, gate, out[run], *counts)
        plan.launch(launcher, out.shape[1], args)
    return bool(runs)


def _add_gated(
    launcher: Launcher,
    branch: Tensor,
    gate: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None,
    scale: Tensor | None,
    norm: _Norm | None,
) -> bool:
    """out += gate * (scale branch + b), and its norm where one kernel does both. Whether it did."""
    rows, width = out.shape
    threads = row_threads("linear_gated_residual", width)
    strides = (width, branch.stride(0), out.stride(0))
    require_bf16_rows("linear_gated_residual", bias=bias)
    args = (branch, bias, scale, gate, out)
    if norm is not None:
        ends = (norm.weight, norm.bias, norm.out, norm.scale, *strides)
        into = output_suffix("linear_gated_residual", norm.out)
        every = (*args, *ends, norm.out.stride(0), norm.eps)
        launcher.launch(f"gated_residual_norm_{into}", rows, threads, every)
        return True
    if bias is None and scale is None:
        launcher.launch("gated_residual_bf16", rows, threads, (branch, gate, out, *strides))
        return False
    launcher.launch("gated_residual_biased_bf16", rows, threads, (*args, *strides))
    return False


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
    normal: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 0.0,
    normal_scale: Tensor | None = None,
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
        normal: [M, N] float, apart from the others: the layer norm of what ``out`` has become; None
            for none.
        norm_weight, norm_bias, eps: of that norm, as of ``layer_norm``.
        normal_scale: [1] float32, of a float8_e4m3fn ``normal``.

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
    scales: dict[str, Any] = given(bias=bias, x_scale=x_scale, weight_scale=weight_scale)
    if normal is not None:
        _check_norm(check, x, out, normal_scale, normal, norm_weight, norm_bias)
        ends = {"normal": normal, "norm_weight": norm_weight, "norm_bias": norm_bias}
        scales |= {**ends, "eps": eps, **given(normal_scale=normal_scale)}
    lane.issue(LINEAR_GATED_RESIDUAL, x, weight, gate, out, **scales)


def _check_norm(
    check: ArgCheck,
    x: Tensor,
    out: Tensor,
    scale: Tensor | None,
    normal: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
) -> None:
    for name, value in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        if value is None:
            raise ContractError(name, expected="one with 'normal'", got=None)
        check.tensor(name, value, ("N",), F32)
    check.quantised("normal", normal, ("M", "N"), "normal_scale", scale, (1,))
    check.apart("normal", normal, "x", x)
    check.apart("normal", normal, "out", out)
