"""How the tensors of a checkpoint are packed into the static buffers.

Packing merges q|k|v row-wise, interleaves gate and up rows, stacks the layers, sums the two frames
of a patch, tabulates what depends on the step, takes the embodiment's slot of the projections and
multiplies matrices that follow each other without anything between, in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...tensors import TensorSource
from ..packing import KINDS, copy_parts, fill, pack_gated_layer, stack_both
from .config import GrootConfig
from .tables import (
    ACTION,
    MODEL,
    action_times,
    fill_modulation,
    text_rope,
    vision_position,
    vision_rope,
)
from .weights import ADAPTER, BLOCKS, TEXT, VISION

Buffers = Mapping[str, Tensor]


def pack(config: GrootConfig, source: TensorSource, buffers: Buffers) -> None:
    """Fills every static buffer of the contract; what is merged in memory at a time.

    Args:
        config: sizes.
        source: checkpoint.
        buffers: by name, as the contract declares them; values are rounded to their formats.

    Raises:
        WeightsError: a tensor is missing.
    """
    with torch.inference_mode():
        _pack_vision(config, source, buffers)
        _pack_text(config, source, buffers)
        _pack_adapter(config, source, buffers)
        _pack_head(config, source, buffers)
        _pack_projections(config, source, buffers)


def _pack_vision(config: GrootConfig, source: TensorSource, buffers: Buffers) -> None:
    patch = source.get(f"{VISION}patch_embed.proj.weight").float().sum(dim=2)
    fill(buffers, "vision.patch_weight", patch.reshape(config.vision.width, config.patch_dim))
    buffers["vision.patch_bias"].copy_(source.get(f"{VISION}patch_embed.proj.bias"))
    table = source.get(f"{VISION}pos_embed.weight")
    buffers["vision.position"].copy_(vision_position(config, table))
    rope = buffers["vision.rope"]
    rope.copy_(vision_rope(config).repeat(rope.shape[0] // config.view_patches, 1))
    layers = {
        "norm1": "norm1",
        "norm2": "norm2",
        "qkv": "attn.qkv",
        "out": "attn.proj",
        "fc1": "mlp.linear_fc1",
        "fc2": "mlp.linear_fc2",
    }
    for layer in range(config.vision.depth):
        copy_parts(buffers, "vision", layer, source, f"{VISION}blocks.{layer}.", layers)
    parts = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
    copy_parts(buffers, "merger", None, source, f"{VISION}merger.", parts)
    for index in range(len(config.vision.features)):
        name = f"{VISION}deepstack_merger_list.{index}."
        copy_parts(buffers, "features", index, source, name, parts)


def _pack_text(config: GrootConfig, source: TensorSource, buffers: Buffers) -> None:
    buffers["text.embedding"].copy_(source.get(f"{TEXT}embed_tokens.weight"))
    fill_rope(config, buffers)
    for layer in range(config.text.depth):
        name = f"{TEXT}layers.{layer}."
        for norm, origin in (("norm1", "input"), ("norm2", "post_attention")):
            gain = source.get(f"{name}{origin}_layernorm.weight").float()
            buffers[f"text.{norm}_weight"][layer].copy_(gain - 1.0)
        for part in "qk":
            gain = source.get(f"{name}self_attn.{part}_norm.weight")
            buffers[f"text.{part}_norm"][layer].copy_(gain)
        pack_gated_layer(buffers, "text", layer, source, name)


def fill_rope(config: GrootConfig, buffers: Buffers) -> None:
    """Fills the rotary rows of the text stack, which depend on how many images there are."""
    rope = buffers["text.rope"]
    views = (rope.shape[0] - config.max_prompt_tokens) // config.view_tokens
    rope.copy_(text_rope(config, views, config.max_prompt_tokens))


def _pack_adapter(config: GrootConfig, source: TensorSource, buffers: Buffers) -> None:
    copy_parts(buffers, "adapter", None, source, ACTION, {"norm": "vlln"})
    layers = {"norm1": "norm1", "norm2": "norm3", **_BEHIND}
    for layer in range(config.adapter.depth):
        name = f"{ADAPTER}{layer}."
        copy_parts(buffers, "adapter", layer, source, name, layers)
        rows = (f"{name}attn1.to_{part}" for part in "qkv")
        stack_both(buffers, "adapter.qkv", layer, source, rows)


_BEHIND = {"out": "attn1.to_out.0", "fc1": "ff.net.0.proj", "fc2": "ff.net.2"}


def _pack_head(config: GrootConfig, source: TensorSource, buffers: Buffers) -> None:
    fill_modulation(config, source, buffers["head.modulation"])
    blocks = range(config.head.depth)
    for block in blocks:
        name = f"{BLOCKS}{block}."
        copy_parts(buffers, "head", block, source, name, _BEHIND)
        parts, target = ("qkv", "head.qkv") if block % 2 else ("q", "head.q")
        rows = (f"{name}attn1.to_{part}" for part in parts)
        stack_both(buffers, target, block // 2, source, rows)
    for target, first in (("head.text_kv", 0), ("head.image_kv", 2)):
        rows = (f"{BLOCKS}{block}.attn1.to_{part}" for block in blocks[first::4] for part in "kv")
        stack_both(buffers, target, None, source, rows)


def _pack_projections(config: GrootConfig, source: TensorSource, buffers: Buffers) -> None:
    def slot(name: str) -> Tensor:
        return source.get(f"{ACTION}{name}")[config.embodiment].float()

    for target, name in (("state_in", "layer1"), ("state_out", "layer2")):
        buffers[f"head.{target}_weight"].copy_(slot(f"state_encoder.{name}.W").t())
        buffers[f"head.{target}_bias"].copy_(slot(f"state_encoder.{name}.b"))
    # Nothing lies between the encoder's first two matrices: their product takes the actions, and
    # the second's other half makes one row of each step's time.
    of_action, of_time = slot("action_encoder.W2.W").split(config.head.width)
    first = slot("action_encoder.W1.W") @ of_action
    rest = slot("action_encoder.W1.b") @ of_action + slot("action_encoder.W2.b")
    buffers["head.action_in_weight"].copy_(first.t())
    times = action_times(config).to(of_time.device)
    buffers["head.action_in_bias"].copy_(times @ of_time + rest)
    buffers["head.action_mix_weight"].copy_(slot("action_encoder.W3.W").t())
    buffers["head.action_mix_bias"].copy_(slot("action_encoder.W3.b"))
    table = source.get(f"{ACTION}position_embedding.weight")
    buffers["head.position"].copy_(table[: config.horizon])
    # Nor between the transformer's last projection and the decoder's first.
    decoder = slot("action_decoder.layer1.W").t()
    weight, bias = (source.get(f"{MODEL}proj_out_2.{kind}").float() for kind in KINDS)
    buffers["head.exit_weight"].copy_(decoder @ weight)
    buffers["head.exit_bias"].copy_(decoder @ bias + slot("action_decoder.layer1.b"))
    # The other sign: a velocity from the action to the noise (see the action stage).
    buffers["head.action_out_weight"].copy_(-slot("action_decoder.layer2.W").t())
    buffers["head.action_out_bias"].copy_(-slot("action_decoder.layer2.b"))
