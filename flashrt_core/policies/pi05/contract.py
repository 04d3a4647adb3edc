"""The execution contract of π0.5: every buffer, input, output, stage and region it uses.

Letters: V views, T tokens of a view, B prompt bucket, S = V T + B prefix rows, H action rows,
L layers, N steps, d head width. Rows of the prefix cache past the prompt's own length are hidden
from attention through ``prefix_length``, which lives on the device.
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
from ...precision import Precision
from ..plan_buffers import (
    affine,
    gated_layers,
    quantised,
    require_order,
    scratch,
    static,
    tower_layers,
)
from ..windows import (
    guidance_inputs,
    image_input,
    inputs,
    outputs,
    picture_input,
    prompt_bounds,
    window_buffers,
)
from .config import SLOTS, Pi05Config
from .sites import SITES, make_precision


def make_contract(
    config: Pi05Config,
    shapes: tuple[ShapeKey, ...],
    views: tuple[str, ...],
    precision: str | Precision,
) -> Contract:
    """Declares everything.

    Args:
        config: sizes.
        shapes: what will be captured; all of the config's horizon and steps, with ``len(views)``
            cameras or fewer. One with fewer reads the first windows only.
        views: names of the cameras in use, in slot order; absent cameras take no rows at all.
        precision: the plan, or its name: the format of every product's weights and input. Its
            base is that of the K/V cache and of all other activations. Norm parameters, step
            tables, rotary rows, scales and the sample itself are float32 in every plan.

    Raises:
        OptionError: no such plan.
        ContractError: shapes or views that this configuration cannot run.
    """
    plan = make_precision(precision)
    _check_fit(config, shapes, views)
    rows = len(views) * config.view_tokens + max(shape.prompt_tokens for shape in shapes)
    activations = tuple(_scratch(config, plan, len(views), rows))
    buffers = (
        *quantised(_static_buffers(config, plan.wide, rows), plan, SITES),
        *window_buffers(config, views),
        *_state(config, plan.wide, rows),
        *activations,
    )
    return Contract(
        policy="pi05",
        shapes=shapes,
        buffers=buffers,
        inputs=inputs(config, views),
        outputs=outputs(config),
        stages=_stages(config, views, tuple(spec.name for spec in activations)),
        regions={shape: _regions(config, buffers, shape) for shape in shapes},
        bounds={shape: _bounds(config, shape) for shape in shapes},
    )


def _check_fit(config: Pi05Config, shapes: tuple[ShapeKey, ...], views: tuple[str, ...]) -> None:
    require_order("pi05", views, SLOTS)
    for shape in shapes:
        fits = 0 < shape.views <= len(views) and shape.prompt_tokens <= config.max_prompt_tokens
        if not fits or (shape.horizon, shape.steps) != (config.horizon, config.steps):
            raise ContractError(
                f"shape {shape}",
                expected=f"at most {len(views)} views and {config.max_prompt_tokens} tokens, "
                f"horizon {config.horizon}, {config.steps} steps",
            )


def _static_buffers(config: Pi05Config, dtype: DType, rows: int) -> Iterator[BufferSpec]:
    wide = partial(static, dtype=dtype)
    vision, trunk, expert = config.vision, config.trunk, config.expert
    D = vision.width
    yield wide("vision.patch_weight", D, config.patch_dim, doc="columns: channel, y, x")
    yield static("vision.patch_bias", D)
    yield static("vision.position", config.view_tokens, D)
    yield from tower_layers("vision", vision.depth, D, vision.ffn, dtype)
    yield from affine("vision.post_norm", D)
    yield wide("projector.weight", trunk.width, D)
    yield static("projector.bias", trunk.width)

    yield wide("trunk.embedding", config.vocab, trunk.width)
    yield static("trunk.rope", rows, trunk.head_dim, doc="cosines, then sines")
    yield static("trunk.norm1_weight", trunk.depth, trunk.width, doc="gain is 1 + w")
    last = (2 * trunk.head_dim, trunk.width)
    yield wide("trunk.last_kv_weight", *last, doc="last layer: keys and values only")
    if trunk.depth > 1:
        yield static("trunk.norm2_weight", trunk.depth - 1, trunk.width)
        yield from gated_layers("trunk", trunk.depth - 1, trunk, dtype)
    yield from gated_layers("expert", expert.depth, expert, dtype)
    table = (config.steps, config.norms, 3, expert.width)
    yield static("expert.modulation", *table, doc="scale, shift, gate a step and norm")
    yield static("expert.action_in_weight", expert.width, config.action_dim)
    yield static("expert.action_in_bias", expert.width)
    yield static("expert.action_out_weight", config.action_dim, expert.width)
    yield static("expert.action_out_bias", config.action_dim)


def _state(config: Pi05Config, dtype: DType, rows: int) -> Iterator[BufferSpec]:
    trunk = config.trunk
    cache = (trunk.depth, 2, rows + config.horizon, trunk.head_dim)
    doc = "K and V of every layer: S prefix rows, then H rows of the step at work"
    yield BufferSpec("kv", cache, dtype, Role.STATE, doc)
    prompt = (config.max_prompt_tokens, trunk.width)
    yield BufferSpec("prompt_embedding", prompt, dtype, Role.STATE, "scaled embedding rows")
    yield BufferSpec("expert_rope", (config.horizon, trunk.head_dim), DType.F32, Role.STATE)
    yield BufferSpec("prefix_length", (1,), DType.I32, Role.STATE, "prefix rows in use")


def _scratch(config: Pi05Config, plan: Precision, views: int, rows: int) -> Iterator[BufferSpec]:
    """Activations. One that products read has a buffer for every format that they read it in."""
    into = partial(scratch, plan, SITES)

    # A residual stream takes up to 54 additions: in bf16 their roundings are most of the error.

    vision, trunk, expert = config.vision, config.trunk, config.expert
    image_rows = views * config.view_tokens
    yield from into("vision_patches", image_rows, config.patch_dim)
    yield from into("vision_x", image_rows, vision.width, dtype=DType.F32)
    yield from into("vision_normal", image_rows, vision.width)
    yield from into("vision_qkv", image_rows, 3 * vision.width)
    yield from into("vision_mixed", image_rows, vision.width)
    yield from into("vision_hidden", image_rows, vision.ffn)
    yield from into("trunk_x", rows, trunk.width, dtype=DType.F32)
    yield from into("trunk_normal", rows, trunk.width)
    yield from into("trunk_qkv", rows, trunk.q_width + 2 * trunk.head_dim)
    yield from into("trunk_q", rows, trunk.q_width)
    yield from into("trunk_mixed", rows, trunk.q_width)
    yield from into("trunk_hidden", rows, trunk.ffn)
    yield from into("expert_x", config.horizon, expert.width)
    yield from into("expert_q", config.horizon, expert.q_width)
    yield from into("expert_mixed", config.horizon, expert.q_width)
    yield from into("expert_hidden", config.horizon, expert.ffn)


def _stages(
    config: Pi05Config, views: tuple[str, ...], scratch: tuple[str, ...]
) -> tuple[StageSpec, ...]:
    vision, trunk, expert = (
        tuple(name for name in scratch if name.startswith(f"{group}_"))
        for group in ("vision", "trunk", "expert")
    )
    prompt = StageSpec(
        "prompt",
        reads=("prompt_tokens", "prompt_length"),
        writes=("prompt_embedding", "expert_rope", "prefix_length"),
        rate=Rate.PROMPT,
        transform=True,
        doc="token ids to embedding rows; rotary rows of the action chunk behind the prefix",
    )
    images = tuple(image_input(view) for view in views)
    if config.camera_bytes:
        images += tuple(picture_input(view) for view in views)
    context = StageSpec(
        "context",
        reads=(*images, "prompt_embedding", "prefix_length", *vision, *trunk),
        writes=("kv", *vision, *trunk),
        rate=Rate.OBSERVATION,
        requires=("prompt",),
        doc="image tower and trunk: keys and values of the prefix in every layer",
    )
    action = StageSpec(
        "action",
        reads=(
            *("noise", "actions", "kv", "prefix_length", "expert_rope"),
            *guidance_inputs(config),
            *expert,
        ),
        writes=("actions", "kv", *expert),
        rate=Rate.CHUNK,
        requires=("context",),
        doc="N denoising steps of the action expert over the prefix",
    )
    return (prompt, context, action)


def _bounds(config: Pi05Config, shape: ShapeKey) -> Mapping[str, range]:
    images, bucket = shape.views * config.view_tokens, shape.prompt_tokens
    return {
        **prompt_bounds(config.vocab, bucket),
        "prefix_length": range(images, images + bucket + 1),
    }


def _regions(
    config: Pi05Config, buffers: tuple[BufferSpec, ...], shape: ShapeKey
) -> tuple[RegionSpec, ...]:
    """What a capsule holds at the boundary between ``context`` and ``action``."""
    known = {spec.name: spec for spec in buffers}
    kv = known["kv"]
    row = config.trunk.head_dim * kv.dtype.itemsize
    prefix = shape.views * config.view_tokens + shape.prompt_tokens
    return (
        RegionSpec(
            "context_kv",
            "kv",
            offset=0,
            row_bytes=prefix * row,
            rows=2 * config.trunk.depth,
            pitch=kv.shape[2] * row,
            doc="prefix rows of K and V in every layer",
        ),
        RegionSpec.first(
            known["prompt_embedding"],
            shape.prompt_tokens,
            doc="needed to make the context anew for the next images",
        ),
        RegionSpec.whole(known["expert_rope"]),
        RegionSpec.whole(known["prefix_length"]),
    )
