"""Packed low-bit weights as bf16: for shapes for which no kernel of products reads them.

No op by itself: the launchers of products put it in front, so that any policy of any size runs
under any plan. It reads and writes three bytes a weight, which the kernels of the large sizes save.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .four_bits import in_tiles
from .launch import Launcher, blocks
from .low_bit import no_kernel
from .quantised import E4M3

_ENTRIES = {torch.int8: "expand_rows_i8", E4M3: "expand_rows_e4m3"}


def expand_rows_launch(launcher: Launcher, op: str, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """The numbers that a weight stands for, each rounded to bf16.

    Args:
        launcher: of the device.
        op: named in errors.
        weight: [N, K] int8 or float8_e4m3fn, or uint8 [N, K/2] of four bits, without gaps; K a
            multiple of 8.
        weight_scale: [N] float32, or [N, K/run].

    Returns:
        [N, K] bf16, in the launcher's workspace for weights.

    Raises:
        ContractError: a weight of another layout.
    """
    rows, depth = weight.shape
    if weight.dtype is torch.uint8 and weight.is_contiguous():
        return _expand_four_bits(launcher, weight, weight_scale)
    packed = weight.is_contiguous() and depth % 8 == 0 and weight.data_ptr() % 8 == 0
    if weight.dtype not in _ENTRIES or not packed:
        raise no_kernel(
            op,
            expected="a packed low-bit weight of a multiple of 8 columns",
            got=f"{weight.dtype} {list(weight.shape)}, strides {weight.stride()}",
        )
    out = launcher.workspace(rows, depth, weights=True)
    runs = weight.numel() // 8
    args = (weight, weight_scale, out, depth, runs)
    launcher.launch(_ENTRIES[weight.dtype], blocks(runs, 256), 256, args)
    return out


def _expand_four_bits(launcher: Launcher, weight: Tensor, weight_scale: Tensor) -> Tensor:
    rows, depth = weight.shape[0], 2 * weight.shape[1]
    out = launcher.workspace(rows, depth, weights=True)
    count, run = rows * depth // 8, depth // weight_scale.shape[1]
    args = (weight, weight_scale, out, depth, count, run, int(in_tiles(weight, weight_scale)))
    launcher.launch("expand_rows_w4", blocks(count, 256), 256, args)
    return out
