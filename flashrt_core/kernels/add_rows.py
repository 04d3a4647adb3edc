"""Adds rows to rows of a residual stream."""

from __future__ import annotations

from torch import Tensor

from .check import ArgCheck
from .launch import Launcher
from .low_bit import no_kernel
from .op import Lane, Op


def add_rows_ref(src: Tensor, out: Tensor) -> None:
    """float32, one rounding into ``out``."""
    out.copy_(out.float().add_(src))


def add_rows_launch(launcher: Launcher, src: Tensor, out: Tensor) -> None:
    """One block a row."""
    raise no_kernel("add_rows", expected="device 'cpu'", got=list(out.shape))


ADD_ROWS = Op("add_rows", add_rows_ref, add_rows_launch)


def add_rows(lane: Lane, src: Tensor, out: Tensor) -> None:
    """out = out + src.

    Args:
        lane: where the op goes.
        src: [M, D] float.
        out: [M, D] float, apart from ``src``.

    Raises:
        ContractError: shapes, formats or devices do not fit, or the two overlap.
    """
    check = ArgCheck("add_rows")
    check.tensor("src", src, ("M", "D"))
    check.tensor("out", out, ("M", "D"))
    check.apart("out", out, "src", src)
    lane.issue(ADD_ROWS, src, out)
