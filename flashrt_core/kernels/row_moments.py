"""Moments of the rows of a residual stream: left by the product that writes it for norms behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .check import F32, ArgCheck


@dataclass
class RowMoments:
    """Mean, and sum of squares of differences from it, of each of so many slabs of a row's columns.

    A ``linear`` that ends in a stream is given these, and so are the ops behind it that have a norm
    of the stream in front: where its kernel knows the moments of what it wrote, and theirs take
    them, nobody adds them up again. Elsewhere, and on the CPU device, nothing is left and every op
    reads the stream alone; results differ by rounding. Ops are launched in the order in which they
    run, so what a launcher finds here is what the kernel will.

    Attributes:
        values: [M, 2 MOST] float32, of every row room for so many pairs; of all rows of the stream.
        slabs: how many were left, of as many columns each; 0: none.
    """

    values: Tensor
    slabs: int = 0

    #: Slabs of a row that kernels merge at the most; a multiple of eight of them.
    MOST: ClassVar[int] = 32

    def leave(self, slabs: int) -> Tensor | None:
        """Where a kernel leaves so many; None where those behind cannot take them."""
        self.slabs = slabs if slabs % 8 == 0 and slabs <= self.MOST else 0
        return self.values if self.slabs else None

    def found(self) -> tuple[Tensor | None, int]:
        """What was left, and of how many slabs; None where nothing was."""
        return (self.values, self.slabs) if self.slabs else (None, 0)


def moments_setting(check: ArgCheck, moments: RowMoments | None) -> dict[str, RowMoments]:
    """Moments of rows M as an op's setting, checked; empty for None."""
    if moments is None:
        return {}
    check.tensor("moments", moments.values, ("M", 2 * RowMoments.MOST), F32)
    return {"moments": moments}


def left_moments(moments: RowMoments | None) -> tuple[Tensor | None, int]:
    """As :meth:`RowMoments.found`; nothing of None."""
    return (None, 0) if moments is None else moments.found()
