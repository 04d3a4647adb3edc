"""Copies rows, converting the format where it differs."""

from __future__ import annotations

from torch import Tensor

from ..errors import ContractError
from .check import ArgCheck
from .launch import Launcher, row_threads, stream_suffix
from .low_bit import no_kernel
from .op import Lane, Op
from .quantised import given, store


def copy_rows_ref(src: Tensor, out: Tensor, *, out_scale: Tensor | None = None) -> None:
    """One rounding where ``out`` is narrower."""
    store(src, out, out_scale)


def copy_rows_launch(
    launcher: Launcher, src: Tensor, out: Tensor, *, out_scale: Tensor | None = None
) -> None:
    """One block a row."""
    if out_scale is not None:
        raise no_kernel("copy_rows", expected="a wide 'out'", got=out.dtype)
    formats = stream_suffix("copy_rows", "src", src), stream_suffix("copy_rows", "out", out)
    kernels = {
        ("bf16", "bf16"): "copy_rows_bf16",
        ("bf16", "f32"): "copy_rows_bf16_f32",
        ("f32", "f32"): "copy_rows_f32_f32",
    }
    if formats not in kernels:
        raise ContractError(
            "copy_rows on device 'cuda'", expected="no narrowing", got=" to ".join(formats)
        )
    rows, width = out.shape
    args = (src, out, width, src.stride(0), out.stride(0))
    launcher.launch(kernels[formats], rows, min(256, row_threads("copy_rows", width)), args)


COPY_ROWS = Op("copy_rows", copy_rows_ref, copy_rows_launch, low_bit=True)


def copy_rows(lane: Lane, src: Tensor, out: Tensor, *, out_scale: Tensor | None = None) -> None:
    """out = src.

    Args:
        lane: where the op goes.
        src: [M, D] float.
        out: [M, D] float, apart from ``src``.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit, or the two overlap.
    """
    check = ArgCheck("copy_rows")
    check.tensor("src", src, ("M", "D"))
    check.quantised("out", out, ("M", "D"), "out_scale", out_scale, (1,))
    check.apart("out", out, "src", src)
    lane.issue(COPY_ROWS, src, out, **given(out_scale=out_scale))
