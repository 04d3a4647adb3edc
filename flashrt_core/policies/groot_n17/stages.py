"""The stages of GR00T N1.7 over ops, written once for every device, precision and shape.

A product's operands come from :func:`.sites.dense`, with the scales that the precision plan gives
them; whoever writes a product's input writes it in that format, through ``out_scale``.

A body runs once, at capture, with the buffers of the contract. It contains no decision that depends
on data: what changes between decisions (images, state, prompt, its length, noise) is read from
buffers when the ops run. Exact algebra used here: a still image's two frames are one patch, keys
and values of the context are made once and only of the rows that a block attends to, everything
that depends on the step is a table, and the head's last projection is part of the decoder's first.
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
from ...kernels.add_rows import add_rows
from ...kernels.attention import attention
from ...kernels.copy_rows import copy_rows
from ...kernels.embed_rows import embed_rows
from ...kernels.image_patches import image_patches
from ...kernels.layer_norm import layer_norm
from ...kernels.layer_norm_linear import layer_norm_linear
from ...kernels.offset_count import offset_count
from ...kernels.op import Lane
from ...kernels.rope_attention import rope_attention
from ...kernels.row_moments import RowMoments
from ..dense import Dense
from ..layers import gated_layer, tower_layer
from ..windows import STATE, image_input, views_of
from .config import SLOTS, GrootConfig
from .head import head_block
from .layout import image_rows, text_runs
from .sites import dense
from .tables import step_size, time_left

Buffers = Mapping[str, Tensor]
Body = Callable[[Lane, Buffers], None]


def make_body(config: GrootConfig, contract: Contract, stage: str, shape: ShapeKey) -> Body:
    """The body of a stage for one shape; ContractError on an unknown stage."""
    contract.stage(stage)
    views = views_of({spec.name for spec in contract.inputs}, SLOTS)
    bodies: dict[str, Body] = {
        "prompt": lambda lane, buffers: prompt(lane, buffers, config, shape),
        "vision": lambda lane, buffers: vision(lane, buffers, config, views),
        "context": lambda lane, buffers: context(lane, buffers, config, shape),
        "action": lambda lane, buffers: action(lane, buffers, config, shape),
    }
    return bodies[stage]


def prompt(lane: Lane, buffers: Buffers, config: GrootConfig, shape: ShapeKey) -> None:
    """Token ids -> embedding rows, and how many rows there are."""
    bucket, length = shape.prompt_tokens, buffers["prompt_length"]
    tokens, rows = buffers["prompt_tokens"][:bucket], buffers["prompt_embedding"][:bucket]
    embed_rows(lane, tokens, length, buffers["text.embedding"], rows, scale=1.0)
    offset_count(lane, length, buffers["text_length"], offset=0)
    images = shape.views * config.view_tokens
    offset_count(lane, length, buffers["context_length"], offset=images)


def vision(lane: Lane, buffers: Buffers, config: GrootConfig, views: tuple[str, ...]) -> None:
    """Image tower over all views at once -> image rows, and the features of some of its layers."""
    patch, x = dense(buffers, "vision.patch"), buffers["vision_x"]
    each = config.view_patches
    for index, view in enumerate(views):
        rows = patch.source[index * each : (index + 1) * each]
        image = buffers[image_input(view)]
        image_patches(lane, image, rows, patch=config.patch, merge=config.merge)
    position, bias = buffers["vision.position"], buffers["vision.patch_bias"]
    linear(lane, patch.source, patch.weight, bias, x, residual=position, **patch.scales)
    for layer in range(config.vision.depth):
        vision_layer(lane, buffers, config, layer, len(views))
        if layer in config.vision.features:
            feature(lane, buffers, config, config.vision.features.index(layer))
    # Groups of patches follow each other, so that four rows are one.
    first, second = dense(buffers, "merger.fc1"), dense(buffers, "merger.fc2")
    gain, offset = buffers["merger.norm_weight"], buffers["merger.norm_bias"]
    normal = first.source.view(x.shape)
    layer_norm(lane, x, gain, offset, normal, eps=config.eps, out_scale=first.x_scale)
    biases = buffers["merger.fc1_bias"], buffers["merger.fc2_bias"]
    merged(lane, first, second, biases, buffers["image_embedding"])


def feature(lane: Lane, buffers: Buffers, config: GrootConfig, index: int) -> None:
    """The stream as it is -> what the text stack adds to its image rows behind layer ``index``."""
    first, second = (dense(buffers, f"features.{name}", index) for name in ("fc1", "fc2"))
    gain, offset = (buffers[f"features.norm_{kind}"][index] for kind in ("weight", "bias"))
    groups = buffers["vision_x"].view(first.source.shape)
    layer_norm(lane, groups, gain, offset, first.source, eps=config.eps, out_scale=first.x_scale)
    biases = buffers["features.fc1_bias"][index], buffers["features.fc2_bias"][index]
    merged(lane, first, second, biases, buffers["image_features"][index])


def merged(
    lane: Lane, first: Dense, second: Dense, biases: tuple[Tensor, Tensor], out: Tensor
) -> None:
    """Normalised groups of patches in the source of ``first`` -> rows of the text stack."""
    linear(
        lane,
        first.source,
        first.weight,
        biases[0],
        second.source,
        activation="gelu",
        out_scale=second.x_scale,
        **first.scales,
    )
    linear(lane, second.source, second.weight, biases[1], out, **second.scales)


def vision_layer(lane: Lane, buffers: Buffers, config: GrootConfig, layer: int, views: int) -> None:
    """One layer of the tower; a row sees the rows of its own view only."""
    head_dim = config.vision.head_dim
    q, k, v = (buffers[f"vision_{part}"] for part in "qkv")

    def mix(merged_qkv: Tensor, mixed: Tensor, out_scale: Tensor | None) -> None:
        rope_attention(
            lane,
            merged_qkv,
            buffers["vision.rope"],
            q,
            k,
            v,
            mixed,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            segments=views,
            out_scale=out_scale,
        )

    tower_layer(lane, buffers, dense, "vision", layer, buffers["vision_x"], config.eps, mix)


def context(lane: Lane, buffers: Buffers, config: GrootConfig, shape: ShapeKey) -> None:
    """Image rows, prompt rows and state -> keys and values for the head, and its first row."""
    views, bucket = shape.views, shape.prompt_tokens
    images = views * config.view_tokens
    rows = images + bucket
    x = buffers["text_x"][:rows]  # [S, D]
    runs = text_runs(config, views, bucket)
    places = [image_rows(config, view) for view in range(views)]
    blocks = [
        slice(view * config.view_tokens, (view + 1) * config.view_tokens) for view in range(views)
    ]
    for run in runs:
        copy_rows(lane, buffers["prompt_embedding"][run.texts], x[run.rows])
    for place, block in zip(places, blocks, strict=True):
        copy_rows(lane, buffers["image_embedding"][block], x[place])
    for layer in range(config.text.depth):
        text_layer(lane, buffers, config, layer, rows)
        if layer < len(config.vision.features):
            features = buffers["image_features"][layer][:images]
            add_rows(lane, features.view(views, -1), views_as_rows(x, places))
    # From here on image rows come first.
    stream = buffers["adapter_x"][:rows]
    gain, offset = buffers["adapter.norm_weight"], buffers["adapter.norm_bias"]
    parts = [(x[place], stream[block]) for place, block in zip(places, blocks, strict=True)]
    parts += [(x[run.rows], stream[images:][run.texts]) for run in runs]
    for source, target in parts:
        layer_norm(lane, source, gain, offset, target, eps=config.adapter_eps)
    for layer in range(config.adapter.depth):
        adapter_layer(lane, buffers, config, layer, rows)
    keys_values(lane, buffers, "image", stream[:images])
    keys_values(lane, buffers, "text", stream[images:])
    state_row(lane, buffers)


def views_as_rows(x: Tensor, places: list[slice]) -> Tensor:
    """[views, numbers of a view]: image rows of a stream, equally far apart from view to view."""
    first, width = places[0], x.shape[1]
    apart = places[1].start - first.start if len(places) > 1 else first.stop - first.start
    size = (len(places), (first.stop - first.start) * width)
    return x.as_strided(size, (apart * width, 1), x.storage_offset() + first.start * width)


def text_layer(lane: Lane, buffers: Buffers, config: GrootConfig, layer: int, rows: int) -> None:
    """One causal layer on the residual stream; rows of padding reach no row in use."""
    head_dim = config.text.head_dim
    x, q, k, v = (buffers[f"text_{name}"][:rows] for name in ("x", *"qkv"))

    def mix(merged_qkv: Tensor, mixed: Tensor, out_scale: Tensor | None) -> None:
        rope_attention(
            lane,
            merged_qkv,
            buffers["text.rope"][:rows],
            q,
            k,
            v,
            mixed,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            q_norm=buffers["text.q_norm"][layer],
            k_norm=buffers["text.k_norm"][layer],
            eps=config.eps,
            causal=True,
            out_scale=out_scale,
        )

    gated_layer(lane, buffers, dense, "text", layer, x, config.eps, mix, activation="silu")


def adapter_layer(lane: Lane, buffers: Buffers, config: GrootConfig, layer: int, rows: int) -> None:
    """One layer of the adapter; every row in use sees every other."""
    width, heads = config.text.width, config.adapter.heads

    def mix(merged_qkv: Tensor, mixed: Tensor, out_scale: Tensor | None) -> None:
        q, k, v = merged_qkv.view(rows, 3, heads, width // heads).unbind(1)
        attention(
            lane,
            q,
            k,
            v,
            mixed,
            scale=(width // heads) ** -0.5,
            prefix_length=buffers["context_length"],
            prefix_rows=rows,
            out_scale=out_scale,
        )

    x = buffers["adapter_x"][:rows]
    tower_layer(lane, buffers, dense, "adapter", layer, x, config.adapter_eps, mix)


def keys_values(lane: Lane, buffers: Buffers, kind: str, stream: Tensor) -> None:
    """Rows of one kind -> their keys and values for all blocks that attend to them."""
    site, rows = dense(buffers, f"head.{kind}_kv"), stream.shape[0]
    copy_rows(lane, stream, site.source[:rows], out_scale=site.x_scale)
    out = buffers[f"{kind}_kv"].flatten(1)[:rows]
    bias = buffers[f"head.{kind}_kv_bias"]
    linear(lane, site.source[:rows], site.weight, bias, out, **site.scales)


def state_row(lane: Lane, buffers: Buffers) -> None:
    """The robot's state -> row 0 of the head."""
    weight, bias = (buffers[f"head.state_in_{kind}"] for kind in ("weight", "bias"))
    hidden = buffers["adapter_state"]
    action_in(lane, buffers[STATE], weight, bias, hidden, activation="relu")
    weight, bias = (buffers[f"head.state_out_{kind}"] for kind in ("weight", "bias"))
    linear(lane, hidden, weight, bias, buffers["state_token"])


def action(lane: Lane, buffers: Buffers, config: GrootConfig, shape: ShapeKey) -> None:
    """N Euler steps from the noise window to the action window; the noise stays as it is.

    The network's velocity points from the noise to the action; its last weights are stored with
    the other sign, so that time runs from 1 to 0 as everywhere.
    """
    x, sample, out = buffers["head_x"], buffers["noise"], buffers["actions"]  # [1 + H, W], [H, A]
    entry, exit_rows = buffers["head_entry"], buffers["head_exit"]
    guide: dict[str, Any] = {}
    if config.real_time_chunking:
        guide = {"previous": buffers[PREVIOUS], "guidance": buffers[GUIDANCE]}
    for step in range(shape.steps):
        if guide:
            guide["time"] = time_left(shape.steps, step)
        table = buffers["head.modulation"][step]  # [norms, 2, W]
        weight, bias = buffers["head.action_in_weight"], buffers["head.action_in_bias"][step]
        action_in(lane, sample, weight, bias, entry, activation="silu")
        weight, bias = buffers["head.action_mix_weight"], buffers["head.action_mix_bias"]
        linear(lane, entry, weight, bias, x[1:], residual=buffers["head.position"])
        copy_rows(lane, buffers["state_token"], x[:1])
        moments = RowMoments(buffers["head_moments"])
        for block in range(config.head.depth):
            head_block(lane, buffers, config, block, table[block], shape.prompt_tokens, moments)
        gain, shift = table[-1]
        weight, bias = buffers["head.exit_weight"], buffers["head.exit_bias"]
        last = (x[1:], gain, shift, weight, bias, exit_rows)
        layer_norm_linear(lane, *last, eps=config.eps, activation="relu")
        weight, bias = buffers["head.action_out_weight"], buffers["head.action_out_bias"]
        ends = (exit_rows, None, None, weight, bias, sample, out)
        action_out_euler(lane, *ends, dt=step_size(shape.steps), **guide)
        sample = out
