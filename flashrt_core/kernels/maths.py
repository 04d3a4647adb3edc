"""Pieces of float32 maths that several references share; no op by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .four_bits import four_bit_values
from .quantised import E4M3, quantise, rescaled

Activation = Literal["none", "gelu_tanh", "gelu", "silu", "relu"]
Gate = Literal["gelu_tanh", "silu"]

#: What an op may do to each number of a product; ``gelu`` is the form with the error function.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
}


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension, in float32."""
    return F.rms_norm(x.float(), (x.shape[-1],), eps=eps)


def ada_rms_normalise(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """RMS norm whose gain and offset come from a condition: n * (1 + scale) + shift, float32."""
    normal = rms_normalise(x, eps)
    return torch.addcmul(normal, normal, scale).add_(shift)


def matmul(
    x: Tensor, weight: Tensor, x_scale: Tensor | None = None, weight_scale: Tensor | None = None
) -> Tensor:
    """x [M, K] times weight [N, K] transposed, float32 accumulation and result.

    With scales the product is of the stored numbers, and multiplied by them at the end; a wide
    ``x`` with ``x_scale`` is quantised first. Weights of four bits are what their runs' scales make
    of them, not rounded: a kernel multiplies whole numbers and scales its sums.
    """
    if weight.dtype is torch.uint8 and weight_scale is not None:
        return F.linear(x.float(), four_bit_values(weight, weight_scale))
    if x_scale is not None and x.dtype is not E4M3:
        x = quantise(x, x_scale)
    return rescaled(F.linear(x.float(), weight.float()), x_scale, weight_scale)


def layer_normalise(x: Tensor, gain: Tensor | None, shift: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + shift over the last dimension, in float32."""
    return F.layer_norm(x.float(), (x.shape[-1],), gain, shift, eps)


def glu(
    x: Tensor,
    weight: Tensor,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    activation: Gate = "gelu_tanh",
) -> Tensor:
    """act(x Wg^T) * (x Wu^T) -> [M, F] float32.

    Args:
        x: [M, K] float.
        weight: [2F, K] float, gate rows at even indices and up rows at odd ones.
        x_scale, weight_scale: [1] and [2F] as in :func:`matmul`.
        activation: of the gate.
    """
    gate_scale, up_scale = (
        None if weight_scale is None else weight_scale[first::2] for first in (0, 1)
    )
    # Two products over every other row: the halves come out contiguous, which gelu needs for speed.
    gate = ACTIVATIONS[activation](matmul(x, weight[0::2], x_scale, gate_scale))
    return gate.mul_(matmul(x, weight[1::2], x_scale, up_scale))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary embedding, half-split pairing: dimension i turns with i + d/2.

    Args:
        x: [rows, heads, d] float32.
        rope: [rows, d] float32, cosines of the d/2 angles then their sines.
    """
    rows, heads, dim = x.shape
    cos, sin = rope.view(rows, 1, 2, dim // 2).unbind(2)
    halves = x.view(rows, heads, 2, dim // 2)
    turned = halves * cos.unsqueeze(2)
    turned[:, :, 0].addcmul_(halves[:, :, 1], sin, value=-1.0)
    turned[:, :, 1].addcmul_(halves[:, :, 0], sin)
    return turned.view(rows, heads, dim)


def split_qkv_rope(
    qkv: Tensor,
    rope: Tensor,
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    head_dim: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    rows_of: Tensor | None = None,
) -> None:
    """Splits merged projection rows [M, (Hq + 2 Hkv) d] float32, turns q and k, writes all three.

    q [M, Hq d] may be None where only keys and values are wanted; k, v are [M, Hkv d], or of any
    rows of which ``rows_of`` [M] names ours. With gains ``q_norm`` and ``k_norm`` [d], each head of
    q and k is RMS-normalised before it turns; with gains as wide as q and k, each of these is.
    """
    if k_norm is not None and len(k_norm) != head_dim:
        qkv = _normalised_rows(qkv, q_norm, k_norm, eps)
        q_norm = k_norm = None
    rows, kv_width = qkv.shape[0], k.shape[-1]
    q_width = qkv.shape[-1] - 2 * kv_width
    heads = qkv.unflatten(1, (-1, head_dim))[:, : (q_width + kv_width) // head_dim]
    if k_norm is not None:
        gains = k_norm.expand(heads.shape[1], head_dim).clone()
        if q_norm is not None:
            gains[: q_width // head_dim] = q_norm
        heads = rms_normalise(heads, eps) * gains
    turned = rotate(heads, rope).view(rows, -1)
    if q is not None:
        q.copy_(turned[:, :q_width])
    if rows_of is not None:
        k[rows_of] = turned[:, q_width:].to(k.dtype)
        v[rows_of] = qkv[:, q_width + kv_width :].to(v.dtype)
        return
    k.copy_(turned[:, q_width:])
    v.copy_(qkv[:, q_width + kv_width :])


def _normalised_rows(qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor, eps: float) -> Tensor:
    """Merged rows whose q, of all heads at once, and k are RMS-normalised; v is as it was."""
    q_width = qkv.shape[-1] - 2 * len(k_norm)
    q, k, v = qkv.split((q_width, len(k_norm), len(k_norm)), dim=-1)
    if q_norm is not None:
        q = rms_normalise(q, eps) * q_norm
    return torch.cat((q, rms_normalise(k, eps) * k_norm, v), dim=-1)
