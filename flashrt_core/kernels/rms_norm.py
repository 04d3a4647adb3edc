"""y = act(x / sqrt(mean(x^2) + eps) * (1 + w)), row by row; w is stored around 0, as Gemma does."""

from __future__ import annotations

from torch import Tensor

from .check import F32, ArgCheck
from .launch import Launcher, blocks, output_suffix, require_bf16, row_threads, stream_suffix
from .low_bit import no_kernel
from .maths import ACTIVATIONS, Activation, rms_normalise
from .op import Lane, Op
from .quantised import given, store


def rms_norm_ref(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    activation: Activation = "none",
    out_scale: Tensor | None = None,
) -> None:
    """float32 throughout, one rounding into ``out``."""
    normal = rms_normalise(x, eps).mul_(1.0 + weight)
    store(ACTIVATIONS[activation](normal), out, out_scale)


def rms_norm_launch(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    activation: Activation = "none",
    out_scale: Tensor | None = None,
) -> None:
    """One block a row; with an activation a warp a row."""
    into = output_suffix("rms_norm", out)
    if activation != "none":
        _many_rows(launcher, x, weight, out, into, eps=eps, activation=activation, scale=out_scale)
        return
    stream = stream_suffix("rms_norm", "x", x)
    kernel = f"rms_norm_{stream}" if stream == into else f"rms_norm_{stream}_{into}"
    rows, width = x.shape
    args = (x, weight, out, out_scale, width, x.stride(0), out.stride(0), eps)
    launcher.launch(kernel, rows, row_threads("rms_norm", width), args)


def _many_rows(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    into: str,
    *,
    eps: float,
    activation: Activation,
    scale: Tensor | None,
) -> None:
    require_bf16("rms_norm", x=x)
    rows, width = x.shape
    if width > _MOST_OF_A_WARP:
        raise no_kernel(
            "rms_norm", expected=f"at most {_MOST_OF_A_WARP} columns with {activation}", got=width
        )
    kind = list(ACTIVATIONS).index(activation)
    args = (x, weight, out, scale, rows, width, x.stride(0), out.stride(0), kind, eps)
    launcher.launch(f"rms_norm_rows_{into}", blocks(rows, 8), 256, args)


#: Columns that a warp holds.
_MOST_OF_A_WARP = 1024

RMS_NORM = Op("rms_norm", rms_norm_ref, rms_norm_launch, low_bit=True)


def rms_norm(
    lane: Lane,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    activation: Activation = "none",
    out_scale: Tensor | None = None,
) -> None:
    """Normalises each row.

    Args:
        lane: where the op goes.
        x: [M, D] float.
        weight: [D] float32; the gain is 1 + weight.
        out: [M, D] float; may be ``x``.
        eps: added to the mean square.
        activation: "none" or "silu", of what is normalised.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("rms_norm")
    check.tensor("x", x, ("M", "D"))
    check.tensor("weight", weight, ("D",), F32)
    check.quantised("out", out, ("M", "D"), "out_scale", out_scale, (1,))
    check.choice("activation", activation, ("none", "silu"))
    option = {} if activation == "none" else {"activation": activation}
    lane.issue(RMS_NORM, x, weight, out, eps=eps, **option, **given(out_scale=out_scale))
