"""Checkpoint tensors of GR00T N1.7, by Isaac-GR00T's names; LeRobot's begin with ``_groot_model.``.

The projections of state and actions hold every embodiment, stored [slot, in, out].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...tensors import TensorSpec
from ..packing import dense, layer_norm, matrix
from .config import GrootConfig
from .tables import ACTION, MODEL

#: In front of every tensor in a LeRobot checkpoint.
LEROBOT = "_groot_model."
ROOT = "backbone.model.model."
VISION, TEXT = f"{ROOT}visual.", f"{ROOT}language_model."
ADAPTER, BLOCKS = f"{ACTION}vl_self_attention.transformer_blocks.", f"{MODEL}transformer_blocks."
_TIED = "backbone.model.lm_head.weight"

#: Gains of the random stand-in. A matrix of gain 1 keeps the size of what it multiplies. Queries
#: are larger, so that attention picks rows instead of averaging all differences away, and so are
#: the head's branches: its actions then depend visibly on images, state and prompt while residual
#: streams stay O(1).
_QUERY_GAIN, _HEAD_NORM, _FEATURE_GAIN = 2.5, 1.6, 0.5
_TIME_GAIN, _MODULATION_GAIN, _VELOCITY_GAIN = 1.5, 0.4, 1.2

#: What writes into a residual stream, and the values and hidden units that are mixed before.
_OUTLIERS = (
    *(f"self_attn.{part}_proj.weight" for part in ("v", "o")),
    *(f"attn1.{part}.weight" for part in ("to_v", "to_out.0")),
    *(f"mlp.{part}.weight" for part in ("up_proj", "down_proj", "linear_fc2")),
    *("attn.proj.weight", "ff.net.2.weight", "merger.linear_fc2.weight"),
)


def tensors(config: GrootConfig) -> dict[str, TensorSpec]:
    """Every tensor of a checkpoint of these sizes.

    Those that nothing reads are marked, and those that hold outlier channels in trained networks.
    """
    unread = (f"{TEXT}norm.", _TIED)
    return {
        name: replace(
            spec,
            used=not name.startswith(unread),
            outliers=name.endswith(_OUTLIERS),
            aliases=(f"{LEROBOT}{name}",),
        )
        for name, spec in _tensors(config)
    }


def _tensors(config: GrootConfig) -> Iterable[tuple[str, TensorSpec]]:
    yield from _vision_tensors(config)
    yield from _text_tensors(config)
    yield from _adapter_tensors(config)
    yield from _head_tensors(config)
    yield from _projections(config)


def _vision_tensors(config: GrootConfig) -> Iterable[tuple[str, TensorSpec]]:
    vision, D, M = config.vision, config.vision.width, config.merged
    kernel = (D, 3, 2, config.patch, config.patch)
    # Pixels in [-1, 1] have a root mean square of about 1/2; the two frames' weights add up.
    std = 2.0 * (2 * config.patch_dim) ** -0.5
    yield f"{VISION}patch_embed.proj.weight", TensorSpec(kernel, std=std)
    yield f"{VISION}patch_embed.proj.bias", TensorSpec((D,), std=0.1)
    yield f"{VISION}pos_embed.weight", TensorSpec((vision.table**2, D), std=0.5)
    branch = (2 * vision.depth) ** -0.5
    for layer in range(vision.depth):
        name = f"{VISION}blocks.{layer}."
        yield from layer_norm(f"{name}norm1", D)
        yield from layer_norm(f"{name}norm2", D)
        # Queries, keys and values are one tensor: scores of gain 1.5^2, values of 1.5.
        yield from dense(f"{name}attn.qkv", 3 * D, D, 1.5)
        yield from dense(f"{name}attn.proj", D, D, branch)
        yield from dense(f"{name}mlp.linear_fc1", vision.ffn, D)
        yield from dense(f"{name}mlp.linear_fc2", D, vision.ffn, branch)
    width = config.text.width
    names = [f"{VISION}deepstack_merger_list.{i}." for i in range(len(vision.features))]
    for name, norm, gain in [
        (f"{VISION}merger.", D, 1.5),
        *((name, M, _FEATURE_GAIN) for name in names),
    ]:
        yield from layer_norm(f"{name}norm", norm)
        yield from dense(f"{name}linear_fc1", M, M)
        yield from dense(f"{name}linear_fc2", width, M, gain)


def _text_tensors(config: GrootConfig) -> Iterable[tuple[str, TensorSpec]]:
    text, D = config.text, config.text.width
    yield f"{TEXT}embed_tokens.weight", TensorSpec((config.vocab, D), std=1.0)
    yield _TIED, TensorSpec((config.vocab, D))
    branch = (2 * text.depth) ** -0.5
    for layer in range(text.depth):
        name = f"{TEXT}layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}{norm}.weight", TensorSpec((D,), mean=1.0, std=0.1)
        yield matrix(f"{name}self_attn.q_proj", text.q_width, D)
        for part in "kv":
            yield matrix(f"{name}self_attn.{part}_proj", text.kv_width, D)
        yield matrix(f"{name}self_attn.o_proj", D, text.q_width, branch)
        for part in "qk":
            spec = TensorSpec((text.head_dim,), mean=_HEAD_NORM, std=0.2)
            yield f"{name}self_attn.{part}_norm.weight", spec
        for part in ("gate", "up"):
            yield matrix(f"{name}mlp.{part}_proj", text.ffn, D)
        yield matrix(f"{name}mlp.down_proj", D, text.ffn, branch)
    yield f"{TEXT}norm.weight", TensorSpec((D,), mean=1.0, std=0.1)


def _adapter_tensors(config: GrootConfig) -> Iterable[tuple[str, TensorSpec]]:
    D, adapter = config.text.width, config.adapter
    yield from layer_norm(f"{ACTION}vlln", D)
    branch = (2 * adapter.depth) ** -0.5
    for layer in range(adapter.depth):
        name = f"{ADAPTER}{layer}."
        yield from layer_norm(f"{name}norm1", D)
        yield from layer_norm(f"{name}norm3", D)
        yield from _attention(f"{name}attn1.", D, D, branch)
        yield from dense(f"{name}ff.net.0.proj", adapter.ffn, D)
        yield from dense(f"{name}ff.net.2", D, adapter.ffn, branch)


def _attention(
    name: str, width: int, context: int, branch: float
) -> Iterable[tuple[str, TensorSpec]]:
    yield from dense(f"{name}to_q", width, width, _QUERY_GAIN)
    for part in "kv":
        yield from dense(f"{name}to_{part}", width, context)
    yield from dense(f"{name}to_out.0", width, width, branch)


def _head_tensors(config: GrootConfig) -> Iterable[tuple[str, TensorSpec]]:
    head, W = config.head, config.head.width
    time = f"{MODEL}timestep_encoder.timestep_embedder.linear_"
    yield from dense(f"{time}1", W, head.time, _TIME_GAIN)
    yield from dense(f"{time}2", W, W, _TIME_GAIN)
    branch = 2.0 * (2 * head.depth) ** -0.5
    for block in range(head.depth):
        name = f"{BLOCKS}{block}."
        yield from dense(f"{name}norm1.linear", 2 * W, W, _MODULATION_GAIN)
        yield from _attention(f"{name}attn1.", W, W if block % 2 else config.text.width, branch)
        yield from dense(f"{name}ff.net.0.proj", head.ffn, W)
        yield from dense(f"{name}ff.net.2", W, head.ffn, branch)
    yield from dense(f"{MODEL}proj_out_1", 2 * W, W, _MODULATION_GAIN)
    yield from dense(f"{MODEL}proj_out_2", head.hidden, W)


def _projections(config: GrootConfig) -> Iterable[tuple[str, TensorSpec]]:
    head, W, A = config.head, config.head.width, config.action_dim
    table = (config.positions, W)
    yield f"{ACTION}position_embedding.weight", TensorSpec(table, std=0.5)
    for name, into, out, gain in (
        ("state_encoder.layer1", config.state_width, head.hidden, 2.0),
        ("state_encoder.layer2", head.hidden, W, 1.5),
        ("action_encoder.W1", A, W, 1.0),
        ("action_encoder.W2", 2 * W, W, 2.0),
        ("action_encoder.W3", W, W, 1.5),
        ("action_decoder.layer1", head.hidden, head.hidden, 1.5),
        ("action_decoder.layer2", head.hidden, A, _VELOCITY_GAIN),
    ):
        weight = TensorSpec((config.embodiments, into, out), std=gain * into**-0.5)
        yield f"{ACTION}{name}.W", weight
        yield f"{ACTION}{name}.b", TensorSpec((config.embodiments, out), std=0.1 * gain)
