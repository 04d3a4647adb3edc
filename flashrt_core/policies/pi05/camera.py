"""Images of cameras to the windows of π0.5: squares that the host makes, or bytes for the device.

Both ways give the same grey levels. Source: the resize of openpi's client, and LeRobot's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from ...errors import InputError
from ...images import Frame, packed
from ...kernels.picture import MAX_TAPS, Kind, Picture
from ...kernels.picture_reference import resize_like_torch, square
from ..windows import image_input, picture_input
from .config import Pi05Config

Array = np.ndarray[Any, Any]


def encode_view(config: Pi05Config, view: str, image: Array | Frame) -> dict[str, Array]:
    """Input name -> window value of one camera; it may be the image itself.

    The host makes the square of what the device would not make the same grey levels of, and of what
    is larger than the window, which has room for the square.
    """
    size, method = config.image_size, config.numerics.image_resize
    if not config.camera_bytes:
        rgb = image.rgb() if isinstance(image, Frame) else image
        return {image_input(view): resize_with_pad(rgb, size, method)}
    if not isinstance(image, Frame):
        image = Frame.of_rgb(image)
    description = _described(image.picture(), size, method, config.camera_bytes)
    if description is None:
        image = Frame.of_rgb(resize_with_pad(image.rgb(), size, method))
        description = _values(placed(image.picture(), size))
    return {image_input(view): image.raw(), picture_input(view): description}


@lru_cache(maxsize=64)
def _described(picture: Picture, size: int, method: str, room: int) -> Array | None:
    """The description that the device reads, read-only; None where the host makes the square."""
    picture = placed(picture, size)
    fits = picture.nbytes <= room and _device_is_exact(picture, method)
    return _values(picture) if fits else None


def _values(picture: Picture) -> Array:
    values = np.array(picture.values(), np.int32)
    values.setflags(write=False)  # it is handed out again
    return values


def decode_view(config: Pi05Config, view: str, values: Mapping[str, Array]) -> Array:
    """The square [R, R, 3] uint8 RGB that the windows of a camera stand for."""
    image = values[image_input(view)]
    if not config.camera_bytes:
        return image
    picture = Picture.of(values[picture_input(view)].tolist())
    raw = torch.from_numpy(image.copy())
    return square(raw, picture, config.image_size, config.numerics.image_resize).numpy()


def check_view(config: Pi05Config, view: str, values: Mapping[str, Array]) -> None:
    """InputError unless bytes of a camera come with a description that stays inside them.

    What lies behind them in the window is of an earlier picture.
    """
    names = image_input(view), picture_input(view)
    given = [name for name in names if name in values]
    if not config.camera_bytes or not given:
        return
    if len(given) < len(names):
        raise InputError(
            f"input {given[0]!r}", expected=f"{names[0]!r} and {names[1]!r} together", got="one"
        )
    data, fields = values[names[0]], values[names[1]].tolist()
    picture = Picture.of(fields)
    black = picture.taps == 0 and min(picture.inner_height, picture.inner_width) == 0
    if not black and not picture.fits(data.size, config.image_size):
        raise InputError(
            f"input {names[1]!r}",
            expected=f"a picture inside the {data.size} bytes of {names[0]!r}, on a square of "
            f"{config.image_size}",
            got=f"{picture.nbytes} bytes, {fields}",
        )


def placed(picture: Picture, size: int) -> Picture:
    """A picture in the middle of the square, as large as it fits with its aspect."""
    height, width = picture.sides
    ratio = max(height, width) / size
    inner = (max(1, int(height / ratio)), max(1, int(width / ratio)))
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    return replace(picture, inner_height=inner[0], inner_width=inner[1], top=top, left=left)


def resize_with_pad(image: Array, size: int, method: str = "pillow") -> Array:
    """[Y, X, 3] uint8 -> [size, size, 3] uint8: bilinear, aspect kept, centred on black.

    Args:
        image: any size; one of the right size passes unchanged.
        size: side of the square.
        method: "pillow": its bilinear averages over the source area when it shrinks. "torch": the
            four nearest pixels at any ratio, computed in float32 and rounded to a grey level.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return packed(image)
    place = placed(Picture(height=height, width=width), size)
    small = _FILTERS[method](image, (place.inner_height, place.inner_width))
    out = np.zeros((size, size, 3), np.uint8)
    rows = slice(place.top, place.top + place.inner_height)
    out[rows, place.left : place.left + place.inner_width] = small
    return out


def _device_is_exact(picture: Picture, method: str) -> bool:
    """Whether a device makes the host's grey levels of it.

    Not of what shrinks more than its table has room for; not of a Bayer picture without an inside,
    which OpenCV leaves black; and not of tall pictures where the order of Pillow's two passes
    depends on its version (from 13 on, the columns may be first).
    """
    height, width = picture.sides
    bare = picture.kind == Kind.BAYER and min(height, width) < 4
    tall = method == "pillow" and height * 10 > width * 19
    return picture.taps <= MAX_TAPS and not bare and not tall


def _pillow(image: Array, inner: tuple[int, int]) -> Array:
    size = (inner[1], inner[0])
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))


def _torch(image: Array, inner: tuple[int, int]) -> Array:
    # Copied only where it cannot be written, as a view of a received message: torch would warn.
    pixels = torch.from_numpy(np.require(packed(image), requirements=["W"]))
    return resize_like_torch(pixels, inner).numpy()


_FILTERS = {"pillow": _pillow, "torch": _torch}
