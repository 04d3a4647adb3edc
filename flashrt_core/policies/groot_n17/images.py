"""Images of cameras to the squares of GR00T N1.7.

Source: Isaac-GR00T's evaluation transforms (OpenCV, averages over areas) and LeRobot's on tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from ...errors import InputError, OptionError, WeightsError
from ..json_fields import COUNT, FLAG, NUMBERS, field_of, shown

Array = np.ndarray[Any, Any]
#: Sides of the picture and of its middle that the released network was trained with.
_SIZE, _CROP = 256, 230


@dataclass(frozen=True)
class Shown:
    """What of a picture a checkpoint's processor shows.

    Attributes:
        size: side of the square, pixels.
        edge: side that a picture is brought to before it is cropped, pixels.
        fraction: of its sides that are kept; 1 keeps all.
        boxed: whether black makes it a square first.
    """

    size: int
    edge: int
    fraction: float
    boxed: bool


def read_shown(values: Mapping[str, Any], where: Path) -> Shown:
    """The settings of a processor; without a size those that the network was made for.

    WeightsError on what is none.
    """
    sides = {}
    for name in ("image_target_size", "image_crop_size"):
        pair = values.get(name)
        if pair is not None and not (NUMBERS.fits(pair) and len(pair) == 2 and pair[0] == pair[1]):
            raise WeightsError(
                f"{name} in {str(where)!r}", expected="two equal whole numbers", got=shown(pair)
            )
        sides[name] = None if pair is None else int(pair[0])
    size, crop = sides["image_target_size"], sides["image_crop_size"]
    if size is None:
        size, crop = _SIZE, _CROP
    edge = field_of(values, "shortest_image_edge", COUNT, where, None, optional=True)
    fraction = values.get("crop_fraction")
    if fraction is None:
        fraction = 1.0 if crop is None else crop / size
    if not NUMBERS.fits([fraction]) or not 0.0 < fraction <= 1.0:
        raise WeightsError(
            f"crop_fraction in {str(where)!r}", expected="a number in (0, 1]", got=shown(fraction)
        )
    boxed = field_of(values, "letter_box_transform", FLAG, where, False, optional=True)
    return Shown(size, edge or size, float(fraction), boxed)


@dataclass(frozen=True)
class Framing:
    """What of a picture the network sees.

    Attributes:
        size: side of the square, pixels.
        edge: side that a picture is brought to before it is cropped, pixels.
        fraction: of its sides that are kept, from the middle; 1 keeps all.
        boxed: black is put around a picture that is no square, first.
        method: "area" or "bicubic", see ``Numerics.image_resize``.
    """

    size: int
    edge: int
    fraction: float
    boxed: bool = False
    method: str = "area"

    @property
    def identity(self) -> str:
        """All of it in words; equal for equal effect."""
        boxed = ", boxed" if self.boxed else ""
        return f"{self.method} to {self.edge}, {self.fraction:g} of it, to {self.size}{boxed}"

    @property
    def square(self) -> bool:
        """Whether a picture has to be one."""
        return self.method == "area" and not self.boxed

    def __call__(self, image: Array) -> Array:
        """[Y, X, 3] uint8 of any size -> [size, size, 3] uint8."""
        if self.boxed:
            image = _boxed(image)
        return self._areas(image) if self.method == "area" else self._bicubic(image)

    def _areas(self, image: Array) -> Array:
        """To the edge, the middle of it, to the edge again; the aspect stays, so it must be 1."""
        if image.shape[0] != image.shape[1]:
            raise InputError(
                "image",
                expected="a square, as the checkpoint's processor keeps the aspect and the network "
                "is captured for squares",
                got=list(image.shape),
                remedy="crop in front, or put image_resize=bicubic behind the profile of numerics",
            )
        image = _shorter_side(image, self.edge)
        height, width = image.shape[:2]
        if self.fraction < 1.0:
            image = _middle(image, int(height * self.fraction), int(width * self.fraction))
        image = _shorter_side(image, self.edge)
        return np.ascontiguousarray(_shorter_side(image, self.size))

    def _bicubic(self, image: Array) -> Array:
        """Straight to a square of the edge, the middle, and to the size."""
        image = _resized(image, self.edge)
        if self.fraction < 1.0:
            kept = max(1, round(self.edge * self.fraction))
            image = _middle(image, kept, kept)
        return np.ascontiguousarray(_resized(image, self.size))


def _boxed(image: Array) -> Array:
    height, width = image.shape[:2]
    side = max(height, width)
    if height == width:
        return image
    out = np.zeros((side, side, 3), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    out[top : top + height, left : left + width] = image
    return out


def _middle(image: Array, height: int, width: int) -> Array:
    height, width = max(1, height), max(1, width)
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def _shorter_side(image: Array, side: int) -> Array:
    """Brought to ``side`` with its aspect kept, by OpenCV's averages over areas."""
    height, width = image.shape[:2]
    shortest = min(height, width)
    if shortest == side:
        return image
    try:
        import cv2  # an extra of the package; pictures of the right size need none
    except ImportError as error:
        raise OptionError(
            "images of another size than the network's",
            expected="OpenCV to resize them",
            got=str(error),
            remedy="install the extra 'images', or set numerics to 'lerobot'",
        ) from error
    scale = side / float(shortest)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(cv2.resize(np.ascontiguousarray(image), size, interpolation=cv2.INTER_AREA))


def _resized(image: Array, side: int) -> Array:
    """[Y, X, 3] -> [side, side, 3] uint8, bicubic with antialiasing, in torch's whole numbers."""
    if image.shape[:2] == (side, side):
        return image
    # An axis of one put in front, not behind the turn: its stride then is a whole picture's, by
    # which torch knows the channels for the innermost, and neither unpacks nor packs them.
    pixels = torch.from_numpy(np.require(image, requirements=["C", "W"]))[None].permute(0, 3, 1, 2)
    found = F.interpolate(pixels, (side, side), mode="bicubic", antialias=True)
    return found[0].permute(1, 2, 0).numpy()
