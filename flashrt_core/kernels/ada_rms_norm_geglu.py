"""Conditioned RMS norm and the gated half of a GeGLU block in one op."""

from __future__ import annotations

from torch import Tensor

from .ada_rms_norm import ada_rms_norm_launch
from .check import F32, ArgCheck
from .geglu_linear import geglu_rows_launch
from .launch import Launcher, require_bf16
from .maths import ada_rms_normalise, geglu
from .op import Lane, Op


def ada_rms_norm_geglu_ref(
    x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, out: Tensor, *, eps: float
) -> None:
    """float32 throughout, one rounding into ``out``."""
    out.copy_(geglu(ada_rms_normalise(x, scale, shift, eps), weight))


def ada_rms_norm_geglu_launch(
    launcher: Launcher,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
) -> None:
    """Norm, product and gate as three kernels, for shapes without a fused one."""
    require_bf16("ada_rms_norm_geglu", x=x, weight=weight, out=out)
    rows, width = x.shape
    scratch = launcher.workspace(rows * (width + weight.shape[0]))
    normal = scratch[: rows * width].view(rows, width)
    merged = scratch[rows * width :].view(rows, -1)
    ada_rms_norm_launch(launcher, x, scale, shift, normal, eps)
    launcher.matmul(normal, weight, None, merged)
    geglu_rows_launch(launcher, merged, out)


ADA_RMS_NORM_GEGLU = Op("ada_rms_norm_geglu", ada_rms_norm_geglu_ref, ada_rms_norm_geglu_launch)


def ada_rms_norm_geglu(
    lane: Lane,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
) -> None:
    """out = gelu_tanh(n Wg^T) * (n Wu^T), n = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift.

    Args:
        lane: where the op goes.
        x: [M, D] float, the residual stream.
        scale: [D] float32, one row of the step table.
        shift: [D] float32, likewise.
        weight: [2F, D] float, gate and up rows interleaved as in ``geglu_linear``.
        out: [M, F] float, apart from ``x``.
        eps: added to the mean square.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("ada_rms_norm_geglu")
    check.tensor("x", x, ("M", "D"))
    check.tensor("scale", scale, ("D",), F32)
    check.tensor("shift", shift, ("D",), F32)
    check.tensor("out", out, ("M", "F"))
    check.tensor("weight", weight, (2 * check.sizes["F"], "D"))
    check.apart("out", out, "x", x)
    lane.issue(ADA_RMS_NORM_GEGLU, x, scale, shift, weight, out, eps=eps)
