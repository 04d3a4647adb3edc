"""The stages of π0.5 over ops, written once for every device, precision and shape.

A product's operands come from :func:`.sites.dense`, with the scales that the precision plan gives
them; whoever writes a product's input writes it in that format, through ``out_scale``.

A body runs once, at capture, with the buffers of the contract. It contains no decision that depends
on data: what changes between decisions (images, prompt, its length, noise) is read from buffers
when the ops run. Exact algebra used here: absent cameras and the prompt's padding take no part, the
last trunk layer makes keys and values only, everything that depends on the step is a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...contract import Contract, ShapeKey
from ...gemm import linear
from ...guidance import GUIDANCE, PREVIOUS
from ...kernels.action_in import action_in
from ...kernels.action_out_euler import action_out_euler
from ...kernels.ada_rms_norm_geglu import ada_rms_norm_geglu
from ...kernels.ada_rms_norm_qkv_rope_kv import ada_rms_norm_qkv_rope_kv
from ...kernels.attention import attention
from ...kernels.copy_rows import copy_rows
from ...kernels.embed_rows import embed_rows
from ...kernels.image_patches import image_patches
from ...kernels.layer_norm import layer_norm
from ...kernels.linear_gated_residual import linear_gated_residual
from ...kernels.offset_count import offset_count
from ...kernels.op import Lane
from ...kernels.qkv_rope_kv import qkv_rope_kv
from ...kernels.rms_norm import rms_norm
from ...kernels.rope_rows import rope_rows
from ..layers import gated_layer, tower_layer
from ..windows import image_input, picture_input, views_of
from .config import SLOTS, Pi05Config
from .numerics import embedding_scale
from .schedule import step_size, time_left
from .sites import dense

Buffers = Mapping[str, Tensor]
Body = Callable[[Lane, Buffers], None]


def make_body(config: Pi05Config, contract: Contract, stage: str, shape: ShapeKey) -> Body:
    """The body of a stage for one shape; ContractError on an unknown stage."""
    contract.stage(stage)
    views = views_of({spec.name for spec in contract.inputs}, SLOTS)
    bodies: dict[str, Body] = {
        "prompt": lambda lane, buffers: prompt(lane, buffers, config, shape),
        "context": lambda lane, buffers: context(lane, buffers, config, shape, views),
        "action": lambda lane, buffers: action(lane, buffers, config, shape),
    }
    return bodies[stage]


def prompt(lane: Lane, buffers: Buffers, config: Pi05Config, shape: ShapeKey) -> None:
    """Token ids -> scaled embedding rows, prefix length, rotary rows of the chunk behind it."""
    bucket, length = shape.prompt_tokens, buffers["prompt_length"]
    embed_rows(
        lane,
        buffers["prompt_tokens"][:bucket],
        length,
        buffers["trunk.embedding"],
        buffers["prompt_embedding"][:bucket],
        scale=embedding_scale(config.numerics, config.trunk.width),
    )
    image_rows = shape.views * config.view_tokens
    offset_count(lane, length, buffers["prefix_length"], offset=image_rows)
    rope_rows(
        lane,
        buffers["prefix_length"],
        buffers["expert_rope"],
        theta=config.rope_theta,
        rounded=config.numerics.rope_frequencies == "bfloat16",
    )


def context(
    lane: Lane, buffers: Buffers, config: Pi05Config, shape: ShapeKey, views: tuple[str, ...]
) -> None:
    """Images and prompt rows -> keys and values of the prefix, layer by layer."""
    image_rows = shape.views * config.view_tokens
    rows = image_rows + shape.prompt_tokens
    x = buffers["trunk_x"][:rows]  # [S, D]
    vision(lane, buffers, config, views[: shape.views], x[:image_rows])
    copy_rows(lane, buffers["prompt_embedding"][: shape.prompt_tokens], x[image_rows:])
    for layer in range(config.trunk.depth - 1):
        trunk_layer(lane, buffers, config, layer, rows)
    trunk_last_layer(lane, buffers, config, rows)


def vision(
    lane: Lane, buffers: Buffers, config: Pi05Config, views: tuple[str, ...], out: Tensor
) -> None:
    """Image tower over all views at once; ``out`` [V T, D of the trunk]."""
    tokens = config.view_tokens
    rows = len(views) * tokens
    patch, x = dense(buffers, "vision.patch"), buffers["vision_x"][:rows]
    patches = patch.source[:rows]
    for index, view in enumerate(views):
        image_patches(
            lane,
            buffers[image_input(view)],
            patches[index * tokens : (index + 1) * tokens],
            patch=config.patch,
            picture=buffers[picture_input(view)] if config.camera_bytes else None,
            size=config.image_size,
            method=config.numerics.image_resize,
        )
    linear(
        lane,
        patches,
        patch.weight,
        buffers["vision.patch_bias"],
        x,
        residual=buffers["vision.position"],
        **patch.scales,
    )
    for layer in range(config.vision.depth):
        vision_layer(lane, buffers, config, layer, len(views))
    last, bias = dense(buffers, "projector"), buffers["projector.bias"]
    gain, offset = buffers["vision.post_norm_weight"], buffers["vision.post_norm_bias"]
    normal = last.source[:rows]
    layer_norm(lane, x, gain, offset, normal, eps=config.eps, out_scale=last.x_scale)
    linear(lane, normal, last.weight, bias, out, **last.scales)


def vision_layer(lane: Lane, buffers: Buffers, config: Pi05Config, layer: int, views: int) -> None:
    """One layer of the tower; a row sees the rows of its own view only."""
    heads, head_dim = config.vision.heads, config.vision.head_dim

    def mix(merged: Tensor, mixed: Tensor, out_scale: Tensor | None) -> None:
        q, k, v = merged.view(-1, 3, heads, head_dim).unbind(1)  # each [V T, heads, head_dim]
        scale = head_dim**-0.5
        attention(lane, q, k, v, mixed, scale=scale, segments=views, out_scale=out_scale)

    x = buffers["vision_x"][: views * config.view_tokens]
    tower_layer(lane, buffers, dense, "vision", layer, x, config.eps, mix)


def trunk_layer(lane: Lane, buffers: Buffers, config: Pi05Config, layer: int, rows: int) -> None:
    """One full prefix layer; writes its K/V rows and the residual stream."""
    sizes = config.trunk
    x, q, rope = buffers["trunk_x"][:rows], buffers["trunk_q"][:rows], buffers["trunk.rope"][:rows]
    k, v = buffers["kv"][layer, 0, :rows], buffers["kv"][layer, 1, :rows]  # [S, d]

    def mix(merged: Tensor, mixed: Tensor, out_scale: Tensor | None) -> None:
        qkv_rope_kv(lane, merged, rope, q, k, v, head_dim=sizes.head_dim)
        attention(
            lane,
            q.view(rows, sizes.heads, sizes.head_dim),
            k.unsqueeze(1),
            v.unsqueeze(1),
            mixed,
            scale=sizes.head_dim**-0.5,
            prefix_length=buffers["prefix_length"],
            prefix_rows=rows,
            out_scale=out_scale,
        )

    stack = ("trunk", layer, x, config.eps, mix)
    gated_layer(lane, buffers, dense, *stack, activation="gelu_tanh", named="prefix")


def trunk_last_layer(lane: Lane, buffers: Buffers, config: Pi05Config, rows: int) -> None:
    """Keys and values of the last layer; nothing else of it is ever read."""
    last, head_dim = config.trunk.depth - 1, config.trunk.head_dim
    last_kv = dense(buffers, "prefix.last_kv")
    x, normal = buffers["trunk_x"][:rows], last_kv.source[:rows]
    kv = buffers["trunk_qkv"][:rows, : 2 * head_dim]
    gain = buffers["trunk.norm1_weight"][last]
    rms_norm(lane, x, gain, normal, eps=config.eps, out_scale=last_kv.x_scale)
    linear(lane, normal, last_kv.weight, None, kv, **last_kv.scales)
    k, v = buffers["kv"][last, 0, :rows], buffers["kv"][last, 1, :rows]
    qkv_rope_kv(lane, kv, buffers["trunk.rope"][:rows], None, k, v, head_dim=head_dim)


def action(lane: Lane, buffers: Buffers, config: Pi05Config, shape: ShapeKey) -> None:
    """N Euler steps from the noise window to the action window; the noise stays as it is.

    In a plan with real-time chunking every step is guided. Its rows then see, through attention,
    those that are kept, and fit to them.
    """
    x, sample, out = buffers["expert_x"], buffers["noise"], buffers["actions"]  # [H, D], [H, A]
    prefix_rows = shape.views * config.view_tokens + shape.prompt_tokens
    last = config.norms - 1
    guide: dict[str, Any] = {}
    if config.real_time_chunking:
        guide = {"previous": buffers[PREVIOUS], "guidance": buffers[GUIDANCE]}
    for step in range(shape.steps):
        if guide:
            guide["time"] = time_left(shape.steps, step)
        table = buffers["expert.modulation"][step]  # [norms, 3, D]
        weight, bias = buffers["expert.action_in_weight"], buffers["expert.action_in_bias"]
        action_in(lane, sample, weight, bias, x)
        for layer in range(config.expert.depth):
            norms = table[2 * layer : 2 * layer + 2]
            expert_layer(lane, buffers, config, layer, norms, prefix_rows)
        action_out_euler(
            lane,
            x,
            table[last, 0],
            table[last, 1],
            buffers["expert.action_out_weight"],
            buffers["expert.action_out_bias"],
            sample,
            out,
            dt=step_size(shape.steps),
            eps=config.eps,
            **guide,
        )
        sample = out


def expert_layer(
    lane: Lane,
    buffers: Buffers,
    config: Pi05Config,
    layer: int,
    norms: Tensor,
    prefix_rows: int,
) -> None:
    """One layer of one step, five ops; ``norms`` [2, 3, D]: scale, shift, gate of both norms."""
    sizes, horizon = config.expert, config.horizon
    x, q = buffers["expert_x"], buffers["expert_q"]
    qkv, out, gate_up, down = (
        dense(buffers, f"expert.{name}", layer) for name in ("qkv", "out", "gate_up", "down")
    )
    k, v = buffers["kv"][layer, 0], buffers["kv"][layer, 1]
    rows = prefix_rows + horizon
    ada_rms_norm_qkv_rope_kv(
        lane,
        x,
        norms[0, 0],
        norms[0, 1],
        qkv.weight,
        buffers["expert_rope"],
        q,
        k[prefix_rows:rows],
        v[prefix_rows:rows],
        head_dim=sizes.head_dim,
        eps=config.eps,
        **qkv.scales,
    )
    attention(
        lane,
        q.view(horizon, sizes.heads, sizes.head_dim),
        k[:rows].unsqueeze(1),
        v[:rows].unsqueeze(1),
        out.source,
        scale=sizes.head_dim**-0.5,
        prefix_length=buffers["prefix_length"],
        prefix_rows=prefix_rows,
        out_scale=out.x_scale,
    )
    linear_gated_residual(lane, out.source, out.weight, norms[0, 2], x, **out.scales)
    ada_rms_norm_geglu(
        lane,
        x,
        norms[1, 0],
        norms[1, 1],
        gate_up.weight,
        down.source,
        eps=config.eps,
        out_scale=down.x_scale,
        **gate_up.scales,
    )
    linear_gated_residual(lane, down.source, down.weight, norms[1, 2], x, **down.scales)
