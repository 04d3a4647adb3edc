"""An Euler step along a velocity that leans from one condition to another."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, ArgCheck
from .launch import Launcher, blocks
from .low_bit import no_kernel
from .op import Lane, Op


def guided_step_ref(
    wanted: Tensor, other: Tensor, x: Tensor, *, guidance: float, dt: float
) -> None:
    """float32 throughout."""
    velocity = torch.add(other, wanted.float() - other, alpha=guidance)
    x.add_(velocity, alpha=dt)


def guided_step_launch(
    launcher: Launcher, wanted: Tensor, other: Tensor, x: Tensor, *, guidance: float, dt: float
) -> None:
    """One thread a number."""
    formats = {torch.float32: "f32", torch.bfloat16: "bf16"}
    if wanted.dtype is not other.dtype or wanted.dtype not in formats:
        got = f"{wanted.dtype} and {other.dtype}"
        raise no_kernel("guided_step", expected="float32 or bfloat16 velocities", got=got)
    rows, width = x.shape
    strides = (wanted.stride(0), other.stride(0), x.stride(0))
    args = (wanted, other, x, width, *strides, guidance, dt)
    kernel = f"guided_step_{formats[wanted.dtype]}"
    launcher.launch(kernel, (blocks(width, 256), rows), 256, args)


GUIDED_STEP = Op("guided_step", guided_step_ref, guided_step_launch)


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
