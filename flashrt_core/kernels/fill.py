"""Sets every number of a buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import FLOATS, I32, ArgCheck
from .launch import Launcher, blocks
from .op import Lane, Op


def fill_ref(out: Tensor, *, value: int) -> None:
    """Exact."""
    out.fill_(value)


def fill_launch(launcher: Launcher, out: Tensor, *, value: int) -> None:
    """Four numbers a thread, as words of their size; what lies together is one row."""
    size = out.element_size()
    whole = torch.int32 if size == 4 else torch.int16
    word = int(torch.tensor([value], dtype=out.dtype).view(whole))
    rows, width = (1, out.numel()) if out.is_contiguous() else out.shape
    args = (out, word, width, width if rows == 1 else out.stride(0))
    launcher.launch(f"fill_rows_b{8 * size}", (blocks(width, 1024), rows), 256, args)


FILL = Op("fill", fill_ref, fill_launch)


def fill(lane: Lane, out: Tensor, *, value: int = 0) -> None:
    """out = value.

    Args:
        lane: where the op goes.
        out: any float or int32, at most two dimensions; rows may lie apart.
        value: a whole number.

    Raises:
        ContractError: formats do not fit.
    """
    check = ArgCheck("fill")
    check.tensor("out", out, ("M", "N")[: out.dim()], (*FLOATS, *I32))
    lane.issue(FILL, out, value=value)
