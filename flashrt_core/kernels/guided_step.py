"""An Euler step along a velocity that leans from one condition to another."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, ArgCheck
from .op import Lane, Op


def guided_step_ref(
    wanted: Tensor, other: Tensor, x: Tensor, *, guidance: float, dt: float
) -> None:
    """float32 throughout."""
    velocity = torch.add(other, wanted.float() - other, alpha=guidance)
    x.add_(velocity, alpha=dt)


GUIDED_STEP = Op("guided_step", guided_step_ref)


def guided_step(
    lane: Lane, wanted: Tensor, other: Tensor, x: Tensor, *, guidance: float, dt: float
) -> None:
    """x = x + dt (o + g (w - o)).

    Args:
        lane: where the op goes.
        wanted, other: [M, D] float, velocities under the condition and without it.
        x: [M, D] float32, the sample; changed in place.
        guidance: g.
        dt: step of the integration (negative: time runs from 1 to 0).

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("guided_step")
    check.tensor("wanted", wanted, ("M", "D"))
    check.tensor("other", other, ("M", "D"))
    check.tensor("x", x, ("M", "D"), F32)
    lane.issue(GUIDED_STEP, wanted, other, x, guidance=guidance, dt=dt)
