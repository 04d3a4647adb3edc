"""Sets every number of a buffer."""

from __future__ import annotations

from torch import Tensor

from .check import FLOATS, I32, ArgCheck
from .op import Lane, Op


def fill_ref(out: Tensor, *, value: int) -> None:
    """Exact."""
    out.fill_(value)


FILL = Op("fill", fill_ref)


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
