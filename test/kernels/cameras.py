"""Raw images of every encoding, and what the host makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flashrt_core.images import ENCODINGS, Frame, frame_of
from flashrt_core.kernels.picture import Kind, Picture
from flashrt_core.policies.pi05.camera import placed, resize_with_pad

__all__ = ["ENCODINGS", "FITS", "MISFITS", "Raw", "draw_image", "expected", "picture_of"]

_BYTES = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono16": 2}
_TWO_BYTES = ("yuv422", "uyvy", "yuv422_yuy2", "yuyv")


@dataclass
class Raw:
    """The fields of sensor_msgs/Image."""

    height: int
    width: int
    encoding: str
    step: int
    data: np.ndarray
    is_bigendian: int = 0


def draw_image(
    height: int, width: int, encoding: str, *, padding: int = 0, seed: int = 0, big: bool = False
) -> Raw:
    """Random bytes in all rows, those of the padding too."""
    step = width * (2 if encoding in _TWO_BYTES else _BYTES.get(encoding, 1)) + padding
    rows = height * 3 // 2 if encoding in ("nv12", "nv21") else height
    data = np.random.default_rng(seed).integers(0, 256, step * rows, dtype=np.uint8)
    return Raw(height, width, encoding, step, data, int(big))


def picture_of(frame: Frame, size: int) -> Picture:
    """What a device is told of it."""
    return placed(frame.picture(), size)


def expected(raw: Raw, size: int, method: str, rotation_deg: int = 0) -> np.ndarray:
    """[size, size, 3] uint8 by OpenCV, numpy and Pillow or torch."""
    return resize_with_pad(frame_of(raw, "", rotation_deg).rgb(), size, method)


#: 48 bytes that fill a square of 56, and descriptions of them that reach beyond something.
FITS = Picture(
    height=4, width=4, step=12, pixel=3, second=1, third=2, inner_height=56, inner_width=56
)
MISFITS = (
    Picture(),
    *(
        replace(FITS, **change)
        for change in (
            {"inner_height": 0},
            {"inner_width": 0},
            {"inner_width": -56},
            {"height": 5},
            {"height": -4},
            {"width": 0},
            {"width": 5},
            {"width": 2**31 - 1},
            {"step": -12},
            {"step": 11},
            {"pixel": 0},
            {"pixel": 4},
            {"first": -1},
            {"second": 3},
            {"third": 2**31 - 1},
            {"turns": 4},
            {"turns": -1},
            {"top": 1},
            {"left": -1},
            {"kind": 5},
            {"kind": -1},
            {"kind": Kind.WIDE},
            {"kind": Kind.YUV420},
            {"kind": Kind.BAYER},
        )
    ),
)
