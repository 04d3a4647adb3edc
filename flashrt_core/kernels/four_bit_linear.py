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
from .launch import Launcher, TensorMap, blocks, require_bf16
from .maths import ACTIVATIONS, Activation
from .skinny import SkinnyPlan


def _plan(op: str, depth: int, rows: int, tokens: int, shared: int, cluster: int) -> SkinnyPlan:
    kernel = f"{op}_k{depth}_{rows}_{tokens}_w4_sm90"
    return SkinnyPlan(kernel, depth, tokens, rows, shared, cluster=cluster)


def _other(
    op: str, depth: int, rows: int, shared: int, cluster: int, kind: str, tokens: int = 16
) -> SkinnyPlan:
    kernel, straight = f"{op}_k{depth}_{rows}_{tokens}_{kind}_w4_sm90", "straight" in kind
    asks = "bytes" if straight else ""
    size = (depth, tokens, rows, shared)
    return SkinnyPlan(kernel, *size, cluster=cluster, straight=straight, asks=asks)


#: Up to so many tokens the first plan that fits is the fastest on an H200.
_MEASURED = 16
FOUR_BIT_LINEAR = (
    _plan("linear", 3072, 128, 16, 46704, 8),
    _plan("linear", 3072, 64, 16, 54992, 4),
    _plan("linear", 14336, 128, 16, 105776, 8),
    _plan("linear", 3072, 128, 40, 109728, 4),
    _plan("linear", 3072, 64, 40, 98000, 4),
    _plan("linear", 14336, 192, 40, 221984, 8),
)
FOUR_BIT_NORM = (
    _plan("layer_norm_linear", 3072, 192, 16, 108656, 4),
    _plan("layer_norm_linear", 3072, 256, 16, 115296, 4),
    _plan("layer_norm_linear", 3072, 64, 16, 70800, 4),
    _plan("layer_norm_linear", 3072, 128, 32, 110944, 4),
    _plan("layer_norm_linear", 3072, 64, 32, 100240, 4),
)
#: Built as well, to be measured against those.
FOUR_BIT_OTHERS = (
    _other("layer_norm_linear", 3072, 192, 108656, 4, "lean"),
    _other("layer_norm_linear", 3072, 128, 102032, 4, "straight"),
    _other("layer_norm_linear", 3072, 192, 108656, 4, "straight"),
    _other("layer_norm_linear", 3072, 256, 115296, 4, "straight"),
    _other("layer_norm_linear", 3072, 256, 115344, 4, "straight_rows"),
    _other("layer_norm_linear", 3072, 128, 102128, 4, "straight_rows"),
    _other("linear", 3072, 128, 46704, 8, "lean"),
    _other("linear", 3072, 128, 46752, 8, "straight_rows"),
    _other("linear", 3072, 128, 46704, 8, "straight"),
    _other("linear", 3072, 128, 112224, 8, "straight_rows", tokens=80),
    _other("linear", 14336, 128, 105776, 8, "lean"),
    _other("linear", 14336, 128, 113984, 8, "straight"),
    _other("linear", 14336, 128, 114064, 8, "straight_rows"),
    _other("linear", 3072, 128, 85296, 4, "straight_rows_by_4"),
)
#: Times that a weight may be read, the first time from memory, then from a cache that holds it:
#: beyond, expanding it once is faster.
_MOST_RUNS = 4


@dataclass(frozen=True)
class Ends:
    """What happens to a product: gate act(x W^T + b) + residual.

    Attributes:
        bias: [N] bf16.
        activation: as of ``linear``.
        gate: [N] float32.
        residual: [M, N] bf16.
    """

    bias: Tensor | None
    activation: Activation = "none"
    gate: Tensor | None = None
    residual: Tensor | None = None


def four_bit_plan(
    plans: Sequence[SkinnyPlan], launcher: Launcher, tokens: int, rows: int, depth: int
) -> SkinnyPlan | None:
    """The first plan for so few tokens as were measured; for more the one whose blocks are largest
    while no multiprocessor is without.

    A larger block reads x for more rows of the weight. None where none takes this.
    """
    fitting = [plan for plan in plans if plan.fits(launcher, tokens, rows, depth)]
    least = min((plan.tokens for plan in fitting), default=0)
    fitting = [plan for plan in fitting if plan.tokens == least]
    if fitting and least <= _MEASURED:
        return fitting[0]

    def count(plan: SkinnyPlan) -> int:
        return rows // plan.rows * plan.cluster

    busy = [plan for plan in fitting if count(plan) >= launcher.multiprocessors]
    return min(busy, key=count, default=max(fitting, key=count, default=None))


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
    if plan is None or count > (_MOST_RUNS if norm is None else 1):
        return False
    require_bf16(op, x=x, bias=ends.bias, out=out, residual=residual)
    each = blocks(tokens, count)
    for start in range(0, tokens, each):
        run = slice(start, min(start + each, tokens))
        args = _arguments(plan, x[run], weight, weight_scale, out[run], ends, norm, run)
        if plan.asks:
            _, following = launcher.follow(plan, weight) or (plan, None)
            args = (*args, following, 0 if following is None else following.numel())
        plan.launch(launcher, rows, args)
    return True


def _arguments(
    plan: SkinnyPlan,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    out: Tensor,
    ends: Ends,
    norm: tuple[Tensor | None, Tensor | None, float] | None,
    run: slice,
) -> tuple[Any, ...]:
    """As the source declares them."""
    rows, depth = x.shape
    tokens: Tensor | TensorMap = x
    counts: tuple[int, ...] = (rows, x.stride(0))
    if not plan.straight:
        tokens = TensorMap(x.data_ptr(), rows, depth, x.stride(0), plan.tokens, 64)
        counts = (rows,)
    kind = list(ACTIVATIONS).index(ends.activation)
    if norm is not None:
        gain, shift, eps = norm
        sizes = (*counts, out.stride(0), kind, eps)
        return (tokens, weight, weight_scale, gain, shift, ends.bias, out, *sizes)
    residual = None if ends.residual is None else ends.residual[run]
    strides = (out.stride(0), 0 if residual is None else residual.stride(0))
    found = (tokens, weight, weight_scale, ends.bias, ends.gate, residual, out)
    return (*found, *counts, *strides, kind)
