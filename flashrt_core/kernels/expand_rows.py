"""Packed 8-bit weights as bf16: for products of shapes for which no kernel reads them as they are.

No op by itself: the launchers of products put it in front, so that any policy of any size runs
under any plan. It reads and writes three bytes a weight, which the kernels of the large sizes save.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import Launcher, blocks
from .low_bit import no_kernel
from .quantised import E4M3

_ENTRIES = {torch.int8: "expand_rows_i8", E4M3: "expand_rows_e4m3"}


def expand_rows_launch(launcher: Launcher, op: str, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """The numbers that a weight stands for, each rounded to bf16.

    Args:
        launcher: of the device.
        op: named in errors.
        weight: [N, K] int8 or float8_e4m3fn, without gaps; K a multiple of 8.
        weight_scale: [N] float32.

    Returns:
        [N, K] bf16, in the launcher's workspace for weights.

    Raises:
        ContractError: a weight of another layout.
    """
    rows, depth = weight.shape
    packed = weight.is_contiguous() and depth % 8 == 0 and weight.data_ptr() % 8 == 0
    if weight.dtype not in _ENTRIES or not packed:
        raise no_kernel(
            op,
            expected="a packed 8-bit weight of a multiple of 8 columns",
            got=f"{weight.dtype} {list(weight.shape)}, strides {weight.stride()}",
        )
    out = launcher.workspace(rows, depth, weights=True)
    runs = weight.numel() // 8
    args = (weight, weight_scale, out, depth, runs)
    launcher.launch(_ENTRIES[weight.dtype], blocks(runs, 256), 256, args)
    return out
