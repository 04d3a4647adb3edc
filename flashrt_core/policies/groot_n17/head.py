"""A block of GR00T N1.7's head over ops: self-attention and attention to the context in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...gemm import linear
from ...kernels.layer_norm_attention import layer_norm_attention
from ...kernels.layer_norm_linear import layer_norm_linear
from ...kernels.op import Lane
from ...kernels.row_moments import RowMoments
from ..dense import Dense
from .config import GrootConfig
from .sites import dense

Buffers = Mapping[str, Tensor]


def head_block(
    lane: Lane,
    buffers: Buffers,
    config: GrootConfig,
    block: int,
    norm: Tensor,
    bucket: int,
    moments: RowMoments,
) -> None:
    """x += Attn(LN(x)); x += MLP(LN(x)), by four ops.

    ``norm`` [2, W]: gain and shift of the first norm, of the step's table; ``bucket``: text rows;
    ``moments``: of x, from one op to the next.
    """
    eps, x = config.adapter_eps, buffers["head_x"]
    out, fc1, fc2 = (dense(buffers, f"head.{name}", block) for name in ("out", "fc1", "fc2"))
    if block % 2:
        _head_self_attention(lane, buffers, config, block // 2, norm, out, moments)
    else:
        _head_context_attention(lane, buffers, config, block, norm, out, bucket, moments)
    bias = buffers["head.out_bias"][block]
    linear(lane, out.source, out.weight, bias, x, residual=x, moments=moments, **out.scales)
    layer_norm_linear(
        lane,
        x,
        None,
        None,
        fc1.weight,
        buffers["head.fc1_bias"][block],
        fc2.source,
        eps=eps,
        activation="gelu_tanh",
        out_scale=fc2.x_scale,
        moments=moments,
        **fc1.scales,
    )
    bias = buffers["head.fc2_bias"][block]
    linear(lane, fc2.source, fc2.weight, bias, x, residual=x, moments=moments, **fc2.scales)


def _head_self_attention(
    lane: Lane,
    buffers: Buffers,
    config: GrootConfig,
    index: int,
    norm: Tensor,
    out: Dense,
    moments: RowMoments,
) -> None:
    """The head's rows over themselves, into the source of ``out``."""
    site, head_dim = dense(buffers, "head.qkv", index), config.head.head_dim
    product = (site.weight, buffers["head.qkv_bias"][index], buffers["head_qkv"])
    layer_norm_attention(
        lane,
        buffers["head_x"],
        norm[0],
        norm[1],
        *product,
        None,
        None,
        out.source,
        head_dim=head_dim,
        eps=config.adapter_eps,
        scale=head_dim**-0.5,
        out_scale=out.x_scale,
        moments=moments,
        **site.scales,
    )


def _head_context_attention(
    lane: Lane,
    buffers: Buffers,
    config: GrootConfig,
    block: int,
    norm: Tensor,
    out: Dense,
    bucket: int,
    moments: RowMoments,
) -> None:
    """The head's rows over text rows or image rows, in turn, into the source of ``out``."""
    sizes, x = config.head, buffers["head_x"]
    site, q = dense(buffers, "head.q", block // 2), buffers["head_q"]
    mask: dict[str, Any] = {}
    rows = buffers["image_kv"]
    if block % 4 == 0:
        rows = buffers["text_kv"][:bucket]
        mask = {"prefix_length": buffers["text_length"], "prefix_rows": bucket}
    # Keys and values, each [rows of the kind, heads, head_dim].
    k, v = rows[:, block // 4].unflatten(-1, (sizes.heads, sizes.head_dim)).unbind(1)
    layer_norm_attention(
        lane,
        x,
        norm[0],
        norm[1],
        site.weight,
        buffers["head.q_bias"][block // 2],
        q,
        k,
        v,
        out.source,
        head_dim=sizes.head_dim,
        eps=config.adapter_eps,
        scale=sizes.head_dim**-0.5,
        kept=True,
        out_scale=out.x_scale,
        moments=moments,
        **mask,
        **site.scales,
    )
