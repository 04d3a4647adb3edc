"""End of a flow-matching step: final conditioned norm, projection to a velocity, Euler update.

The norm is left out where another op has made the rows that the projection takes.

The update may be guided towards known rows (real-time chunking; docs/numerics.md). The sample on
its way is ``x = time * noise + (1 - time) * action``, so the step also says which action it
expects, ``x - time * velocity``. Guidance blends that with the previous action and lets the sample
move its share of the way there. With a weight of 1 a number ends exactly at the previous one, with
0 it is what it is without guidance, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .check import F32, ArgCheck
from .launch import Launcher, blocks, require_bf16, row_threads
from .low_bit import no_kernel
from .maths import ada_rms_normalise
from .op import Lane, Op


def action_out_euler_ref(
    hidden: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    out: Tensor,
    *,
    dt: float,
    eps: float,
    previous: Tensor | None = None,
    guidance: Tensor | None = None,
    time: float | None = None,
) -> None:
    """float32 throughout."""
    normal = hidden.float()
    if scale is not None and shift is not None:
        normal = ada_rms_normalise(hidden, scale, shift, eps)
    velocity = torch.addmm(bias, normal, weight.t())
    if previous is None or guidance is None or time is None:
        torch.add(x, velocity, alpha=dt, out=out)
        return
    share = _share(dt, time)
    free = torch.add(x, velocity, alpha=dt)
    expected = torch.add(x, velocity, alpha=-time)
    wanted = guidance * previous + (1.0 - guidance) * expected
    # In this form 1 as a weight or as a share leaves no rounding behind.
    guided = share * wanted + (1.0 - share) * x
    torch.where(guidance == 0.0, free, guided, out=out)


def _share(dt: float, time: float) -> float:
    """The part of the way that is left which a step goes, a float32 value: 1 in the last step."""
    return float(np.float32(-dt / time))


def action_out_euler_launch(
    launcher: Launcher,
    hidden: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    out: Tensor,
    *,
    dt: float,
    eps: float,
    previous: Tensor | None = None,
    guidance: Tensor | None = None,
    time: float | None = None,
) -> None:
    """One block a row; a guided step has entries of its own, so that others stay as fast."""
    require_bf16("action_out_euler", hidden=hidden)
    rows, width = hidden.shape
    entry = "action_out_euler"
    guide: tuple[Any, ...] = ()
    if previous is not None and guidance is not None and time is not None:
        entry, share = "action_out_euler_guided", _share(dt, time)
        guide = (previous, guidance, previous.stride(0), guidance.stride(0), time, share)
    pitches = (hidden.stride(0), x.stride(0), out.stride(0))
    if scale is None:
        if width > _MOST_PLAIN or not weight.is_contiguous():
            raise no_kernel(
                "action_out_euler",
                expected=f"packed weights of at most {_MOST_PLAIN} columns without a norm",
                got=list(weight.shape),
            )
        plain = (hidden, weight, bias, x, out, rows, width, x.shape[1], *pitches, dt, *guide)
        grid = (blocks(x.shape[1], 4), blocks(rows, 8))
        launcher.launch(f"{entry}_plain_bf16", grid, 256, plain, shared_bytes=16 * width)
        return
    if x.shape[1] == 32 and width == 1024 and weight.is_contiguous():
        small = (hidden, scale, shift, weight, bias, x, out, *pitches, dt, eps, *guide)
        launcher.launch(f"{entry}_d32_bf16", rows, 512, small)
        return
    sizes = (width, x.shape[1], *pitches)
    args = (hidden, scale, shift, weight, bias, x, out, *sizes, dt, eps, *guide)
    threads = row_threads("action_out_euler", width)
    launcher.launch(f"{entry}_rows_bf16", rows, threads, args)


#: Width of rows without a norm, four rows of whose weights are in a block's shared memory.
_MOST_PLAIN = 3072

ACTION_OUT_EULER = Op("action_out_euler", action_out_euler_ref, action_out_euler_launch)


def action_out_euler(
    lane: Lane,
    hidden: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    out: Tensor,
    *,
    dt: float,
    eps: float = 0.0,
    previous: Tensor | None = None,
    guidance: Tensor | None = None,
    time: float | None = None,
) -> None:
    """out = x + dt * v with the velocity v = n W^T + b.

    n = hidden / sqrt(mean(hidden^2) + eps) * (1 + scale) + shift, or hidden itself.

    Args:
        lane: where the op goes.
        hidden: [H, D] float, the expert's residual stream after its last layer.
        scale: [D] float32, one row of the step table; None: no norm.
        shift: [D] float32, likewise; None where ``scale`` is.
        weight: [A, D] float32.
        bias: [A] float32.
        x: [H, A] float32, the sample before the step.
        out: [H, A] float32, the sample after it; may be ``x``.
        dt: step of the integration (negative: time runs from 1 to 0).
        eps: added to the mean square of a norm.
        previous: [H, A] float32, what guided numbers are to become; None: nothing is guided.
        guidance: [H, A] float32 in 0..1, how far each is; with ``previous``, and only then. Where
            g is not 0, ``out = s (g previous + (1 - g) (x - time v)) + (1 - s) x``, s = -dt / time.
        time: that of ``x``, in (0, 1]; likewise.

    Raises:
        ContractError: shapes, formats or devices do not fit, or a guided step lacks a part.
    """
    check = ArgCheck("action_out_euler")
    check.tensor("hidden", hidden, ("H", "D"))
    check.affine("scale", scale, "shift", shift)
    check.tensor("weight", weight, ("A", "D"), F32)
    check.tensor("bias", bias, ("A",), F32)
    check.tensor("x", x, ("H", "A"), F32)
    check.tensor("out", out, ("H", "A"), F32)
    check.apart("out", out, "hidden", hidden)
    guide = _checked_guide(check, out, previous, guidance, time)
    step = {"dt": dt, "eps": eps, **guide}
    lane.issue(ACTION_OUT_EULER, hidden, scale, shift, weight, bias, x, out, **step)


def _checked_guide(
    check: ArgCheck,
    out: Tensor,
    previous: Tensor | None,
    guidance: Tensor | None,
    time: float | None,
) -> dict[str, Any]:
    """The arguments that a guided step has more than another; none of another."""
    check.require(
        (previous is None) == (guidance is None) == (time is None),
        "arguments 'previous', 'guidance' and 'time'",
        expected="all or none",
        got=[value is not None for value in (previous, guidance, time)],
    )
    if previous is None or guidance is None or time is None:
        return {}
    for name, value in (("previous", previous), ("guidance", guidance)):
        check.tensor(name, value, ("H", "A"), F32)
        check.apart("out", out, name, value)
    check.require(0.0 < time <= 1.0, "argument 'time'", expected="within (0, 1]", got=time)
    return {"previous": previous, "guidance": guidance, "time": time}
