"""Copies rows, converting the format where it differs."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

from .check import ArgCheck
from .launch import Launcher, blocks, output_suffix, row_threads, stream_suffix
from .op import Lane, Op
from .quantised import given, store


def copy_rows_ref(src: Tensor, out: Tensor, *, out_scale: Tensor | None = None) -> None:
    """One rounding where ``out`` is narrower."""
    store(src, out, out_scale)


def copy_rows_launch(
    launcher: Launcher, src: Tensor, out: Tensor, *, out_scale: Tensor | None = None
) -> None:
    """One block a row; rows without gaps that are no whole vectors are taken together, and a row of
    many numbers is copied by many blocks.
    """
    if src.shape[1] % 8 and src.numel() % 8 == 0 and src.is_contiguous() and out.is_contiguous():
        src, out = (_joined(each) for each in (src, out))
    source = stream_suffix("copy_rows", "src", src)
    if out.dtype is torch.float32:
        into = stream_suffix("copy_rows", "out", out)
    else:
        into = output_suffix("copy_rows", out)
    rows, width = out.shape
    sizes = (width, src.stride(0), out.stride(0))
    if into == "bf16" and width > _MOST_OF_A_BLOCK:
        kernel = "copy_runs_bf16" if source == "bf16" else "copy_runs_f32_bf16"
        launcher.launch(kernel, (blocks(width, 2048), rows), 256, (src, out, *sizes))
        return
    threads = min(256, row_threads("copy_rows", width))
    if (source, into) in _PLAIN:
        launcher.launch(_PLAIN[source, into], rows, threads, (src, out, *sizes))
    else:
        args = (src, out, out_scale, *sizes)
        launcher.launch(f"copy_rows_{source}_{into}", rows, threads, args)


def _joined(packed: Tensor) -> Tensor:
    """The same numbers in rows of a power of two of them, at most 4096."""
    return packed.view(-1, gcd(packed.numel(), 4096))


#: Columns that a block copies.
_MOST_OF_A_BLOCK = 8192
#: Kernels that change no number.
_PLAIN = {
    ("bf16", "bf16"): "copy_rows_bf16",
    ("bf16", "f32"): "copy_rows_bf16_f32",
    ("f32", "f32"): "copy_rows_f32_f32",
}


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
