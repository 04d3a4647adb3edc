"""The stages of LingBot-VA over ops, written once for every device, precision and shape.

A body runs once, at capture, for one variant of the episode: its first decision, its second, which
has no executed rows of a first frame to look at, and all later ones; where the last two are alike,
for two. It contains no decision that
depends on data: which rows of the pool a pass takes, which it sees and where in time it stands are
read from buffers when the ops run. Exact algebra used here:

* A stage takes its rows of the pool once: the passes of a step would be given the same ones again.
* Both prompts' padding rows are all alike: one key stands for them, counted as often as they are.
* Actions need no second prompt but where their keys and values are written.
* Of a pass that only writes keys and values, the last block ends with these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from ...contract import Contract, ShapeKey
from ...gemm import linear
from ...kernels.action_out_euler import action_out_euler
from ...kernels.copy_rows import copy_rows
from ...kernels.fill import fill
from ...kernels.frame_patches import frame_patches
from ...kernels.guided_step import guided_step
from ...kernels.offset_count import offset_count
from ...kernels.op import Lane
from ...kernels.rms_norm import rms_norm
from ...kernels.span_bias import span_bias
from ..windows import image_input, views_of
from .config import SLOTS, TIME, LingbotConfig
from .encoder import Encoder
from .encoder_layout import places
from .layout import step_sizes
from .net import Net
from .pool import PREDICTED, REAL

Buffers = Mapping[str, Tensor]
Body = Callable[[Lane, Buffers], None]

#: Variants of the stages: an episode's first decision, its second, all later ones.
OPENING, SECOND = 0, 1


def make_body(
    config: LingbotConfig, contract: Contract, stage: str, shape: ShapeKey, variant: int
) -> Body:
    """The body of a stage for one shape and variant; ContractError on an unknown stage."""
    contract.stage(stage)
    names = {spec.name for spec in contract.inputs}
    views = tuple(image_input(view) for view in views_of(names, SLOTS))
    bodies: dict[str, Body] = {
        "prompt": lambda lane, buffers: prompt(lane, buffers, config, shape),
        "commit": lambda lane, buffers: commit(lane, buffers, config, shape, views, variant),
        "video": lambda lane, buffers: video(lane, buffers, config, shape, variant),
        "action": lambda lane, buffers: action(lane, buffers, config, shape, variant),
    }
    return bodies[stage]


def prompt(lane: Lane, buffers: Buffers, config: LingbotConfig, shape: ShapeKey) -> None:
    """Rows of both texts -> keys and values of every block, and how much each key counts."""
    P, D = shape.prompt_tokens, config.net.width
    rows, hidden, x, merged = (
        buffers[f"text_{name}"][: 2 * P] for name in ("rows", "hidden", "x", "kv")
    )
    for index, text in enumerate(buffers["prompt_rows"]):
        copy_rows(lane, text[:P], rows[index * P : (index + 1) * P])
    span_bias(
        lane,
        buffers["prompt_lengths"],
        buffers["prompt_bias"][: 2 * P].view(2, P),
        rows=config.prompt_rows,
    )
    weight, bias = buffers["net.text_in_weight"], buffers["net.text_in_bias"]
    linear(lane, rows, weight, bias, hidden, activation="gelu_tanh")
    linear(lane, hidden, buffers["net.text_mix_weight"], buffers["net.text_mix_bias"], x)
    for block in range(config.net.depth):
        weight, bias = (buffers[f"net.text_kv_{kind}"][block] for kind in ("weight", "bias"))
        linear(lane, x, weight, bias, merged)
        gain, keys = buffers["net.text_k_norm"][block], buffers["prompt_k"][block, : 2 * P]
        rms_norm(lane, merged[:, :D], gain, keys, eps=config.eps)
        copy_rows(lane, merged[:, D:], buffers["prompt_v"][block, : 2 * P])


def commit(
    lane: Lane,
    buffers: Buffers,
    config: LingbotConfig,
    shape: ShapeKey,
    views: tuple[str, ...],
    variant: int,
) -> None:
    """Pictures and executed rows since the last decision -> history; in an episode's first, the
    first picture -> its latent frame.
    """
    tokens, first = buffers["vae_tokens"], buffers["first"]
    count = (1, TIME * (config.frames - 1), TIME * config.frames)[variant]
    each = config.frame_tokens(shape.views)
    seen = tokens[each:] if variant == SECOND else tokens
    _encode(lane, buffers, config, views, count, first if variant == OPENING else seen)
    if variant == OPENING:
        fill(lane, buffers["holders"], value=-1)
        fill(lane, buffers["frame"])
        return
    if variant == SECOND:
        copy_rows(lane, first, tokens[:each])
    net = Net(lane, buffers, config, shape)
    net.take("video", kind=REAL, forgotten=PREDICTED)
    net.enter("video", tokens, prompts=2)
    net.write("video")
    net.take("action", kind=REAL)
    net.enter("action", buffers["executed"], prompts=2)
    net.write("action")
    offset_count(lane, buffers["frame"], buffers["frame"], offset=config.frames)


def _encode(
    lane: Lane,
    buffers: Buffers,
    config: LingbotConfig,
    views: tuple[str, ...],
    count: int,
    out: Tensor,
) -> None:
    """So many pictures of every camera -> tokens of their latent frames."""
    h, w = (side // 2 for side in config.grid(len(views)))
    where = places(config, len(views))
    for index in range(1 + config.tee):
        encoder = Encoder(lane, buffers, config, len(views), index)
        members = range(encoder.group.first, encoder.group.first + encoder.group.views)
        latents = encoder.encode([buffers[views[view]] for view in members], count)
        frames = latents.shape[1]
        grid = out[: frames * h * w].view(frames, h, w, config.token_width)
        for view, latent in zip(members, latents, strict=True):
            frame_patches(lane, latent, grid[:, where[view][0], where[view][1]])


def video(
    lane: Lane, buffers: Buffers, config: LingbotConfig, shape: ShapeKey, variant: int
) -> None:
    """N guided steps from noise to the video of the next chunk; its keys and values."""
    sample, velocity = buffers["net_video"], buffers["net_velocity"]
    known = config.frame_tokens(shape.views) if variant == OPENING else 0
    tokens = config.video_tokens(shape.views)
    net = Net(lane, buffers, config, shape, known=known)
    copy_rows(lane, buffers["noise.video"], sample)
    if known:
        copy_rows(lane, buffers["first"], sample[:known])
    net.take("video", kind=PREDICTED)
    weight, bias = buffers["net.video_out_weight"], buffers["net.video_out_bias"]
    for step, size in enumerate(step_sizes(config.steps, config.shift)):
        net.enter("video", sample, prompts=2)
        net.blocks("video", step, group="video")
        normal = net.last("video", step)
        linear(lane, normal, weight, bias, velocity)
        wanted, other = velocity[known:tokens], velocity[tokens + known :]
        moved = sample[known:]
        guided_step(lane, wanted, other, moved, guidance=config.guidance, dt=size)
    net.enter("video", sample, prompts=2)
    net.write("video")


def action(
    lane: Lane, buffers: Buffers, config: LingbotConfig, shape: ShapeKey, variant: int
) -> None:
    """N steps from noise to the actions of the next chunk; their keys and values."""
    sample = buffers["actions"]
    known = config.frame_rows if variant == OPENING else 0
    net = Net(lane, buffers, config, shape, known=known)
    copy_rows(lane, buffers["noise"], sample)
    if known:
        fill(lane, sample[:known])
    net.take("action", kind=PREDICTED)
    weight, bias = buffers["net.action_out_weight"], buffers["net.action_out_bias"]
    for step, size in enumerate(step_sizes(config.action_steps, config.action_shift)):
        net.enter("action", sample, prompts=1)
        net.blocks("action", step, group="step")
        normal = net.last("action", step)[known:]
        moved = sample[known:]
        action_out_euler(lane, normal, None, None, weight, bias, moved, moved, dt=size)
    net.enter("action", sample, prompts=2)
    net.write("action")
