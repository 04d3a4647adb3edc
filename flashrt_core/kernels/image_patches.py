"""An image -> [-1, 1] -> one row a patch, columns in the order of a convolution's weight.

The image is an RGB square of the network's size, or the bytes of a camera with a description of
them; then decoding, turning, resizing and padding are part of the op.
"""

from __future__ import annotations

from torch import Tensor

from .check import FLOATS, I32, U8, ArgCheck
from .launch import Launcher, require_bf16_rows
from .op import Lane, Op
from .picture import FIELDS, MAX_TAPS, Picture
from .picture_reference import square

METHODS = ("pillow", "torch")


def image_patches_ref(
    image: Tensor,
    out: Tensor,
    *,
    patch: int,
    picture: Tensor | None = None,
    size: int = 0,
    method: str = "pillow",
) -> None:
    """pixel / 127.5 - 1 in float32, one rounding into ``out``."""
    if picture is not None:
        image = square(image, Picture.of(picture.tolist()), size, method)
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    tiles = image.view(rows, patch, columns, patch, 3).permute(0, 2, 4, 1, 3)
    scaled = tiles.reshape(rows * columns, 3 * patch * patch).float()
    out.copy_(scaled.div_(127.5).sub_(1.0))


def image_patches_launch(
    launcher: Launcher,
    image: Tensor,
    out: Tensor,
    *,
    patch: int,
    picture: Tensor | None = None,
    size: int = 0,
    method: str = "pillow",
) -> None:
    """One block a patch; from a camera's bytes, a thread a pixel of it."""
    require_bf16_rows("image_patches", out=out)
    if picture is None:
        args = (image, out, image.shape[1] // patch, patch, out.stride(0))
        launcher.launch("image_patches_bf16", out.shape[0], 256, args)
        return
    columns, nearest = size // patch, method == "torch"
    raw = (image, picture, out, image.numel(), columns, patch, out.stride(0), int(nearest))
    shared = 2 * patch * (MAX_TAPS + 2) * 4  # weights, first pixel and count, of rows and columns
    launcher.launch("image_patches_raw_bf16", out.shape[0], 256, raw, shared_bytes=shared)


IMAGE_PATCHES = Op("image_patches", image_patches_ref, image_patches_launch)


def image_patches(
    lane: Lane,
    image: Tensor,
    out: Tensor,
    *,
    patch: int,
    picture: Tensor | None = None,
    size: int = 0,
    method: str = "pillow",
) -> None:
    """Cuts an image into the rows that a patch-embedding product takes.

    Args:
        lane: where the op goes.
        image: [Y, X, 3] uint8 RGB, contiguous; Y and X are multiples of ``patch``. With
            ``picture``: [bytes] uint8, what a camera sent and anything behind it.
        out: [(Y/patch)*(X/patch), 3*patch*patch] float; patches row-major (y, x), columns
            (channel, y, x) as in a Conv2d weight [out, 3, patch, patch].
        patch: side of a patch in pixels.
        picture: [16] int32, a :class:`~.picture.Picture`: how to read ``image``. One that does not
            fit into it, or shrinks more than 31 times along an axis, gives black.
        size: with ``picture``: Y and X.
        method: with ``picture``: filter of the resize, "pillow" (averages over the source area,
            in Pillow's fixed point) or "torch" (the four nearest pixels in float32); both give the
            grey levels of their namesake bit for bit.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("image_patches")
    if picture is None:
        check.tensor("image", image, ("Y", "X", 3), U8)
        height, width = check.sizes["Y"], check.sizes["X"]
    else:
        check.tensor("image", image, ("B",), U8)
        check.tensor("picture", picture, (FIELDS,), I32)
        check.require(method in METHODS, "argument 'method'", expected=METHODS, got=repr(method))
        height = width = size
    check.require(
        patch > 0 and height > 0 and height % patch == 0 and width % patch == 0,
        "argument 'image'" if picture is None else "argument 'size'",
        expected=f"sides that are multiples of the patch, {patch}",
        got=f"[{height}, {width}]",
    )
    check.require(
        image.is_contiguous(), "argument 'image'", expected="contiguous", got="a strided view"
    )
    tokens = (height // patch) * (width // patch)
    check.tensor("out", out, (tokens, 3 * patch * patch), FLOATS)
    if picture is None:
        lane.issue(IMAGE_PATCHES, image, out, patch=patch)
    else:
        lane.issue(
            IMAGE_PATCHES, image, out, patch=patch, picture=picture, size=size, method=method
        )
