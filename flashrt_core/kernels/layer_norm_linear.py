"""out = act(LN(x) W^T + b): a norm in front of a product of few rows, as one op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .check import ArgCheck
from .expand_rows import expand_rows_launch
from .few_rows_linear import layer_norm_linear_few_rows, linear_few_rows
from .launch import Launcher, require_bf16_rows
from .layer_norm import layer_norm_launch
from .maths import ACTIVATIONS, Activation, layer_normalise, matmul
from .op import Lane, Op
from .product_rows import product_rows_launch
from .quantised import E4M3, given, store
from .row_moments import RowMoments, moments_setting


def layer_norm_linear_ref(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    activation: Activation = "none",
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """float32 throughout, one rounding into ``out``; moments are those of ``x`` in any case."""
    y = matmul(layer_normalise(x, gain, shift, eps), weight, x_scale, weight_scale)
    if bias is not None:
        y.add_(bias)
    store(ACTIVATIONS[activation](y), out, out_scale)


def layer_norm_linear_launch(
    launcher: Launcher,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    activation: Activation = "none",
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """One kernel where it was built for the shape; else norm, product and what follows it."""
    ends: dict[str, Any] = {"eps": eps, "activation": activation, "out_scale": out_scale}
    scales: dict[str, Any] = {"x_scale": x_scale, "weight_scale": weight_scale}
    few: dict[str, Any] = {**ends, **scales, "moments": moments}
    if layer_norm_linear_few_rows(launcher, x, gain, shift, weight, bias, out, **few):
        return
    (rows, width), columns = x.shape, weight.shape[0]
    scratch = launcher.workspace(rows * (width + columns))
    first, product = scratch[: rows * width], scratch[rows * width :].view(rows, columns)
    into: dict[str, Any] = {"activation": activation, "out_scale": out_scale}
    if x_scale is not None:
        narrow = first[: (rows * width + 1) // 2].view(E4M3)[: rows * width].view(rows, width)
        layer_norm_launch(launcher, x, gain, shift, narrow, eps=eps, out_scale=x_scale)
        launcher.matmul(narrow, weight, None, product, **scales)
        product_rows_launch(launcher, product, bias, out, **into)
        return
    normal = first.view(rows, width)
    layer_norm_launch(launcher, x, gain, shift, normal, eps=eps)
    if weight_scale is not None:
        behind: dict[str, Any] = {"activation": activation, "residual": None}
        given = (normal, weight, bias, out)
        if linear_few_rows(launcher, *given, **behind, weight_scale=weight_scale):
            return
        weight = expand_rows_launch(launcher, "layer_norm_linear", weight, weight_scale)
    require_bf16_rows("layer_norm_linear", weight=weight, bias=bias)
    if activation in ("none", "gelu_tanh") and out_scale is None:
        launcher.matmul(normal, weight, bias, out, gelu=activation == "gelu_tanh")
        return
    launcher.matmul(normal, weight, None, product)
    product_rows_launch(launcher, product, bias, out, **into)


def layer_norm_linear_operands(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    **_options: Any,
) -> tuple[Tensor, Tensor]:
    """Weight and normalised rows, as :class:`Op` has them."""
    return weight, layer_normalise(x, gain, shift, eps)


LAYER_NORM_LINEAR = Op(
    "layer_norm_linear",
    layer_norm_linear_ref,
    layer_norm_linear_launch,
    layer_norm_linear_operands,
    low_bit=True,
)


def layer_norm_linear(
    lane: Lane,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    activation: Activation = "none",
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """out = act(n W^T + b), n = (x - mean) / sqrt(var + eps) * gain + shift.

    Args:
        lane: where the op goes.
        x: [M, D] float, the residual stream.
        gain: [D] float32, None for none; that of a conditioned norm is 1 + scale, a row of a step
            table.
        shift: [D] float32; None where ``gain`` is.
        weight: [N, D] float.
        bias: [N] float, or None.
        out: [M, N] float, apart from ``x``.
        eps: added to the (biased) variance.
        activation: as of ``linear``.
        x_scale: [1] float32: n is quantised with it before the product.
        weight_scale: float32, of a quantised ``weight``: [1] beside ``x_scale``, else [N], a row's;
            [N, D/run] of four bits.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.
        moments: those of ``x``, as the op that wrote it has left them; None where none does.

    Raises:
        ContractError: shapes, formats, devices or the activation do not fit.
    """
    check = ArgCheck("layer_norm_linear")
    check.tensor("x", x, ("M", "D"))
    check.affine("gain", gain, "shift", shift)
    one = None if x_scale is None else (1,)
    check.weight(weight, x_scale, weight_scale, ("N", "D"), one)
    if bias is not None:
        check.tensor("bias", bias, ("N",))
    check.quantised("out", out, ("M", "N"), "out_scale", out_scale, (1,))
    check.apart("out", out, "x", x)
    check.choice("activation", activation, tuple(ACTIVATIONS))
    scales = given(x_scale=x_scale, weight_scale=weight_scale, out_scale=out_scale)
    settings: dict[str, Any] = {"eps": eps, "activation": activation}
    settings |= moments_setting(check, moments)
    lane.issue(LAYER_NORM_LINEAR, x, gain, shift, weight, bias, out, **settings, **scales)
