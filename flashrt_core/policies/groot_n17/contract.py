"""The execution contract of GR00T N1.7: every buffer, input, output, stage and region it uses.

Letters: V views, T rows of a view in the text stack, P text rows of a bucket, S = V T + P context
rows, H action rows, L layers, N steps, W width of the head. Rows behind the prompt's own length are
hidden from attention through lengths that live on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from ...contract import (
    BufferSpec,
    Contract,
    DType,
    Rate,
    RegionSpec,
    Role,
    ShapeKey,
    StageSpec,
)
from ...errors import ContractError
from ...kernels.row_moments import RowMoments
from ...precision import Precision
from ..plan_buffers import (
    affine,
    gated_layers,
    product,
    quantised,
    require_order,
    scratch,
    static,
    tower_layers,
)
from ..windows import (
    STATE,
    guidance_inputs,
    image_input,
    inputs,
    outputs,
    prompt_bounds,
    window_buffers,
)
from .config import SLOTS, GrootConfig
from .layout import marks
from .sites import SITES, make_precision

_F32 = DType.F32


def make_contract(
    config: GrootConfig,
    shapes: tuple[ShapeKey, ...],
    views: tuple[str, ...],
    precision: str | Precision,
) -> Contract:
    """Declares everything.

    Args:
        config: sizes.
        shapes: what will be captured; all of the config's horizon and steps, with ``len(views)``
            cameras.
        views: names of the cameras in use, in slot order.
        precision: the plan, or its name: the format of every product's weights and input. Its
            base is that of keys and values and of all other activations. Norm parameters, step
            tables, rotary rows, scales, residual streams of the context and the sample itself are
            float32 in every plan.

    Raises:
        OptionError: no such plan.
        ContractError: shapes or views that this configuration cannot run.
    """
    plan = make_precision(precision)
    _check_fit(config, shapes, views)
    activations = tuple(_scratch(config, plan, len(views)))
    buffers = (
        *quantised(_static_buffers(config, plan.wide, len(views)), plan, SITES),
        *window_buffers(config, views),
        *_state(config, plan.wide, len(views)),
        *activations,
    )
    return Contract(
        policy="groot_n17",
        shapes=shapes,
        buffers=buffers,
        inputs=inputs(config, views),
        outputs=outputs(config),
        stages=_stages(config, views, tuple(spec.name for spec in activations)),
        regions={shape: _regions(buffers, shape) for shape in shapes},
        bounds={shape: _bounds(config, shape) for shape in shapes},
    )


def _check_fit(config: GrootConfig, shapes: tuple[ShapeKey, ...], views: tuple[str, ...]) -> None:
    require_order("groot_n17", views, SLOTS)
    least = marks(config, len(views)) + 1
    for shape in shapes:
        fits = least < shape.prompt_tokens <= config.max_prompt_tokens
        sizes = (len(views), config.horizon, config.steps)
        if not fits or (shape.views, shape.horizon, shape.steps) != sizes:
            raise ContractError(
                f"shape {shape}",
                expected=f"{len(views)} views, {least + 1} to {config.max_prompt_tokens} tokens "
                f"(marks of the chat and one word), horizon {config.horizon}, "
                f"{config.steps} steps",
                remedy="set prompt_buckets, horizon or steps",
            )


def _static_buffers(config: GrootConfig, dtype: DType, views: int) -> Iterator[BufferSpec]:
    yield from _vision_buffers(config, dtype, views)
    yield from _context_buffers(config, dtype, views)
    yield from _head_buffers(config, dtype)


def _vision_buffers(config: GrootConfig, dtype: DType, views: int) -> Iterator[BufferSpec]:
    wide, dense = partial(static, dtype=dtype), partial(product, dtype=dtype)
    vision, width = config.vision, config.text.width
    D, M = vision.width, config.merged
    yield wide("vision.patch_weight", D, config.patch_dim, doc="columns: channel, y, x")
    yield static("vision.patch_bias", D)
    yield static("vision.position", config.view_patches, D)
    rope = (views * config.view_patches, vision.head_dim)
    yield static("vision.rope", *rope, doc="cosines, then sines")
    yield from tower_layers("vision", vision.depth, D, vision.ffn, dtype)
    count = len(vision.features)
    yield from affine("merger.norm", D)
    yield from dense("merger.fc1", out=M, into=M)
    yield from dense("merger.fc2", out=width, into=M)
    yield from affine("features.norm", count, M)
    yield from dense("features.fc1", count, out=M, into=M)
    yield from dense("features.fc2", count, out=width, into=M)


def _context_buffers(config: GrootConfig, dtype: DType, views: int) -> Iterator[BufferSpec]:
    text, adapter, rows = config.text, config.adapter, _rows(config, views)
    L, D = text.depth, text.width
    yield static("text.embedding", config.vocab, D, dtype=dtype)
    yield static("text.rope", rows, text.head_dim, doc="cosines, then sines")
    for norm in ("norm1", "norm2"):
        yield static(f"text.{norm}_weight", L, D, doc="gain is 1 + w")
    for norm in ("q_norm", "k_norm"):
        yield static(f"text.{norm}", L, text.head_dim, doc="gain of a head")
    yield from gated_layers("text", L, text, dtype)
    yield from affine("adapter.norm", D)
    yield from tower_layers("adapter", adapter.depth, D, adapter.ffn, dtype)


def _head_buffers(config: GrootConfig, dtype: DType) -> Iterator[BufferSpec]:
    wide, dense = partial(static, dtype=dtype), partial(product, dtype=dtype)
    head, W, D = config.head, config.head.width, config.text.width
    yield from dense("head.text_kv", out=2 * head.text_blocks * W, into=D)
    yield from dense("head.image_kv", out=2 * head.image_blocks * W, into=D)
    yield from dense("head.q", head.text_blocks + head.image_blocks, out=W, into=W)
    yield from dense("head.qkv", head.self_blocks, out=3 * W, into=W)
    yield from dense("head.out", head.depth, out=W, into=W)
    yield from dense("head.fc1", head.depth, out=head.ffn, into=W)
    yield from dense("head.fc2", head.depth, out=W, into=head.ffn)
    table = (config.steps, config.norms, 2, W)
    yield static("head.modulation", *table, doc="gain and shift a step and norm")
    yield static("head.state_in_weight", head.hidden, config.state_width)
    yield static("head.state_in_bias", head.hidden)
    yield from dense("head.state_out", out=W, into=head.hidden)
    yield static("head.action_in_weight", W, config.action_dim)
    yield static("head.action_in_bias", config.steps, W, doc="of each step")
    yield from dense("head.action_mix", out=W, into=W)
    yield wide("head.position", config.horizon, W)
    yield from dense("head.exit", out=head.hidden, into=W)
    yield static("head.action_out_weight", config.action_dim, head.hidden)
    yield static("head.action_out_bias", config.action_dim)


def _rows(config: GrootConfig, views: int) -> int:
    return views * config.view_tokens + config.max_prompt_tokens


def _state(config: GrootConfig, dtype: DType, views: int) -> Iterator[BufferSpec]:
    def state(name: str, *shape: int, dtype: DType = dtype, doc: str = "") -> BufferSpec:
        return BufferSpec(name, shape, dtype, Role.STATE, doc)

    head, D, images = config.head, config.text.width, views * config.view_tokens
    yield state("prompt_embedding", config.max_prompt_tokens, D, doc="of the text rows")
    yield state("text_length", 1, dtype=DType.I32, doc="text rows in use")
    yield state("context_length", 1, dtype=DType.I32, doc="context rows in use")
    yield state("image_embedding", images, D)
    yield state(
        "image_features", len(config.vision.features), images, D, doc="added layer by layer"
    )
    doc = "keys and values of the context, for the blocks that attend to these rows"
    yield state("text_kv", config.max_prompt_tokens, head.text_blocks, 2, head.width, doc=doc)
    yield state("image_kv", images, head.image_blocks, 2, head.width, doc=doc)
    yield state("state_token", 1, head.width, doc="row 0 of the head")


def _scratch(config: GrootConfig, plan: Precision, views: int) -> Iterator[BufferSpec]:
    """Activations. One that products read has a buffer for every format that they read it in.

    Residual streams of the context are float32: in bf16 the roundings of some 90 additions would be
    most of the error. The head's is read as a whole by every block of its kernels, so its bytes are
    time; it has the plan's base.
    """
    into = partial(scratch, plan, SITES)
    vision, text, head = config.vision, config.text, config.head
    patches, images, rows = (
        views * config.view_patches,
        views * config.view_tokens,
        _rows(config, views),
    )
    yield from into("vision_patches", patches, config.patch_dim)
    yield from into("vision_x", patches, vision.width, dtype=_F32)
    yield from into("vision_normal", patches, vision.width)
    yield from into("vision_qkv", patches, 3 * vision.width)
    for part in "qkv":
        yield from into(f"vision_{part}", patches, vision.width)
    yield from into("vision_mixed", patches, vision.width)
    yield from into("vision_hidden", patches, vision.ffn)
    yield from into("merger_normal", images, config.merged)
    yield from into("merger_hidden", images, config.merged)
    yield from into("text_x", rows, text.width, dtype=_F32)
    yield from into("text_normal", rows, text.width)
    yield from into("text_qkv", rows, text.q_width + 2 * text.kv_width)
    yield from into("text_q", rows, text.q_width)
    for part in "kv":
        yield from into(f"text_{part}", rows, text.kv_width)
    yield from into("text_mixed", rows, text.q_width)
    yield from into("text_hidden", rows, text.ffn)
    yield from into("adapter_x", rows, text.width, dtype=_F32)
    yield from into("adapter_normal", rows, text.width)
    yield from into("adapter_qkv", rows, 3 * text.width)
    yield from into("adapter_mixed", rows, text.width)
    yield from into("adapter_hidden", rows, config.adapter.ffn)
    yield from into("adapter_text", config.max_prompt_tokens, text.width)
    yield from into("adapter_images", images, text.width)
    yield from into("adapter_state", 1, head.hidden)
    yield from into("head_x", config.rows, head.width)
    yield from into("head_moments", config.rows, 2 * RowMoments.MOST, dtype=_F32)
    yield from into("head_q", config.rows, head.width)
    yield from into("head_qkv", config.rows, 3 * head.width)
    yield from into("head_mixed", config.rows, head.width)
    yield from into("head_hidden", config.rows, head.ffn)
    yield from into("head_entry", config.horizon, head.width)
    yield from into("head_exit", config.horizon, head.hidden)


def _stages(
    config: GrootConfig, views: tuple[str, ...], activations: tuple[str, ...]
) -> tuple[StageSpec, ...]:
    def group(*starts: str) -> tuple[str, ...]:
        return tuple(name for name in activations if name.startswith(starts))

    vision, rows = group("vision_", "merger_"), group("text_", "adapter_")
    head = group("head_")
    lengths = ("text_length", "context_length")
    images = ("image_embedding", "image_features")
    kept = ("text_kv", "image_kv", "state_token")
    return (
        StageSpec(
            "prompt",
            reads=("prompt_tokens", "prompt_length"),
            writes=("prompt_embedding", *lengths),
            rate=Rate.PROMPT,
            transform=True,
            doc="token ids to embedding rows",
        ),
        StageSpec(
            "vision",
            reads=(*(image_input(view) for view in views), *vision),
            writes=(*images, *vision),
            rate=Rate.OBSERVATION,
            doc="image tower: image rows of the text stack, and what its first layers add to them",
        ),
        StageSpec(
            "context",
            reads=(*images, "prompt_embedding", *lengths, STATE, *rows),
            writes=(*kept, *rows),
            rate=Rate.OBSERVATION,
            requires=("prompt", "vision"),
            doc="text stack and adapter: keys and values for the head; the state's row",
        ),
        StageSpec(
            "action",
            reads=("noise", "actions", *kept, "text_length", *guidance_inputs(config), *head),
            writes=("actions", *head),
            rate=Rate.CHUNK,
            requires=("context",),
            doc="N steps of the diffusion transformer over the context",
        ),
    )


def _bounds(config: GrootConfig, shape: ShapeKey) -> Mapping[str, range]:
    images, bucket = shape.views * config.view_tokens, shape.prompt_tokens
    return {
        **prompt_bounds(config.vocab, bucket),
        "prompt_length": range(1, bucket + 1),  # blocks of the head attend to text rows alone
        "text_length": range(bucket + 1),
        "context_length": range(images, images + bucket + 1),
    }


def _regions(buffers: tuple[BufferSpec, ...], shape: ShapeKey) -> tuple[RegionSpec, ...]:
    """What a capsule holds at the boundary between ``context`` and ``action``."""
    known = {spec.name: spec for spec in buffers}

    def bucket(name: str, doc: str) -> RegionSpec:
        """The rows of the shape's bucket."""
        return RegionSpec.first(known[name], shape.prompt_tokens, doc)

    return (
        bucket("text_kv", "keys and values of the text rows"),
        RegionSpec.whole(known["image_kv"], doc="keys and values of the image rows"),
        RegionSpec.whole(known["state_token"]),
        bucket("prompt_embedding", "needed to make the context anew for the next images"),
        RegionSpec.whole(known["image_embedding"], doc="needed for another prompt"),
        RegionSpec.whole(known["image_features"], doc="likewise"),
        RegionSpec.whole(known["text_length"]),
        RegionSpec.whole(known["context_length"]),
    )
