"""Queries from behind a norm, and their attention over keys and values that are there: one op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import attention_launch, attention_ref
from .check import I32, ArgCheck
from .few_rows_linear import row_maps
from .launch import Launcher, require_bf16
from .layer_norm_linear import (
    layer_norm_linear_launch,
    layer_norm_linear_operands,
    layer_norm_linear_ref,
)
from .op import Lane, Op
from .quantised import given


def layer_norm_attention_ref(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    eps: float,
    scale: float,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    kept: bool = False,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """The two ops in turn; queries are rounded to the format of ``q``."""
    scales: dict[str, Any] = {"x_scale": x_scale, "weight_scale": weight_scale}
    layer_norm_linear_ref(x, gain, shift, weight, bias, q, eps=eps, **scales)
    mask: dict[str, Any] = {"prefix_length": prefix_length, "prefix_rows": prefix_rows}
    heads = q.unflatten(1, k.shape[1:])
    attention_ref(heads, k, v, out, scale=scale, **mask, out_scale=out_scale)


#: Dynamic shared memory of the fused kernel; the source asserts the same.
_SHARED = 121_664


def layer_norm_attention_launch(
    launcher: Launcher,
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    eps: float,
    scale: float,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    kept: bool = False,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """One kernel where it was built for the shape: a cluster a head; else the two ops."""
    (rows, depth), (keys, heads, dim) = x.shape, k.shape
    wide = {x.dtype, weight.dtype, out.dtype} == {torch.bfloat16}
    packed = k.stride(1) == v.stride(1) == dim and weight.is_contiguous()
    built = (depth, dim, weight.shape[0]) == (1536, 48, heads * dim) and rows <= 48
    if launcher.architecture == 90 and wide and packed and built:
        require_bf16("layer_norm_attention", x=x, bias=bias, k=k, v=v, out=out)
        pointers = (gain, shift, bias, k, v, prefix_length, out)
        counts = (rows, keys, prefix_rows, int(kept))
        strides = (k.stride(0), v.stride(0), out.stride(0))
        launcher.launch(
            "layer_norm_attention_k1536_d48_bf16_sm90",
            4 * heads,
            256,
            (*row_maps(x, weight, dim), *pointers, *counts, *strides, eps, scale),
            shared_bytes=_SHARED,
            cluster=4,
        )
        return
    scales: dict[str, Any] = {"x_scale": x_scale, "weight_scale": weight_scale}
    layer_norm_linear_launch(launcher, x, gain, shift, weight, bias, q, eps=eps, **scales)
    mask: dict[str, Any] = {"prefix_length": prefix_length, "prefix_rows": prefix_rows}
    queries = q.unflatten(1, (heads, dim))
    attention_launch(
        launcher, queries, k, v, out, scale=scale, **mask, kept=kept, out_scale=out_scale
    )


def layer_norm_attention_operands(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    eps: float,
    scale: float,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    kept: bool = False,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """``layer_norm_linear`` of x into queries, then ``attention`` of each head over its own keys.

    Args:
        lane: where the op goes.
        x: [M, D] float, the residual stream.
        gain: [D] float32, None for none; as of ``layer_norm_linear``.
        shift: [D] float32; None where ``gain`` is.
        weight: [H d, D] float.
        bias: [H d] float, or None.
        q: [M, H d] float: queries may be left here, or not.
        k: [N, H, d] float.
        v: [N, H, d] float.
        out: [M, H d] float, apart from all others.
        eps: added to the (biased) variance.
        scale: factor on the scores.
        prefix_length: [1] int32, as of ``attention``, and so are the next two.
        prefix_rows: rows kept for the prefix.
        kept: k, v and prefix_length are what an earlier stage left.
        x_scale: [1] float32: the normalised rows are quantised with it before the product.
        weight_scale: [H d] float32, of a quantised ``weight``: a row's.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("layer_norm_attention")
    check.tensor("x", x, ("M", "D"))
    check.affine("gain", gain, "shift", shift)
    check.tensor("k", k, ("N", "H", "d"))
    check.tensor("v", v, ("N", "H", "d"))
    width = check.sizes["H"] * check.sizes["d"]
    check.weight(weight, x_scale, weight_scale, (width, "D"))
    if bias is not None:
        check.tensor("bias", bias, (width,))
    check.tensor("q", q, ("M", width))
    check.quantised("out", out, ("M", width), "out_scale", out_scale, (1,))
    if prefix_length is not None:
        check.tensor("prefix_length", prefix_length, (1,), I32)
        keys = check.sizes["N"]
        check.require(
            0 < prefix_rows <= keys, "prefix_rows", expected=f"1..{keys}", got=prefix_rows
        )
    for name, value in (("x", x), ("q", q), ("k", k), ("v", v)):
        check.apart("out", out, name, value)
    scales = given(x_scale=x_scale, weight_scale=weight_scale, out_scale=out_scale)
    mask: dict[str, Any] = {}
    if prefix_length is not None:
        mask = {"prefix_length": prefix_length, "prefix_rows": prefix_rows}
    if kept:
        mask["kept"] = True
    operands = (x, gain, shift, weight, bias, q, k, v, out)
    lane.issue(LAYER_NORM_ATTENTION, *operands, eps=eps, scale=scale, **mask, **scales)
