"""Checkpoint tensors of π0.5 and how they are packed into the static buffers.

Names and shapes are those of openpi's ``model.safetensors`` (812 tensors). Packing merges q|k|v
row-wise, interleaves gate and up rows, stacks the layers, and tabulates what depends on the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...kernels.rope_rows import rope_rows_ref
from ...tensors import TensorSource, TensorSpec
from ..packing import (
    KINDS,
    copy_parts,
    dense,
    fill,
    layer_norm,
    matrix,
    pack_gated_layer,
    stack_both,
    stack_rows,
)
from .config import GemmaConfig, Pi05Config
from .schedule import fill_modulation, norm_names

#: In front of most tensors, in every format that a checkpoint has.
ROOT = "paligemma_with_expert."
_VISION = ROOT + "paligemma.model.vision_tower.vision_model."
_PROJECTOR = ROOT + "paligemma.model.multi_modal_projector.linear"
_TRUNK = ROOT + "paligemma.model.language_model."
_EXPERT = ROOT + "gemma_expert.model."
#: Tied with ``embed_tokens``; openpi saves the table under this name, LeRobot under both or the
#: other. Where both are there, the lookup's own copy counts.
_EMBEDDING = ROOT + "paligemma.lm_head.weight"
_LOOKUP = _TRUNK + "embed_tokens.weight"

#: Gains of the random stand-in. A matrix of gain 1 keeps the size of what it multiplies. Queries
#: are larger, so that attention picks rows instead of averaging all differences away, and the
#: expert's branches are, against their gates of about a third: its actions then depend visibly on
#: images and prompt while the residual stream stays O(1).
_QUERY_GAIN, _BRANCH_GAIN = 2.5, 2.0
_TIME_GAIN, _MODULATION_GAIN, _VELOCITY_GAIN = 1.5, 0.8, 0.8

#: What writes into a residual stream, and the values and hidden units that are mixed before.
_OUTLIERS = (
    "multi_modal_projector.linear.weight",
    *(f"self_attn.{part}_proj.weight" for part in ("v", "o", "out")),
    *(f"mlp.{part}.weight" for part in ("up_proj", "down_proj", "fc2")),
)


def tensors(config: Pi05Config) -> dict[str, TensorSpec]:
    """Every tensor of an openpi checkpoint of these sizes.

    Those that nothing reads are marked, and those that hold outlier channels in trained networks.
    """
    last = f"{_TRUNK}layers.{config.trunk.depth - 1}."
    unread = [f"{_TRUNK}norm.", f"{ROOT}gemma_expert.lm_head.", f"{last}mlp."]
    unread += [f"{last}{part}." for part in ("post_attention_layernorm", "self_attn.q_proj")]
    unread += [f"{last}self_attn.o_proj."]
    return {
        name: replace(
            spec, used=not name.startswith(tuple(unread)), outliers=name.endswith(_OUTLIERS)
        )
        for name, spec in _tensors(config)
    }


def _tensors(config: Pi05Config) -> Iterable[tuple[str, TensorSpec]]:
    yield from _vision_tensors(config)
    trunk, expert = config.trunk, config.expert
    yield from dense(_PROJECTOR, trunk.width, config.vision.width)
    table = (config.vocab, trunk.width)
    yield _EMBEDDING, TensorSpec(table, std=trunk.width**-0.5, aliases=(_LOOKUP,))
    for layer in range(trunk.depth):
        name = f"{_TRUNK}layers.{layer}."
        yield from _gemma_layer(name, trunk, branch_gain=(2 * trunk.depth) ** -0.5)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}{norm}.weight", TensorSpec((trunk.width,), std=0.1)
    yield f"{_TRUNK}norm.weight", TensorSpec((trunk.width,), std=0.1)
    for layer in range(expert.depth):
        yield from _gemma_layer(f"{_EXPERT}layers.{layer}.", expert, branch_gain=_BRANCH_GAIN)
    for name in norm_names(config):
        yield from dense(f"{name}.dense", 3 * expert.width, expert.width, _MODULATION_GAIN)
    unused = (config.vocab, expert.width)
    yield f"{ROOT}gemma_expert.lm_head.weight", TensorSpec(unused)
    yield from dense("action_in_proj", expert.width, config.action_dim)
    yield from dense("action_out_proj", config.action_dim, expert.width, _VELOCITY_GAIN)
    yield from dense("time_mlp_in", expert.width, expert.width, _TIME_GAIN)
    yield from dense("time_mlp_out", expert.width, expert.width, _TIME_GAIN)


def _vision_tensors(config: Pi05Config) -> Iterable[tuple[str, TensorSpec]]:
    vision, width = config.vision, config.vision.width
    embeddings = f"{_VISION}embeddings."
    kernel = (width, 3, config.patch, config.patch)
    # Pixels in [-1, 1] have a root mean square of about 1/2.
    yield (
        f"{embeddings}patch_embedding.weight",
        TensorSpec(kernel, std=2.0 * config.patch_dim**-0.5),
    )
    yield f"{embeddings}patch_embedding.bias", TensorSpec((width,), std=0.1)
    yield (
        f"{embeddings}position_embedding.weight",
        TensorSpec((config.view_tokens, width), std=0.5),
    )
    branch_gain = (2 * vision.depth) ** -0.5
    for layer in range(vision.depth):
        name = f"{_VISION}encoder.layers.{layer}."
        yield from layer_norm(f"{name}layer_norm1", width)
        yield from layer_norm(f"{name}layer_norm2", width)
        for part, gain in (("q", _QUERY_GAIN), ("k", 1.0), ("v", 1.0)):
            yield from dense(f"{name}self_attn.{part}_proj", width, width, gain)
        yield from dense(f"{name}self_attn.out_proj", width, width, branch_gain)
        yield from dense(f"{name}mlp.fc1", vision.ffn, width)
        yield from dense(f"{name}mlp.fc2", width, vision.ffn, branch_gain)
    yield from layer_norm(f"{_VISION}post_layernorm", width)


def _gemma_layer(
    name: str, sizes: GemmaConfig, branch_gain: float
) -> Iterable[tuple[str, TensorSpec]]:
    width = sizes.width
    yield matrix(f"{name}self_attn.q_proj", sizes.q_width, width, _QUERY_GAIN)
    yield matrix(f"{name}self_attn.k_proj", sizes.head_dim, width)
    yield matrix(f"{name}self_attn.v_proj", sizes.head_dim, width)
    yield matrix(f"{name}self_attn.o_proj", width, sizes.q_width, branch_gain)
    yield matrix(f"{name}mlp.gate_proj", sizes.ffn, width)
    yield matrix(f"{name}mlp.up_proj", sizes.ffn, width)
    yield matrix(f"{name}mlp.down_proj", width, sizes.ffn, branch_gain)


def pack(config: Pi05Config, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
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
        _pack_trunk(config, source, buffers)
        _pack_expert(config, source, buffers)


def _pack_vision(config: Pi05Config, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
    patch = source.get(f"{_VISION}embeddings.patch_embedding.weight")
    patch = patch.reshape(config.vision.width, config.patch_dim)
    fill(buffers, "vision.patch_weight", patch)
    buffers["vision.patch_bias"].copy_(source.get(f"{_VISION}embeddings.patch_embedding.bias"))
    buffers["vision.position"].copy_(source.get(f"{_VISION}embeddings.position_embedding.weight"))
    layers = {
        "norm1": "layer_norm1",
        "norm2": "layer_norm2",
        "out": "self_attn.out_proj",
        "fc1": "mlp.fc1",
        "fc2": "mlp.fc2",
    }
    for layer in range(config.vision.depth):
        name = f"{_VISION}encoder.layers.{layer}."
        rows = (f"{name}self_attn.{part}_proj" for part in "qkv")
        stack_both(buffers, "vision.qkv", layer, source, rows)
        copy_parts(buffers, "vision", layer, source, name, layers)
    copy_parts(buffers, "vision", None, source, _VISION, {"post_norm": "post_layernorm"})
    for kind in KINDS:
        fill(buffers, f"projector.{kind}", source.get(f"{_PROJECTOR}.{kind}"))


def _pack_trunk(config: Pi05Config, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
    buffers["trunk.embedding"].copy_(source.get(_EMBEDDING))
    start = torch.zeros(1, dtype=torch.int32, device=buffers["trunk.rope"].device)
    rounded = config.numerics.rope_frequencies == "bfloat16"
    rope_rows_ref(start, buffers["trunk.rope"], theta=config.rope_theta, rounded=rounded)
    last = config.trunk.depth - 1
    for layer in range(config.trunk.depth):
        name = f"{_TRUNK}layers.{layer}."
        buffers["trunk.norm1_weight"][layer].copy_(source.get(f"{name}input_layernorm.weight"))
        if layer == last:
            # Only keys and values leave the last layer: its queries, output and feed-forward
            # weights are never read.
            parts = (f"{name}self_attn.{part}_proj.weight" for part in "kv")
            stack_rows(buffers, "trunk.last_kv_weight", None, source, parts)
            continue
        norm2 = source.get(f"{name}post_attention_layernorm.weight")
        buffers["trunk.norm2_weight"][layer].copy_(norm2)
        pack_gated_layer(buffers, "trunk", layer, source, name)


def _pack_expert(config: Pi05Config, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
    for layer in range(config.expert.depth):
        pack_gated_layer(buffers, "expert", layer, source, f"{_EXPERT}layers.{layer}.")
    fill_modulation(config, source, buffers["expert.modulation"])
    for kind in KINDS:
        buffers[f"expert.action_in_{kind}"].copy_(source.get(f"action_in_proj.{kind}"))
        buffers[f"expert.action_out_{kind}"].copy_(source.get(f"action_out_proj.{kind}"))
