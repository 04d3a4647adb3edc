"""Conditioned RMS norm by itself: a part of the expert's ops where no fused kernel serves."""

from __future__ import annotations

from torch import Tensor

from .launch import Launcher, require_bf16, row_threads


def ada_rms_norm_launch(
    launcher: Launcher, x: Tensor, scale: Tensor, shift: Tensor, out: Tensor, eps: float
) -> None:
    """out = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift; x, out [M, D] bf16."""
    require_bf16("ada_rms_norm", x=x, out=out)
    rows, width = x.shape
    args = (x, scale, shift, out, width, x.stride(0), out.stride(0), eps)
    launcher.launch("ada_rms_norm_bf16", rows, row_threads("ada_rms_norm", width), args)
