"""y = (x - mean) / sqrt(var + eps) * w + b, row by row; or without w and b."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import ArgCheck
from .launch import Launcher, output_suffix, row_threads, stream_suffix
from .maths import layer_normalise
from .op import Lane, Op
from .quantised import given, store


def layer_norm_ref(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    out_scale: Tensor | None = None,
) -> None:
    """float32 throughout, one rounding into ``out``."""
    store(layer_normalise(x, weight, bias, eps), out, out_scale)


def layer_norm_launch(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    out_scale: Tensor | None = None,
) -> None:
    """One block a row."""
    if out.dtype is torch.float32:
        into = stream_suffix("layer_norm", "out", out)
    else:
        into = output_suffix("layer_norm", out)
    stream = stream_suffix("layer_norm", "x", x)
    plain = "_plain" if weight is None else ""
    formats = "bf16" if stream == into == "bf16" else f"{stream}_{into}"
    rows, width = x.shape
    args = (x, weight, bias, out, out_scale, width, x.stride(0), out.stride(0), eps)
    launcher.launch(f"layer_norm{plain}_{formats}", rows, row_threads("layer_norm", width), args)


LAYER_NORM = Op("layer_norm", layer_norm_ref, layer_norm_launch, low_bit=True)


def layer_norm(
    lane: Lane,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    out_scale: Tensor | None = None,
) -> None:
    """Normalises each row.

    Args:
        lane: where the op goes.
        x: [M, D] float.
        weight: [D] float32 gain; None: no gain.
        bias: [D] float32 offset; None where ``weight`` is.
        out: [M, D] float; may be ``x``.
        eps: added to the (biased) variance.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("layer_norm")
    check.tensor("x", x, ("M", "D"))
    check.affine("weight", weight, "bias", bias)
    check.quantised("out", out, ("M", "D"), "out_scale", out_scale, (1,))
    lane.issue(LAYER_NORM, x, weight, bias, out, eps=eps, **given(out_scale=out_scale))
