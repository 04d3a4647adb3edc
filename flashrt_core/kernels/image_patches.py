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
    merge: int = 1,
) -> None:
    """pixel / 127.5 - 1 in float32, one rounding into ``out``."""
    if picture is not None:
        image = square(image, Picture.of(picture.tolist()), size, method)
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    # [group row, row in group, y, group column, column in group, x, channel]
    tiles = image.view(rows // merge, merge, patch, columns // merge, merge, patch, 3)
    tiles = tiles.permute(0, 3, 1, 4, 6, 2, 5)
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
    merge: int = 1,
) -> None:
    """One block a patch; from a camera's bytes, a thread a pixel of it."""
    require_bf16_rows("image_patches", out=out)
    merged, groups = ("", ()) if merge == 1 else ("_merged", (merge,))
    if picture is None:
        args = (image, out, image.shape[1] // patch, patch, out.stride(0), *groups)
        launcher.launch(f"image_patches{merged}_bf16", out.shape[0], 256, args)
        return
    columns, nearest = size // patch, method == "torch"
    sizes = (image.numel(), columns, patch, out.stride(0), int(nearest))
    raw = (image, picture, out, *sizes, *groups)
    shared = 2 * patch * (MAX_TAPS + 2) * 4  # weights, first pixel and count, of rows and columns
    launcher.launch(f"image_patches_raw{merged}_bf16", out.shape[0], 256, raw, shared_bytes=shared)


IMAGE_PATCHES = Op("image_patches", image_patches_ref, image_patches_launch)


def _checked_sides(
    check: ArgCheck, image: Tensor, picture: Tensor | None, size: int, method: str
) -> tuple[int, int]:
    """Height and width of the picture that is cut; checks where it comes from."""
    if picture is None:
        check.tensor("image", image, ("Y", "X", 3), U8)
        return check.sizes["Y"], check.sizes["X"]
    check.tensor("image", image, ("B",), U8)
    check.tensor("picture", picture, (FIELDS,), I32)
    check.require(method in METHODS, "argument 'method'", expected=METHODS, got=repr(method))
    return size, size


def image_patches(
    lane: Lane,
    image: Tensor,
    out: Tensor,
    *,
    patch: int,
    picture: Tensor | None = None,
    size: int = 0,
    method: str = "pillow",
    merge: int = 1,
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
        merge: side of a group of patches; groups are row-major, and so are the patches of one,
            which follow each other.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("image_patches")
    height, width = _checked_sides(check, image, picture, size, method)
    check.require(merge > 0, "argument 'merge'", expected="at least 1", got=merge)
    side = patch * merge
    check.require(
        side > 0 and height > 0 and height % side == 0 and width % side == 0,
        "argument 'image'" if picture is None else "argument 'size'",
        expected=f"sides that are multiples of the patch, {patch}"
        + (f", times merge, {merge}" if merge > 1 else ""),
        got=f"[{height}, {width}]",
    )
    check.require(
        image.is_contiguous(), "argument 'image'", expected="contiguous", got="a strided view"
    )
    tokens = (height // patch) * (width // patch)
    check.tensor("out", out, (tokens, 3 * patch * patch), FLOATS)
    groups = {"merge": merge} if merge > 1 else {}
    if picture is None:
        lane.issue(IMAGE_PATCHES, image, out, patch=patch, **groups)
    else:
        camera = {"picture": picture, "size": size, "method": method}
        lane.issue(IMAGE_PATCHES, image, out, patch=patch, **camera, **groups)
