"""Copies rows, converting the format where it differs."""

from __future__ import annotations

from torch import Tensor

from .check import ArgCheck
from .op import Lane, Op


def copy_rows_ref(src: Tensor, out: Tensor) -> None:
    """One rounding where ``out`` is narrower."""
    out.copy_(src)


COPY_ROWS = Op("copy_rows", copy_rows_ref)


def copy_rows(lane: Lane, src: Tensor, out: Tensor) -> None:
    """out = src.

    Args:
        lane: where the op goes.
        src: [M, D] float.
        out: [M, D] float, apart from ``src``.

    Raises:
        ContractError: shapes, formats or devices do not fit, or the two overlap.
    """
    check = ArgCheck("copy_rows")
    check.tensor("src", src, ("M", "D"))
    check.tensor("out", out, ("M", "D"))
    check.apart("out", out, "src", src)
    lane.issue(COPY_ROWS, src, out)
