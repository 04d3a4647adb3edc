"""Rows behind a norm attend over a pool of keys that theirs are added to, as one op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .attention import attention_launch, attention_ref
from .biased_attention import RowNorm, pooled_attention_launch, takes_new_keys, takes_norms
from .check import F32, I32, ArgCheck
from .few_rows_linear import layer_norm_linear_few_rows
from .launch import Launcher, require_bf16
from .layer_norm_linear import (
    layer_norm_linear_launch,
    layer_norm_linear_operands,
    layer_norm_linear_ref,
)
from .op import Lane, Op
from .qkv_rope_kv import check_qkv_outputs, qkv_rope_kv_launch, qkv_rope_kv_ref
from .quantised import given
from .skinny import Squares


def layer_norm_pool_attention_ref(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    rope: Tensor,
    rows: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    key_bias: Tensor,
    qkv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    eps: float,
    scale: float,
    segments: int = 1,
    kept: bool = False,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """The three ops in turn; what each makes is rounded to the format that it is left in."""
    scales: dict[str, Any] = {"x_scale": x_scale, "weight_scale": weight_scale}
    layer_norm_linear_ref(x, gain, shift, weight, bias, qkv, eps=eps, **scales)
    turn: dict[str, Any] = {"head_dim": head_dim, "q_norm": q_norm, "k_norm": k_norm, "eps": eps}
    qkv_rope_kv_ref(qkv, rope, q, k, v, **turn, rows=rows)
    queries, keys, values = (each.unflatten(1, (-1, head_dim)) for each in (q, k, v))
    told: dict[str, Any] = {"segments": segments, "key_bias": key_bias}
    attention_ref(queries, keys, values, out, scale=scale, **told, out_scale=out_scale)


def layer_norm_pool_attention_launch(
    launcher: Launcher,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    rope: Tensor,
    rows: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    key_bias: Tensor,
    qkv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    eps: float,
    scale: float,
    segments: int = 1,
    kept: bool = False,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """Two kernels where they were built for the shape: a product that leaves sums of squares, and
    attention that has norms, turns and the pool's new rows in front; else the ops in turn.
    """
    product = (x, gain, shift, weight, bias, qkv)
    ends: dict[str, Any] = {"eps": eps, "weight_scale": weight_scale}
    queries, keys, values = (each.unflatten(1, (-1, head_dim)) for each in (q, k, v))
    run, width = x.shape[0] // segments, q.shape[1]
    alike = width == k.shape[1] and x_scale is None and takes_norms(queries, keys, out)
    if alike and takes_new_keys(launcher, run, width // head_dim * segments):
        squares = Squares(width, 2 * width)
        if layer_norm_linear_few_rows(
            launcher, *product, **ends, activation="none", squares=squares
        ):
            require_bf16("layer_norm_pool_attention", qkv=qkv, k=k, v=v, out=out)
            norm = RowNorm(squares.sums(), q_norm, eps)
            taken = (qkv, keys, values, out, rope, rows, key_bias, norm, k_norm)
            pooled_attention_launch(launcher, *taken, segments, scale, kept)
            return
    layer_norm_linear_launch(launcher, *product, **ends, x_scale=x_scale)
    turn: dict[str, Any] = {"head_dim": head_dim, "q_norm": q_norm, "k_norm": k_norm, "eps": eps}
    qkv_rope_kv_launch(launcher, qkv, rope, q, k, v, **turn, rows=rows, kept=kept)
    told: dict[str, Any] = {"segments": segments, "key_bias": key_bias, "out_scale": out_scale}
    told |= {"kept": kept, "fresh": rows if kept else None}
    attention_launch(launcher, queries, keys, values, out, scale=scale, **told)


def layer_norm_pool_attention_operands(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    rope: Tensor,
    rows: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    key_bias: Tensor,
    qkv: Tensor,
    *_outputs: Tensor,
    eps: float,
    **_options: Any,
) -> tuple[Tensor, Tensor]:
    """Weight and normalised rows, as :class:`Op` has them."""
    return layer_norm_linear_operands(x, gain, shift, weight, bias, qkv, eps=eps)


LAYER_NORM_POOL_ATTENTION = Op(
    "layer_norm_pool_attention",
    layer_norm_pool_attention_ref,
    layer_norm_pool_attention_launch,
    layer_norm_pool_attention_operands,
    low_bit=True,
)


def layer_norm_pool_attention(
    lane: Lane,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    rope: Tensor,
    rows: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    key_bias: Tensor,
    qkv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    eps: float,
    scale: float,
    segments: int = 1,
    kept: bool = False,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """``layer_norm_linear`` of x into q|k|v, ``qkv_rope_kv`` of these, k and v to rows of a pool,
    and ``attention`` of q over the pool.

    Args:
        lane: where the op goes.
        x: [M, D] float, the residual stream.
        gain, shift, weight, bias: as of ``layer_norm_linear``; rows q|k|v, [Dq + 2 Dkv, D].
        rope, rows, q_norm, k_norm, head_dim: as of ``qkv_rope_kv``; norms of whole rows. Those of a
            segment are of its keys.
        qkv, q: [M, Dq + 2 Dkv], [M, Dq] float: what ops in front make may be left here, or not.
        k, v: [N, Dkv] float, the pool.
        out: [M, Dq] float, apart from all others.
        eps: added to the variance, and to the mean squares.
        scale, key_bias, segments: as of ``attention``.
        kept: ``rope``, ``rows``, ``key_bias`` and what of the pool is not written here are what is
            ``kept`` of ``attention``.
        x_scale, weight_scale, out_scale: as of ``layer_norm_linear``, of ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    keys = (rope, rows, q_norm, k_norm, key_bias)
    check = _check(x, gain, shift, bias, *keys, qkv, q, k, v, head_dim, segments)
    check.weight(weight, x_scale, weight_scale, (qkv.shape[1], "D"))
    check.quantised("out", out, ("M", "Dq"), "out_scale", out_scale, (1,))
    for name, value in (("x", x), ("qkv", qkv), ("q", q), ("k", k), ("v", v)):
        check.apart("out", out, name, value)
    scales = given(x_scale=x_scale, weight_scale=weight_scale, out_scale=out_scale)
    sizes: dict[str, Any] = {"head_dim": head_dim, "eps": eps, "scale": scale, "segments": segments}
    told: dict[str, Any] = {**sizes, "kept": kept, **scales}
    product, into = (x, gain, shift, weight, bias), (qkv, q, k, v, out)
    lane.issue(LAYER_NORM_POOL_ATTENTION, *product, *keys, *into, **told)


def _check(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    bias: Tensor | None,
    rope: Tensor,
    rows: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    key_bias: Tensor,
    qkv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    head_dim: int,
    segments: int,
) -> ArgCheck:
    """What the three ops check of all but the weight and ``out``."""
    check = ArgCheck("layer_norm_pool_attention")
    check.tensor("x", x, ("M", "D"))
    check.affine("gain", gain, "shift", shift)
    merged = check_qkv_outputs(check, rope, q, k, v, head_dim, cache_rows="N")
    check.tensor("qkv", qkv, ("M", merged))
    if bias is not None:
        check.tensor("bias", bias, (merged,))
    check.tensor("rows", rows, ("M",), I32)
    check.tensor("q_norm", q_norm, ("Dq",), F32)
    check.tensor("k_norm", k_norm, ("Dkv",), F32)
    check.tensor("key_bias", key_bias, ("N",), F32)
    check.segments(segments, "rows of 'x' and 'k'", "M", "N")
    width, shared = check.sizes["Dq"], check.sizes["Dkv"]
    check.require(width % shared == 0, "columns of 'q'", expected=f"n*{shared}", got=width)
    return check
