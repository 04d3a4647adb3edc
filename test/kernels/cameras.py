"""Raw images of every encoding, and what the host makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_core.images import ENCODINGS, Frame, frame_of
from flashrt_core.kernels.picture import Picture
from flashrt_core.policies.pi05.camera import placed, resize_with_pad

__all__ = ["ENCODINGS", "Raw", "draw_image", "expected", "picture_of"]

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
