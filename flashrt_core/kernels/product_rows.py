"""What follows a product of the library: bias, activation, addition, another format. No op."""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import Launcher, blocks, output_suffix, require_bf16_rows, stream_suffix
from .maths import ACTIVATIONS, Activation


def product_rows_launch(
    launcher: Launcher,
    product: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    activation: Activation = "none",
    accumulate: bool = False,
    out_scale: Tensor | None = None,
) -> None:
    """out = act(product + bias) + (accumulate ? out : 0).

    Args:
        launcher: of the device.
        product: [M, N] bf16; may be ``out``.
        bias: [N] bf16, or None.
        out: [M, N] bf16, float32, or E4M3 (which is not accumulated).
        activation: of the sum.
        accumulate: whether what ``out`` held is added.
        out_scale: [1] float32, of an E4M3 ``out``.
    """
    wide = out.dtype is torch.float32
    suffix = stream_suffix("linear", "out", out) if wide else output_suffix("linear", out)
    require_bf16_rows("linear", bias=bias)
    rows, width = out.shape
    kind = list(ACTIVATIONS).index(activation)
    kernel = "product_rows" if activation in ("none", "gelu_tanh") else "product_rows_activated"
    sizes = (width, product.stride(0), out.stride(0), kind, int(accumulate))
    grid = (blocks(width, 8 * 256), rows)
    launcher.launch(f"{kernel}_{suffix}", grid, 256, (product, bias, out, out_scale, *sizes))
