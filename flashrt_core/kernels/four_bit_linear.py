"""Kernels for products of few rows with weights of four bits; no op.

What the launchers of ``linear``, ``layer_norm_linear`` and ``linear_gated_residual`` share on the
CUDA device. Source: csrc/ops/four_bit_linear.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .four_bits import in_tiles
from .launch import Launcher, blocks, require_bf16
from .maths import ACTIVATIONS, Activation
from .skinny import SkinnyPlan, Squares, busiest


def _plan(
    op: str,
    depth: int,
    rows: int,
    tokens: int,
    shared: int,
    cluster: int,
    *,
    mapped: bool = False,
    run: int = 0,
    alone: bool = False,
) -> SkinnyPlan:
    """A kernel of ``op``; the others as of :class:`SkinnyPlan`."""
    kernel = f"{op}_k{depth}_{rows}_{tokens}_w4_sm90"
    rest: dict[str, Any] = {"mapped": mapped, "run": run, "alone": alone}
    return SkinnyPlan(kernel, depth, tokens, rows, shared, cluster=cluster, **rest)


FOUR_BIT_LINEAR = (
    _plan("linear", 3072, 128, 16, 85296, 4, alone=True),
    _plan("linear", 14336, 128, 16, 113984, 8),
    _plan("linear", 3072, 128, 40, 109728, 4, mapped=True),
    _plan("linear", 3072, 64, 40, 98000, 4, mapped=True),
    _plan("linear", 14336, 192, 40, 221984, 8, mapped=True),
    _plan("linear", 3072, 128, 80, 112224, 8),
)
FOUR_BIT_NORM = (
    _plan("layer_norm_linear", 3072, 128, 16, 102032, 4, run=32, alone=True),
    _plan("layer_norm_linear", 3072, 192, 16, 108656, 4, run=48),
    _plan("layer_norm_linear", 3072, 256, 16, 115296, 4),
    _plan("layer_norm_linear", 3072, 128, 32, 110944, 4, mapped=True),
    _plan("layer_norm_linear", 3072, 64, 32, 100240, 4, mapped=True),
)
#: Blocks that a multiprocessor has room for.
_AT_ONCE = 2
#: Rows beyond which a weight would be read so often that expanding it once is faster.
_MOST_ROWS = 160


@dataclass(frozen=True)
class Ends:
    """What happens to a product: gate act(x W^T + b) + residual.

    Attributes:
        bias: [N] bf16.
        activation: as of ``linear``.
        gate: [N] float32.
        residual: [M, N] bf16.
        squares: of what is behind a norm and has none of the others, where its sums of squares are
            wanted.
    """

    bias: Tensor | None
    activation: Activation = "none"
    gate: Tensor | None = None
    residual: Tensor | None = None
    squares: Squares | None = None


def four_bit_plan(
    plans: Sequence[SkinnyPlan], launcher: Launcher, tokens: int, rows: int, depth: int
) -> SkinnyPlan | None:
    """Of the plans for the fewest tokens, the busiest. None where none takes this."""
    fitting = [plan for plan in plans if plan.fits(launcher, tokens, rows, depth)]
    least = min((plan.tokens for plan in fitting), default=0)
    fitting = [plan for plan in fitting if plan.tokens == least]
    return busiest(fitting, launcher, tokens, rows, depth, room=_AT_ONCE)


def four_bit_linear(
    launcher: Launcher,
    op: str,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    out: Tensor,
    ends: Ends,
    norm: tuple[Tensor | None, Tensor | None, float] | None = None,
) -> bool:
    """Launches the product where a kernel takes it, many rows in runs. Whether one does.

    Behind a norm there is one run: of more rows blocks would condition x longer than multiply it.

    Args:
        launcher: of the device.
        op: named in errors.
        x: [M, K] bf16.
        weight: uint8 [N, K/2], packed.
        weight_scale: [N, K/run] float32.
        out: [M, N] bf16; may be the residual.
        ends: what follows.
        norm: gain, shift and eps of a layer norm in front, whose product has no gate and no
            residual.

    Raises:
        ContractError: operands that are no aligned rows of bf16.
    """
    plans = FOUR_BIT_LINEAR if norm is None else FOUR_BIT_NORM
    (tokens, depth), rows, residual = x.shape, weight.shape[0], ends.residual
    whole = x.dtype is out.dtype is torch.bfloat16 and weight.is_contiguous()
    if not whole or not in_tiles(weight, weight_scale) or ends.activation == "gelu":
        return False
    if residual is not None and residual.shape != out.shape:
        return False
    most = max((plan.tokens for plan in plans if plan.depth == depth), default=1)
    count = blocks(tokens, most)
    plan = four_bit_plan(plans, launcher, blocks(tokens, count), rows, depth)
    if plan is None or (tokens > _MOST_ROWS if norm is None else count > 1):
        return False
    if ends.squares is not None and not ends.squares.fits(plan):
        return False
    require_bf16(op, x=x, bias=ends.bias, out=out, residual=residual)
    each = blocks(tokens, count)
    for start in range(0, tokens, each):
        run = slice(start, min(start + each, tokens))
        if norm is not None:
            plan, args = _behind_norm(launcher, plan, x, weight, weight_scale, out, ends, *norm)
        else:
            args = _arguments(plan, x[run], weight, weight_scale, out[run], ends, run)
        plan.launch(launcher, rows, args)
    return True


def _arguments(
    plan: SkinnyPlan,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    out: Tensor,
    ends: Ends,
    run: slice,
) -> tuple[Any, ...]:
    """As the source declares them."""
    tokens, counts = plan.x(x), (x.shape[0], *plan.x_strides(x))
    kind = list(ACTIVATIONS).index(ends.activation)
    residual = None if ends.residual is None else ends.residual[run]
    strides = (out.stride(0), 0 if residual is None else residual.stride(0))
    found = (tokens, weight, weight_scale, ends.bias, ends.gate, residual, out)
    return (*found, *counts, *strides, kind)


def _behind_norm(
    launcher: Launcher,
    plan: SkinnyPlan,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    out: Tensor,
    ends: Ends,
    gain: Tensor | None,
    shift: Tensor | None,
    eps: float,
) -> tuple[SkinnyPlan, tuple[Any, ...]]:
    """The kernel with a norm in front, or its form that leaves sums of squares; its arguments."""
    found = (plan.x(x), weight, weight_scale, gain, shift, ends.bias, out)
    counts = (x.shape[0], *plan.x_strides(x), out.stride(0))
    if ends.squares is None:
        return plan, (*found, *counts, list(ACTIVATIONS).index(ends.activation), eps)
    values = ends.squares.place(launcher, plan, x.shape[0])
    return plan.with_squares(), (*found, values, *counts, values.shape[1], eps)
