"""The execution contract of LingBot-VA: every buffer, input, output, stage and region it uses.

Letters: V views, F latent frames of a chunk, M tokens of a pass and prompt, D width, L blocks, R
rows of the pool, P prompt rows of a bucket, H action rows, A width of an action row. Two prompts,
the instruction and the empty one, lie behind each other in everything that is made for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from ...contract import (
    BufferSpec,
    Contract,
    DType,
    HistorySpec,
    InputSpec,
    OutputSpec,
    Rate,
    RegionSpec,
    Role,
    ShapeKey,
    StageSpec,
    Update,
)
from ...errors import ContractError, OptionError
from ...precision import Precision
from ..plan_buffers import quantised, require_order
from ..windows import image_input
from .buffers import scratch_buffers, state_buffers, static_buffers
from .config import SLOTS, TIME, LingbotConfig
from .pool import PREDICTED, REAL, real_runs
from .sites import SITES, make_precision

_F32 = DType.F32
#: Passes and latent frames of an episode. They are counted in int32, and a robot that decides ten
#: times a second takes years to come to these.
_MOST = 1 << 30


def make_contract(
    config: LingbotConfig,
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
        precision: the plan, or its name. Its base is that of the pool and of all activations; norm
            parameters, step tables, rotary rows, scales and samples are float32 in every plan.

    Raises:
        OptionError: no such plan, or another number of views than the pictures' places have.
        ContractError: shapes or views that this configuration cannot run.
    """
    plan = make_precision(precision)
    _check_fit(config, shapes, views)
    count = len(views)
    activations = tuple(scratch_buffers(config, plan, count))
    buffers = (
        *quantised(static_buffers(config, plan, count), plan, SITES),
        *_windows(config, views),
        *state_buffers(config, plan.wide, count),
        *activations,
    )
    known = {spec.name: spec for spec in buffers}
    runs, period = real_runs(config, count)
    return Contract(
        policy="lingbot_va",
        shapes=shapes,
        buffers=buffers,
        inputs=_inputs(config, views),
        outputs=(_output(config),),
        stages=_stages(config, views, tuple(spec.name for spec in activations)),
        regions={shape: _regions(known, shape, ((0, config.capacity(count)),)) for shape in shapes},
        history=HistorySpec(
            pictures=config.pictures,
            rows=(config.horizon - config.frame_rows, config.horizon, config.horizon),
            stride=config.stride,
            pictured=tuple(image_input(view) for view in views),
            executed="executed",
            regions={
                shape: tuple(_regions(known, shape, each) for each in runs) for shape in shapes
            },
            period=period,
        ),
        bounds={shape: _bounds(shape) for shape in shapes},
    )


def _check_fit(config: LingbotConfig, shapes: tuple[ShapeKey, ...], views: tuple[str, ...]) -> None:
    require_order("lingbot_va", views, SLOTS)
    if config.tee and len(views) != 3:
        raise OptionError(
            "option 'views'",
            expected=f"{', '.join(SLOTS)}: pictures of the last two stand side by side, at half "
            "the size, above the first's (tee=1, robotwin_tshape)",
            got=list(views),
        )
    for shape in shapes:
        fits = 2 < shape.prompt_tokens <= config.max_prompt_tokens
        sizes = (len(views), config.horizon, config.steps)
        if not fits or (shape.views, shape.horizon, shape.steps) != sizes:
            raise ContractError(
                f"shape {shape}",
                expected=f"{len(views)} views, 3 to {config.max_prompt_tokens} tokens, horizon "
                f"{config.horizon}, {config.steps} steps",
                remedy="set prompt_buckets, frames or steps",
            )


def _output(config: LingbotConfig) -> OutputSpec:
    shape, doc = (config.horizon, config.action_dim), "a robot's numbers have their own columns"
    return OutputSpec("actions", "actions", shape, _F32, unit="normalised", doc=doc)


def _window(name: str, *shape: int, dtype: DType = _F32, doc: str = "") -> BufferSpec:
    return BufferSpec(name, shape, dtype, Role.SWAP, doc)


def _windows(config: LingbotConfig, views: tuple[str, ...]) -> Iterator[BufferSpec]:
    """In the order of their addresses: what is new in every decision lies together."""
    chunk = (config.horizon, config.action_dim)
    yield _window("noise", *chunk)
    yield _window("noise.video", config.video_tokens(len(views)), config.token_width)
    yield _window("executed", *chunk)
    for index, view in enumerate(views):
        height, width = config.picture(index)
        shape = (TIME * config.frames, height // 2, width // 2, 12)
        yield _window(image_input(view), *shape, doc="squares of four pixels: channel, x, y")
    yield _window("prompt_rows", 2, config.max_prompt_tokens, config.net.text)
    yield _window("prompt_lengths", 2, dtype=DType.I32)
    yield _window("actions", *chunk, doc="the sample while it is denoised")


def _inputs(config: LingbotConfig, views: tuple[str, ...]) -> tuple[InputSpec, ...]:
    known = {spec.name: spec for spec in _windows(config, views)}

    def make(name: str, rate: Rate, unit: str = "", doc: str = "") -> InputSpec:
        spec, staged = known[name], rate is Rate.PROMPT
        update, transform = (Update.STAGED, "prompt") if staged else (Update.SWAP, None)
        return InputSpec(name, name, spec.shape, spec.dtype, update, rate, transform, unit, doc)

    seen = "seen since the last decision, the oldest first; zeros behind"
    return (
        *(make(image_input(view), Rate.OBSERVATION, "RGB in -1..1", seen) for view in views),
        make("executed", Rate.OBSERVATION, "normalised", "what was done with the last chunk"),
        make(
            "prompt_rows",
            Rate.PROMPT,
            doc="of the text encoder, instruction and empty text; "
            "row 0 is zero and stands for all padding, zeros behind a text",
        ),
        make("prompt_lengths", Rate.PROMPT, "rows"),
        make("noise", Rate.CHUNK, doc="standard normal"),
        make("noise.video", Rate.CHUNK, doc="standard normal, in tokens"),
    )


def _stages(
    config: LingbotConfig, views: tuple[str, ...], activations: tuple[str, ...]
) -> tuple[StageSpec, ...]:
    def group(*starts: str) -> tuple[str, ...]:
        return tuple(name for name in activations if name.startswith(starts))

    pool = ("pool", "holders", "kinds")
    prompt = ("prompt_k", "prompt_v", "prompt_bias")
    kept = tuple(f"kept{index}" for index in range(1 + config.tee))
    net, vae, text = group("net_"), group("vae_"), group("text_")
    stage = partial(StageSpec, requires=("prompt",))
    return (
        StageSpec(
            "prompt",
            reads=("prompt_rows", "prompt_lengths", *text),
            writes=(*prompt, *text),
            rate=Rate.PROMPT,
            transform=True,
            doc="rows of both texts to keys and values of every block",
        ),
        stage(
            "commit",
            reads=(
                *(image_input(view) for view in views),
                *("executed", "first", "frame", *kept, *pool, *prompt, *net, *vae),
            ),
            writes=("first", "frame", *kept, *pool, *net, *vae),
            rate=Rate.OBSERVATION,
            variants=3,
            doc="pictures and executed rows since the last decision into the history",
        ),
        stage(
            "video",
            reads=("noise.video", "first", "frame", *pool, *prompt, *net),
            writes=(*pool, *net),
            rate=Rate.CHUNK,
            requires=("prompt", "commit"),
            variants=2,
            doc="N steps of what will be seen, and its keys and values",
        ),
        stage(
            "action",
            reads=("noise", "actions", "frame", *pool, *prompt, *net),
            writes=("actions", *pool, *net),
            rate=Rate.CHUNK,
            requires=("prompt", "commit", "video"),
            variants=2,
            doc="N steps of what is to be done, and its keys and values",
        ),
    )


def _bounds(shape: ShapeKey) -> Mapping[str, range]:
    return {
        "prompt_lengths": range(shape.prompt_tokens),  # row 0 is the padding's
        "holders": range(-1, _MOST),
        "kinds": range(REAL, PREDICTED + 1),
        "frame": range(_MOST),
    }


def _regions(
    known: dict[str, BufferSpec], shape: ShapeKey, runs: tuple[tuple[int, int], ...]
) -> tuple[RegionSpec, ...]:
    """What a capsule holds where a chunk ends, with these rows of the pool."""
    pool = known["pool"]  # [L, 2, 2, R, D]
    row = pool.shape[-1] * pool.dtype.itemsize
    pitch, count = pool.shape[3] * row, pool.nbytes // (pool.shape[3] * row)
    found = [
        RegionSpec(
            f"pool.{index}" if index else "pool",
            "pool",
            first * row,
            (end - first) * row,
            count,
            pitch,
            "keys and values of what was seen and done",
        )
        for index, (first, end) in enumerate(runs)
    ]
    for name in ("prompt_k", "prompt_v"):
        spec = known[name]  # [L, 2 P, D]
        rows = 2 * shape.prompt_tokens * row
        layer = spec.nbytes // spec.shape[0]
        found.append(RegionSpec(name, name, 0, rows, spec.shape[0], layer, "of the prompt"))
    bias = known["prompt_bias"]
    found.append(RegionSpec("prompt_bias", "prompt_bias", 0, 8 * shape.prompt_tokens))
    others = [
        RegionSpec.whole(spec)
        for spec in known.values()
        if spec.role is Role.STATE and spec.name not in ("pool", "prompt_k", "prompt_v", bias.name)
    ]
    return (*found, *others)
