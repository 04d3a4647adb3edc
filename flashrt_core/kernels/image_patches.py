"""uint8 image -> [-1, 1] -> one row a patch, columns in the order of a convolution's weight."""

from __future__ import annotations

from torch import Tensor

from .check import FLOATS, U8, ArgCheck
from .launch import Launcher, require_bf16_rows
from .op import Lane, Op


def image_patches_ref(image: Tensor, out: Tensor, *, patch: int) -> None:
    """pixel / 127.5 - 1 in float32, one rounding into ``out``."""
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    tiles = image.view(rows, patch, columns, patch, 3).permute(0, 2, 4, 1, 3)
    scaled = tiles.reshape(rows * columns, 3 * patch * patch).float()
    out.copy_(scaled.div_(127.5).sub_(1.0))


def image_patches_launch(launcher: Launcher, image: Tensor, out: Tensor, *, patch: int) -> None:
    """One block a patch."""
    require_bf16_rows("image_patches", out=out)
    args = (image, out, image.shape[1] // patch, patch, out.stride(0))
    launcher.launch("image_patches_bf16", out.shape[0], 256, args)


IMAGE_PATCHES = Op("image_patches", image_patches_ref, image_patches_launch)


def image_patches(lane: Lane, image: Tensor, out: Tensor, *, patch: int) -> None:
    """Cuts an image into the rows that a patch-embedding product takes.

    Args:
        lane: where the op goes.
        image: [Y, X, 3] uint8 RGB, contiguous; Y and X are multiples of ``patch``.
        out: [(Y/patch)*(X/patch), 3*patch*patch] float; patches row-major (y, x), columns
            (channel, y, x) as in a Conv2d weight [out, 3, patch, patch].
        patch: side of a patch in pixels.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("image_patches")
    check.tensor("image", image, ("Y", "X", 3), U8)
    height, width = check.sizes["Y"], check.sizes["X"]
    check.require(
        patch > 0 and height % patch == 0 and width % patch == 0,
        "argument 'image'",
        expected=f"sides that are multiples of the patch, {patch}",
        got=f"[{height}, {width}]",
    )
    check.require(
        image.is_contiguous(), "argument 'image'", expected="contiguous", got="a strided view"
    )
    tokens = (height // patch) * (width // patch)
    check.tensor("out", out, (tokens, 3 * patch * patch), FLOATS)
    lane.issue(IMAGE_PATCHES, image, out, patch=patch)
