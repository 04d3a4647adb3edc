"""Layers over ops that networks of several policies are made of; a policy adds how rows are mixed.

Buffers are named as ``plan_buffers.tower_layers`` and ``gated_layers`` declare them, streams and
merged rows ``<group>_x`` and ``<group>_qkv``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from ..gemm import linear
from ..kernels.glu_linear import glu_linear
from ..kernels.layer_norm import layer_norm
from ..kernels.maths import Gate
from ..kernels.op import Lane
from ..kernels.rms_norm import rms_norm
from .dense import Dense

Buffers = Mapping[str, Tensor]
Sites = Callable[[Buffers, str, int], Dense]
#: Attention of merged rows q|k|v [M, ..] into what the next product reads [M, ..], with its scale.
Mix = Callable[[Tensor, Tensor, Tensor | None], None]


def tower_layer(
    lane: Lane,
    buffers: Buffers,
    sites: Sites,
    group: str,
    layer: int,
    x: Tensor,
    eps: float,
    mix: Mix,
) -> None:
    """x += Attn(LN1(x)); x += MLP(LN2(x)), with biases and the tanh form of GELU.

    Args:
        lane, buffers, sites: where ops go, all buffers, and a site's by its name and layer.
        group: of buffers and sites.
        layer: which of the stack.
        x: [M, D], the residual stream.
        eps: of both norms.
        mix: the attention.
    """
    rows = x.shape[0]
    qkv, out, fc1, fc2 = (
        sites(buffers, f"{group}.{name}", layer) for name in ("qkv", "out", "fc1", "fc2")
    )

    def norm(name: str, target: Dense) -> None:
        gain, offset = (buffers[f"{group}.{name}_{kind}"][layer] for kind in ("weight", "bias"))
        scale = target.x_scale
        layer_norm(lane, x, gain, offset, target.source[:rows], eps=eps, out_scale=scale)

    def bias(name: str) -> Tensor:
        return buffers[f"{group}.{name}_bias"][layer]

    merged, mixed, hidden = buffers[f"{group}_qkv"][:rows], out.source[:rows], fc2.source[:rows]
    norm("norm1", qkv)
    linear(lane, qkv.source[:rows], qkv.weight, bias("qkv"), merged, **qkv.scales)
    mix(merged, mixed, out.x_scale)
    linear(lane, mixed, out.weight, bias("out"), x, residual=x, **out.scales)
    norm("norm2", fc1)
    linear(
        lane,
        fc1.source[:rows],
        fc1.weight,
        bias("fc1"),
        hidden,
        activation="gelu_tanh",
        out_scale=fc2.x_scale,
        **fc1.scales,
    )
    linear(lane, hidden, fc2.weight, bias("fc2"), x, residual=x, **fc2.scales)


def gated_layer(
    lane: Lane,
    buffers: Buffers,
    sites: Sites,
    group: str,
    layer: int,
    x: Tensor,
    eps: float,
    mix: Mix,
    *,
    activation: Gate,
    named: str = "",
) -> None:
    """x += Attn(n1); x += (act(n2 Wg) * n2 Wu) Wd, of RMS norms n of x; no biases.

    Arguments as for :func:`tower_layer`; ``activation`` is of the gate, ``named`` the group of the
    sites where that is another.
    """
    rows = x.shape[0]
    qkv, out, gate_up, down = (
        sites(buffers, f"{named or group}.{name}", layer)
        for name in ("qkv", "out", "gate_up", "down")
    )

    def norm(name: str, target: Dense) -> Tensor:
        gain, normal = buffers[f"{group}.{name}_weight"][layer], target.source[:rows]
        rms_norm(lane, x, gain, normal, eps=eps, out_scale=target.x_scale)
        return normal

    merged, mixed, hidden = buffers[f"{group}_qkv"][:rows], out.source[:rows], down.source[:rows]
    linear(lane, norm("norm1", qkv), qkv.weight, None, merged, **qkv.scales)
    mix(merged, mixed, out.x_scale)
    linear(lane, mixed, out.weight, None, x, residual=x, **out.scales)
    glu_linear(
        lane,
        norm("norm2", gate_up),
        gate_up.weight,
        hidden,
        activation=activation,
        out_scale=down.x_scale,
        **gate_up.scales,
    )
    linear(lane, hidden, down.weight, None, x, residual=x, **down.scales)
