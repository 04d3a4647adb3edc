"""A camera's picture as the video encoder takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

Array = np.ndarray[Any, Any]


def resized(image: Array, height: int, width: int) -> Array:
    """[Y, X, 3] uint8 -> [height, width, 3] float32 in -1..1.

    Bilinear between pixel centres, without a filter, as the official code resizes.
    """
    # An array of our own: that of a host may be read-only.
    own = torch.from_numpy(np.array(image, np.float32))
    pixels = own.permute(2, 0, 1)[None] / 255.0
    if pixels.shape[2:] != (height, width):
        pixels = F.interpolate(pixels, size=(height, width), mode="bilinear", align_corners=False)
    return (pixels[0].permute(1, 2, 0) * 2.0 - 1.0).contiguous().numpy()
