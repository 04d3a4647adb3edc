"""A count on the device plus a constant: rows in use = rows always there + rows of this prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import I32, ArgCheck
from .launch import Launcher
from .op import Lane, Op


def offset_count_ref(count: Tensor, out: Tensor, *, offset: int) -> None:
    """Exact integer addition."""
    torch.add(count, offset, out=out)


def offset_count_launch(launcher: Launcher, count: Tensor, out: Tensor, *, offset: int) -> None:
    """One thread."""
    launcher.launch("offset_count_i32", 1, 1, (count, out, offset))


OFFSET_COUNT = Op("offset_count", offset_count_ref, offset_count_launch)


def offset_count(lane: Lane, count: Tensor, out: Tensor, *, offset: int) -> None:
    """out = count + offset.

    Args:
        lane: where the op goes.
        count: [1] int32, read when the op runs.
        out: [1] int32.
        offset: the constant.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("offset_count")
    check.tensor("count", count, (1,), I32)
    check.tensor("out", out, (1,), I32)
    lane.issue(OFFSET_COUNT, count, out, offset=offset)
