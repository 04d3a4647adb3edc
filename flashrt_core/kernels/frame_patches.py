"""Frames to tokens: squares of two by two cells, of one picture on a grid that several share."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, ArgCheck
from .launch import Launcher, blocks
from .low_bit import no_kernel
from .op import Lane, Op


def frame_patches_ref(frames: Tensor, out: Tensor) -> None:
    """A copy."""
    T, H, W, C = frames.shape
    cells = frames.view(T, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 2, 4, 5)
    out.copy_(cells.reshape(out.shape))


def frame_patches_launch(launcher: Launcher, frames: Tensor, out: Tensor) -> None:
    """One thread a number."""
    formats = {torch.float32: "f32", torch.bfloat16: "bf16"}
    if frames.dtype not in formats:
        raise no_kernel("frame_patches", expected="float32 or bfloat16 frames", got=frames.dtype)
    count, height, width, channels = frames.shape
    grid = (blocks(2 * width * channels, 256), height // 2, count)
    args = (frames, out, height, width, channels, *out.stride()[:3])
    launcher.launch(f"frame_patches_{formats[frames.dtype]}", grid, 256, args)


FRAME_PATCHES = Op("frame_patches", frame_patches_ref, frame_patches_launch)


def frame_patches(lane: Lane, frames: Tensor, out: Tensor) -> None:
    """out[t, i, j] = the cells (2i, 2j), (2i, 2j + 1), (2i + 1, 2j), (2i + 1, 2j + 1) of a frame.

    Args:
        lane: where the op goes.
        frames: [T, H, W, C] float, H and W even, contiguous.
        out: [T, H/2, W/2, 4 C] float32, a picture's place on the grid of tokens; apart from
            ``frames``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("frame_patches")
    check.tensor("frames", frames, ("T", "H", "W", "C"))
    T, H, W, C = (check.sizes[letter] for letter in "THWC")
    even = H % 2 == 0 and W % 2 == 0 and frames.is_contiguous()
    check.require(even, "argument 'frames'", expected="even and contiguous", got=[H, W])
    check.tensor("out", out, (T, H // 2, W // 2, 4 * C), F32)
    check.apart("out", out, "frames", frames)
    lane.issue(FRAME_PATCHES, frames, out)
