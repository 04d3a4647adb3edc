"""Frames to tokens: squares of two by two cells, of one picture on a grid that several share."""

from __future__ import annotations

from torch import Tensor

from .check import F32, ArgCheck
from .op import Lane, Op


def frame_patches_ref(frames: Tensor, out: Tensor) -> None:
    """A copy."""
    T, H, W, C = frames.shape
    cells = frames.view(T, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 2, 4, 5)
    out.copy_(cells.reshape(out.shape))


FRAME_PATCHES = Op("frame_patches", frame_patches_ref)


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
