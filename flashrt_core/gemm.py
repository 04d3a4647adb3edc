"""Dense products. The one place that decides how a product runs; stages only say what it is.

On the CPU device a product runs as its torch reference, on the CUDA device through cuBLASLt, with a
kernel of our own behind for what that cannot do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .kernels.check import ArgCheck
from .kernels.copy_rows import copy_rows_launch
from .kernels.expand_rows import expand_rows_launch
from .kernels.few_rows_linear import linear_few_rows
from .kernels.launch import (
    Launcher,
    Way,
    require_bf16_rows,
    stream_suffix,
)
from .kernels.low_bit import no_kernel, require_e4m3
from .kernels.maths import ACTIVATIONS, Activation, matmul
from .kernels.op import Lane, Op
from .kernels.product_rows import product_rows_launch
from .kernels.quantised import E4M3, given, store
from .kernels.row_moments import RowMoments, moments_setting


def linear_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    activation: Activation = "none",
    residual: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """float32 accumulation and epilogue, one rounding into ``out``; no moments."""
    if weight_scale is None:
        y = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    else:
        y = matmul(x, weight, x_scale, weight_scale)
        if bias is not None:
            y.add_(bias)
    y = ACTIVATIONS[activation](y)
    if residual is not None:
        y.view(-1, *residual.shape).add_(residual)
    store(y, out, out_scale)


def linear_launch(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    activation: Activation = "none",
    residual: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """One product of cuBLASLt: bias and activation in its epilogue, the residual as its addend; few
    rows have kernels of their own.

    A residual other than ``out`` itself is copied there first, run by run. What E4M3 needs of the
    epilogue is done by one kernel behind where the library does not do it, or not as fast.
    """
    ends: dict[str, Any] = {"activation": activation, "residual": residual}
    ends |= {"x_scale": x_scale, "weight_scale": weight_scale}
    if linear_few_rows(launcher, x, weight, bias, out, **ends, moments=moments):
        return
    gelu, accumulate = activation == "gelu_tanh", residual is not None
    if weight_scale is not None and x_scale is None and x.dtype is torch.bfloat16:
        weight, weight_scale = expand_rows_launch(launcher, "linear", weight, weight_scale), None
    if weight_scale is None:
        require_bf16_rows("linear", x=x, weight=weight)
    else:
        require_e4m3("linear", x, weight)
    if out.dtype is E4M3 and accumulate:
        raise no_kernel("linear", expected="a wide 'out' to add to", got=out.dtype)
    if out.dtype is not E4M3 and stream_suffix("linear", "out", out) == "bf16":
        require_bf16_rows("linear", bias=bias)
    if residual is not None and residual.data_ptr() != out.data_ptr():
        run = residual.shape[0]
        for start in range(0, out.shape[0], run):
            copy_rows_launch(launcher, residual, out[start : start + run])
    narrow = weight_scale is not None
    possible = activation == "none" or (gelu and not accumulate)  # its GELU takes the addend too
    if possible and not narrow and out_scale is None:
        launcher.matmul(x, weight, bias, out, gelu=gelu, accumulate=accumulate)
        return

    def whole(x: Tensor, out: Tensor) -> None:
        scales = {"x_scale": x_scale, "weight_scale": weight_scale, "out_scale": out_scale}
        launcher.matmul(x, weight, bias, out, gelu=gelu, accumulate=accumulate, **scales)

    def behind(x: Tensor, out: Tensor) -> None:
        product = launcher.workspace(*out.shape)
        launcher.matmul(x, weight, None, product, x_scale=x_scale, weight_scale=weight_scale)
        into: dict[str, Any] = {"activation": activation, "accumulate": accumulate}
        product_rows_launch(launcher, product, bias, out, **into, out_scale=out_scale)

    ways: dict[str, Way] = {"kernel behind": behind}
    epilogue = {"gelu": gelu, "accumulate": accumulate}
    if possible and narrow and launcher.finishes(x, weight, bias, out, **epilogue):
        ways = {"epilogue": whole, **ways}
    launcher.fastest(_key(x, out, narrow, bias is not None, activation, accumulate), ways, x, out)


def _key(
    x: Tensor, out: Tensor, narrow: bool, biased: bool, activation: Activation, added: bool
) -> str:
    """Under which the choice of a way is kept."""
    parts = {"fp8": narrow, "bias": biased, "gelu": activation == "gelu_tanh", "added": added}
    if activation not in ("none", "gelu_tanh"):
        parts[f"{activation} behind"] = True
    into = str(out.dtype).removeprefix("torch.")
    words = [*(part for part, there in parts.items() if there), "into", into]
    return f"linear {x.shape[0]} {x.shape[1]} {out.shape[1]} {' '.join(words)}"


def linear_operands(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, **_options: Any
) -> tuple[Tensor, Tensor]:
    """Weight and input, as :class:`Op` has them."""
    return weight, x


LINEAR = Op("linear", linear_ref, linear_launch, linear_operands, low_bit=True)


def linear(
    lane: Lane,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    activation: Activation = "none",
    residual: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """out = act(x W^T + b) + residual.

    Args:
        lane: where the op goes.
        x: [M, K] float.
        weight: [N, K] float.
        bias: [N] float, or None.
        out: [M, N] float, apart from ``x``; may be ``residual``.
        activation: "none", "gelu_tanh", "gelu" (with the error function), "silu" or "relu".
        residual: [R, N] float with R dividing M: added to every run of R rows (R = M for a plain
            residual, R = tokens of a view for a position table). None: nothing is added.
        x_scale: [1] float32, of a float8_e4m3fn ``x``.
        weight_scale: float32, of a quantised ``weight``: [1] beside an ``x`` with a scale, [N] (a
            row's) beside one without, [N, K/run] of four bits (four_bits.py).
        out_scale: [1] float32, of a float8_e4m3fn ``out``.
        moments: those of ``out``, which the op may leave; None where no norm follows.

    Raises:
        ContractError: shapes, formats, devices or the activation do not fit.
    """
    check = ArgCheck("linear")
    check.operands(x, weight, x_scale, weight_scale, rows_scaled=False)
    if bias is not None:
        check.tensor("bias", bias, ("N",))
    check.quantised("out", out, ("M", "N"), "out_scale", out_scale, (1,))
    check.apart("out", out, "x", x)
    check.choice("activation", activation, tuple(ACTIVATIONS))
    if residual is not None:
        check.tensor("residual", residual, ("R", "N"))
        rows, run = check.sizes["M"], check.sizes["R"]
        check.require(
            run > 0 and rows % run == 0,
            "rows of 'residual'",
            expected=f"a divisor of {rows}",
            got=run,
        )
    scales = given(x_scale=x_scale, weight_scale=weight_scale, out_scale=out_scale)
    settings: dict[str, Any] = {"activation": activation, "residual": residual}
    settings |= moments_setting(check, moments)
    lane.issue(LINEAR, x, weight, bias, out, **settings, **scales)
