"""Adds rows to rows of a residual stream."""

from __future__ import annotations

from torch import Tensor

from .check import ArgCheck
from .launch import Launcher, require_bf16
from .op import Lane, Op
from .product_rows import product_rows_launch


def add_rows_ref(src: Tensor, out: Tensor) -> None:
    """float32, one rounding into ``out``."""
    out.copy_(out.float().add_(src))


def add_rows_launch(launcher: Launcher, src: Tensor, out: Tensor) -> None:
    """As behind a product without bias and activation."""
    require_bf16("add_rows", src=src)
    product_rows_launch(launcher, src, None, out, accumulate=True)


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
