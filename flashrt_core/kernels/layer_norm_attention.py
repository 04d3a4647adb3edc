"""Queries from behind a norm and their attention as one op, over what is there or the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .attention import attention_launch, attention_ref
from .biased_attention import RowNorm, normed_attention_launch, takes_norms
from .check import F32, I32, ArgCheck
from .few_rows_linear import layer_norm_linear_few_rows
from .launch import Launcher, require_bf16
from .layer_norm_linear import (
    layer_norm_linear_launch,
    layer_norm_linear_operands,
    layer_norm_linear_ref,
)
from .op import Lane, Op
from .quantised import E4M3, given
from .rms_norm import rms_norm_launch, rms_norm_ref
from .row_moments import RowMoments, left_moments, moments_setting
from .skinny import SkinnyPlan, Squares


def layer_norm_attention_ref(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    *,
    head_dim: int,
    eps: float,
    scale: float,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    kept: bool = False,
    q_norm: Tensor | None = None,
    segments: int = 1,
    key_bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """The ops in turn; what the first and a norm make is rounded to the format of ``q``."""
    scales: dict[str, Any] = {"x_scale": x_scale, "weight_scale": weight_scale}
    layer_norm_linear_ref(x, gain, shift, weight, bias, q, eps=eps, **scales)
    if q_norm is not None:
        rms_norm_ref(q, q_norm, q, eps=eps)
    mask: dict[str, Any] = {"prefix_length": prefix_length, "prefix_rows": prefix_rows}
    keys: dict[str, Any] = {**mask, "segments": segments, "key_bias": key_bias}
    operands = _operands(q, k, v, head_dim)
    attention_ref(*operands, out, scale=scale, **keys, out_scale=out_scale)


def _operands(
    q: Tensor, k: Tensor | None, v: Tensor | None, head_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What attends to what; rows of ``q`` hold all three where there is no ``k``."""
    if k is not None and v is not None:
        return q.unflatten(1, (-1, head_dim)), k, v
    queries, keys, values = q.unflatten(1, (3, -1, head_dim)).unbind(1)
    return queries, keys, values


def _plan(kind: str, weights: str, shared_bytes: int) -> SkinnyPlan:
    """A cluster makes a head of the queries, and in the one named ``_self`` of keys and values."""
    name = f"layer_norm_attention{kind}_k1536_d48_{weights}_sm90"
    mapped = weights == "bf16"
    return SkinnyPlan(name, 1536, 48, 48, shared_bytes, cluster=4, tiles=True, mapped=mapped)


#: By the type of weights, over keys that are there and over the rows themselves.
_CONTEXT_PLANS: Mapping[torch.dtype, SkinnyPlan] = {torch.bfloat16: _plan("", "bf16", 104_864)}
_SELF_PLANS: Mapping[torch.dtype, SkinnyPlan] = {
    torch.bfloat16: _plan("_self", "bf16", 113_408),
    E4M3: _plan("_self", "fp8", 92_880),
}


def _built_plan(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    head_dim: int,
    x_scale: Tensor | None,
) -> SkinnyPlan | None:
    """The kernel that makes a head's rows and attends with them; None where none was built."""
    plan = (_SELF_PLANS if k is None else _CONTEXT_PLANS).get(weight.dtype)
    if plan is None or launcher.architecture != 90 or {x.dtype, out.dtype} != {torch.bfloat16}:
        return None
    built = (x.shape[1], head_dim) == (plan.depth, plan.rows) and x.shape[0] <= plan.tokens
    packed = all(part is None or part.stride(1) == head_dim for part in (k, v))
    # E4M3 weights of bf16 rows are another format.
    quantised = (weight.dtype is E4M3) == (x_scale is not None)
    return plan if built and packed and quantised and weight.is_contiguous() else None


def layer_norm_attention_launch(
    launcher: Launcher,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    *,
    head_dim: int,
    eps: float,
    scale: float,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    kept: bool = False,
    q_norm: Tensor | None = None,
    segments: int = 1,
    key_bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """One kernel where it was built for the shape: a cluster a head; two of which the second has
    the norm of queries in front; else the ops in turn.
    """
    operands = _operands(q, k, v, head_dim)
    if q_norm is not None:
        product = (x, gain, shift, weight, bias, q)
        behind: dict[str, Any] = {"eps": eps, "scale": scale, "segments": segments, "kept": kept}
        rest = (q_norm, out, key_bias, weight_scale)
        whole = prefix_length is None and x_scale is None
        if whole and _normed(launcher, product, operands, *rest, **behind):
            return
    plain = q_norm is None and key_bias is None and segments == 1
    plan = _built_plan(launcher, x, weight, k, v, out, head_dim, x_scale) if plain else None
    if plan is not None:
        require_bf16("layer_norm_attention", x=x, bias=bias, k=k, v=v, out=out)
        values, slabs = left_moments(moments)
        between = () if x_scale is None else (x_scale, weight_scale)
        pointers = (*between, gain, shift, bias, k, v, prefix_length, values, out)
        seen = x if k is None else k
        counts = (slabs, x.shape[0], seen.shape[0], prefix_rows, int(kept))
        strides = (*(0 if part is None else part.stride(0) for part in (k, v)), out.stride(0))
        args = (*pointers, *counts, *plan.x_strides(x), *strides, eps, scale)
        plan.launch(launcher, out.shape[1], (plan.x(x), plan.weight(weight), *args))
        return
    scales: dict[str, Any] = {"x_scale": x_scale, "weight_scale": weight_scale}
    layer_norm_linear_launch(launcher, x, gain, shift, weight, bias, q, eps=eps, **scales)
    if q_norm is not None:
        rms_norm_launch(launcher, q, q_norm, q, eps=eps)
    mask: dict[str, Any] = {"prefix_length": prefix_length, "prefix_rows": prefix_rows}
    keys: dict[str, Any] = {**mask, "segments": segments, "key_bias": key_bias, "kept": kept}
    attention_launch(launcher, *operands, out, scale=scale, **keys, out_scale=out_scale)


def _normed(
    launcher: Launcher,
    product: tuple[Any, ...],
    operands: tuple[Tensor, Tensor, Tensor],
    q_norm: Tensor,
    out: Tensor,
    key_bias: Tensor | None,
    weight_scale: Tensor | None,
    *,
    eps: float,
    scale: float,
    segments: int,
    kept: bool,
) -> bool:
    """Launches a product that leaves sums of squares of what it makes, and attention that has the
    norm in front, where there are such kernels. Whether there are.
    """
    width = q_norm.shape[0]
    if key_bias is None or not takes_norms(operands[0], operands[1], out):
        return False
    squares = Squares(width, width)
    ends: dict[str, Any] = {"eps": eps, "activation": "none", "weight_scale": weight_scale}
    if not layer_norm_linear_few_rows(launcher, *product, **ends, squares=squares):
        return False
    require_bf16("layer_norm_attention", k=operands[1], v=operands[2], out=out)
    norm = RowNorm(squares.sums(), q_norm, eps)
    normed_attention_launch(launcher, *operands, out, key_bias, segments, scale, kept, norm)
    return True


def layer_norm_attention_operands(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    *,
    eps: float,
    **_options: Any,
) -> tuple[Tensor, Tensor]:
    """Weight and normalised rows, as :class:`Op` has them."""
    return layer_norm_linear_operands(x, gain, shift, weight, bias, q, eps=eps)


LAYER_NORM_ATTENTION = Op(
    "layer_norm_attention",
    layer_norm_attention_ref,
    layer_norm_attention_launch,
    layer_norm_attention_operands,
    low_bit=True,
)


def layer_norm_attention(
    lane: Lane,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    *,
    head_dim: int,
    eps: float,
    scale: float,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    kept: bool = False,
    q_norm: Tensor | None = None,
    segments: int = 1,
    key_bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    moments: RowMoments | None = None,
) -> None:
    """``layer_norm_linear`` of x into queries, then ``attention`` of each head over its own keys.

    Args:
        lane, x: where the op goes; [M, D] float, the residual stream.
        gain, shift, x_scale, weight_scale, out_scale, moments: as of ``layer_norm_linear``.
        weight: [H d, D] float; rows q|k|v, [3 H d, D], where ``k`` is None.
        bias: [H d] or [3 H d] float, or None.
        q: [M, H d] or [M, 3 H d] float: what the product makes may be left here, or not.
        k, v: [N, H, d] float; None: rows attend to each other.
        out: [M, H d] float, apart from all others.
        head_dim, eps, scale: d; what is added to the (biased) variance; as of ``attention``.
        prefix_length, prefix_rows, kept, segments, key_bias: as of ``attention``; not without k.
        q_norm: [H d] float32, weight of an ``rms_norm`` of q in front, with that eps; likewise.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("layer_norm_attention")
    check.tensor("x", x, ("M", "D"))
    check.affine("gain", gain, "shift", shift)
    check.quantised("out", out, ("M", "W"), "out_scale", out_scale, (1,))
    merged = check.sizes["W"] * (1 if k is not None else 3)
    check.weight(weight, x_scale, weight_scale, (merged, "D"), None if x_scale is None else (1,))
    check.tensor("q", q, ("M", merged))
    if bias is not None:
        check.tensor("bias", bias, (merged,))
    settings: dict[str, Any] = {"head_dim": head_dim, "eps": eps, "scale": scale}
    settings |= _check_keys(check, k, v, head_dim, prefix_length, prefix_rows)
    settings |= _check_rest(check, q_norm, segments, key_bias) | ({"kept": True} if kept else {})
    for name, value in given(x=x, q=q, k=k, v=v).items():
        check.apart("out", out, name, value)
    settings |= given(x_scale=x_scale, weight_scale=weight_scale, out_scale=out_scale)
    settings |= moments_setting(check, moments)
    lane.issue(LAYER_NORM_ATTENTION, x, gain, shift, weight, bias, q, k, v, out, **settings)


def _check_keys(
    check: ArgCheck,
    k: Tensor | None,
    v: Tensor | None,
    head_dim: int,
    prefix_length: Tensor | None,
    prefix_rows: int,
) -> dict[str, Any]:
    """Checks keys, values and which of them count; the latter as the op's settings."""
    width = check.sizes["W"]
    check.require(
        head_dim > 0 and width % head_dim == 0,
        "head_dim",
        expected=f"a divisor of {width}",
        got=head_dim,
    )
    both = (k is None) == (v is None)
    check.require(both, "arguments 'k' and 'v'", expected="both or none", got="one of them")
    if k is not None and v is not None:
        heads = (width // head_dim, head_dim)
        check.tensor("k", k, ("N", *heads))
        check.tensor("v", v, ("N", *heads))
    if prefix_length is None:
        return {}
    check.tensor("prefix_length", prefix_length, (1,), I32)
    keys = check.sizes.get("N", 0)
    check.require(0 < prefix_rows <= keys, "prefix_rows", expected=f"1..{keys}", got=prefix_rows)
    return {"prefix_length": prefix_length, "prefix_rows": prefix_rows}


def _check_rest(
    check: ArgCheck, q_norm: Tensor | None, segments: int, key_bias: Tensor | None
) -> dict[str, Any]:
    """Checks how queries and keys come, where they do not come plain; as the op's settings."""
    given_ones = given(q_norm=q_norm, key_bias=key_bias)
    if segments == 1 and not given_ones:
        return {}
    there = check.sizes.get("N", 0) > 0
    check.require(there, "argument 'k'", expected="keys, with this", got=None)
    check.segments(segments, "rows of 'x' and 'k'", "M", "N")
    if q_norm is not None:
        check.tensor("q_norm", q_norm, ("W",), F32)
    if key_bias is not None:
        check.tensor("key_bias", key_bias, ("N",), F32)
    return {**given_ones, **({"segments": segments} if segments > 1 else {})}
