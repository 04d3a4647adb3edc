"""How the bytes of a camera become a picture on the network's square.

A :class:`Picture` is pure data. As 16 int32 it lies in device memory, where ``image_patches`` reads
it: so cameras may change size, encoding or row padding without a new capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum
from math import ceil

#: Length of the array.
FIELDS = 16
#: Most source pixels that one result may average along an axis; a kernel's table has room for them.
MAX_TAPS = 64


class Kind(IntEnum):
    """What ``first``, ``second`` and ``third`` of a picture mean.

    Attributes:
        PACKED: bytes of red, green and blue in a pixel.
        WIDE: bytes of the upper and the lower half of a 16-bit grey.
        YUV422: bytes of the first Y, of U and of V in four that two pixels share.
        YUV420: (of no use), bytes of U and V in a pair; pairs follow the rows of Y, one for 2 x 2.
        BAYER: (of no use), row and column of red in 2 x 2.
    """

    PACKED = 0
    WIDE = 1
    YUV422 = 2
    YUV420 = 3
    BAYER = 4


@dataclass(frozen=True)
class Picture:
    """One picture; the order of the fields is that of the array.

    Attributes:
        kind: how to read a pixel.
        height, width: as stored, in pixels.
        step: bytes from one row to the next.
        pixel: bytes from one pixel to the next (PACKED, WIDE).
        first, second, third: see :class:`Kind`.
        turns: quarter turns clockwise, before anything else.
        inner_height, inner_width: size on the square, in its pixels; 0 for black.
        top, left: where it begins there.
    """

    kind: int = 0
    height: int = 0
    width: int = 0
    step: int = 0
    pixel: int = 0
    first: int = 0
    second: int = 0
    third: int = 0
    turns: int = 0
    inner_height: int = 0
    inner_width: int = 0
    top: int = 0
    left: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> Picture:
        """The picture of an array."""
        return cls(*values[: len(cls.__dataclass_fields__)])

    def values(self) -> list[int]:
        """What goes into the array."""
        fields = astuple(self)
        return [*fields, *[0] * (FIELDS - len(fields))]

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width after the turns."""
        return (self.width, self.height) if self.turns % 2 else (self.height, self.width)

    @property
    def nbytes(self) -> int:
        """Bytes from the first to behind the last row."""
        rows = self.height * 3 // 2 if self.kind == Kind.YUV420 else self.height
        return self.step * rows

    def fits(self, nbytes: int, size: int) -> bool:
        """Whether every pixel lies inside ``nbytes`` bytes, the result on the square of ``size``,
        and the kernel's table is long enough.
        """
        kind, pixel = self.kind, self.pixel
        # Bytes that a row's pixels take, and how far the three fields may reach.
        layouts: dict[int, tuple[int, tuple[int, int, int]]] = {
            Kind.PACKED: (self.width * pixel, (pixel, pixel, pixel)),
            Kind.WIDE: (self.width * pixel, (pixel, pixel, 1)),
            Kind.YUV422: ((self.width + 1) // 2 * 4, (2, 4, 4)),
            Kind.YUV420: ((self.width + 1) // 2 * 2, (1, 2, 2)),
            Kind.BAYER: (self.width, (1, 2, 2)),
        }
        width, reach = layouts.get(kind, (0, (0, 0, 0)))
        fields = (self.first, self.second, self.third)
        return (
            0 < self.taps <= MAX_TAPS
            and all(0 <= field < end for field, end in zip(fields, reach, strict=True))
            and 0 <= self.turns < 4
            and 0 <= self.top <= size - self.inner_height
            and 0 <= self.left <= size - self.inner_width
            and width <= self.step
            and self.nbytes <= nbytes
        )

    @property
    def taps(self) -> int:
        """Source pixels that the widest average takes along an axis."""
        inner = (self.inner_height, self.inner_width)
        if min(*inner, *self.sides) < 1:
            return 0
        return max(2 * ceil(side / to) + 1 for side, to in zip(self.sides, inner, strict=True))


def tap_weights(side: int, to: int) -> list[tuple[int, list[int]]]:
    """Pillow's bilinear average: for each of ``to`` results the first of ``side`` source pixels and
    the weights from there on, in units of 2^-22.

    Source: Pillow's Resample.c; the operations on doubles are in its order.
    """
    scale = side / to
    stretch = max(scale, 1.0)
    found = []
    for index in range(to):
        center = (index + 0.5) * scale
        first = max(int(center - stretch + 0.5), 0)
        end = min(int(center + stretch + 0.5), side)
        raw = [
            max(1.0 - abs((at + first - center + 0.5) * (1.0 / stretch)), 0.0)
            for at in range(end - first)
        ]
        total = 0.0
        for weight in raw:
            total += weight
        found.append((first, [int(0.5 + weight / total * (1 << 22)) for weight in raw]))
    return found
