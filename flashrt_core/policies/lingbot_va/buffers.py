"""Buffers of LingBot-VA that no host writes: weights, what lives on, activations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from math import prod

from ...contract import BufferSpec, DType, Role
from ...precision import Precision
from ..plan_buffers import affine, product, scratch, static
from .config import LingbotConfig
from .encoder_layout import convs, groups, kept_numbers, most_numbers
from .sites import SITES, own_weights

_F32, _I32 = DType.F32, DType.I32
#: Flat buffers of a group of cameras that activations of the video encoder take turns in.
FLATS = 5


def static_buffers(config: LingbotConfig, plan: Precision, views: int) -> Iterator[BufferSpec]:
    """Weights and tables."""
    yield from _encoder_buffers(config, plan.wide)
    yield from _net_buffers(config, plan.wide, views)
    shapes = _product_shapes(config)
    for name in own_weights(plan):
        out, into = shapes[name.partition(".")[2]]
        yield static(f"{name}_weight", config.net.depth, out, into, dtype=plan.wide)


def _product_shapes(config: LingbotConfig) -> dict[str, tuple[int, int]]:
    """Of a block: rows and columns."""
    D, ffn = config.net.width, config.net.ffn
    square = (D, D)
    return {
        "qkv": (3 * D, D),
        "out": square,
        "text_q": square,
        "text_out": square,
        "fc1": (ffn, D),
        "fc2": (D, ffn),
    }


def _encoder_buffers(config: LingbotConfig, dtype: DType) -> Iterator[BufferSpec]:
    vae = config.vae
    for conv in convs(config):
        yield static(f"vae.{conv.name}_weight", *conv.shape, dtype=dtype)
        yield static(f"vae.{conv.name}_bias", conv.shape[0])
    for name, width in norms(config).items():
        yield static(f"vae.{name}_norm", width, doc="gain is 1 + w")
    channels, last = vae.channels, vae.channels[-1]
    for level, (into, out) in enumerate(pairwise(channels)):
        if into != out:
            yield from product(f"vae.{level}.short", out=out, into=into, dtype=dtype)
    for name, width in (("mid.qkv", 3 * last), ("mid.proj", last)):
        yield from product(f"vae.{name}", out=width, into=last, dtype=dtype)


def norms(config: LingbotConfig) -> dict[str, int]:
    """Norms of the video encoder: name -> width."""
    vae, found = config.vae, {}
    for level, (into, out) in enumerate(pairwise(vae.channels)):
        for block in range(vae.blocks):
            found[f"{level}.{block}.1"] = out if block else into
            found[f"{level}.{block}.2"] = out
    last = vae.channels[-1]
    for block in range(2):
        found |= {f"mid.{block}.1": last, f"mid.{block}.2": last}
    return found | {"mid.attention": last, "out": last}


def _net_buffers(config: LingbotConfig, dtype: DType, views: int) -> Iterator[BufferSpec]:
    net, L, D = config.net, config.net.depth, config.net.width
    dense = partial(product, dtype=dtype)
    for name, (out, into) in _product_shapes(config).items():
        yield from dense(f"net.{name}", L, out=out, into=into)
    for name in ("q_norm", "k_norm"):
        yield static(f"net.{name}", L, D, doc="gain of all heads")
    for name in ("text_q_norm", "text_k_norm"):
        yield static(f"net.{name}", L, D, doc="gain is 1 + w")
    yield from affine("net.text_norm", L, D)
    yield static("net.text_kv_weight", L, 2 * D, D, dtype=dtype, doc="rows k|v")
    yield static("net.text_kv_bias", L, 2 * D, dtype=dtype)
    for name, into in (("text_in", net.text), ("text_mix", D)):
        yield from dense(f"net.{name}", out=D, into=into)
    angles = net.head_dim // 2
    yield static("net.rates", angles, 2, doc="of the rotary angles, in two float32 numbers")
    yield static("net.axes", angles, dtype=_I32)
    for stream, steps, width, rows in (
        ("video", config.steps, config.token_width, config.video_tokens(views)),
        ("action", config.action_steps, config.action_dim, config.horizon),
    ):
        yield static(f"net.{stream}_at", rows, 3, doc="positions of the tokens")
        yield from product(f"net.{stream}_in", out=D, into=width, dtype=_F32)
        doc = "shift, gain and gate in front of both halves of a block; the last row: time 0"
        yield static(f"net.{stream}_table", steps + 1, L, 6, D, doc=doc)
        yield static(f"net.{stream}_last", steps + 1, 2, D, doc="shift and gain of the last norm")
    yield from dense("net.video_out", out=config.token_width, into=D, stream=True)
    yield from product("net.action_out", out=config.action_dim, into=D, dtype=_F32)


def state_buffers(config: LingbotConfig, dtype: DType, views: int) -> Iterator[BufferSpec]:
    """What decisions leave to the next ones."""

    def state(name: str, *shape: int, dtype: DType = dtype, doc: str = "") -> BufferSpec:
        return BufferSpec(name, shape, dtype, Role.STATE, doc)

    L, D, rows = config.net.depth, config.net.width, config.capacity(views)
    yield state("pool", L, 2, 2, rows, D, doc="keys and values of both prompts")
    yield state("holders", rows, dtype=_I32, doc="number of the pass that holds a row, or -1")
    yield state("kinds", rows, dtype=_I32, doc="whether a row is predicted")
    yield state("frame", 1, dtype=_I32, doc="latent frames behind the chunk")
    doc = "the episode's first latent frame"
    yield state("first", config.frame_tokens(views), config.token_width, dtype=_F32, doc=doc)
    for index, group in enumerate(groups(config, views)):
        doc = "ends of what the video encoder's convolutions read"
        yield state(f"kept{index}", kept_numbers(config, group), doc=doc)
    prompt = (L, 2 * config.max_prompt_tokens, D)
    yield state("prompt_k", *prompt)
    yield state("prompt_v", *prompt)
    yield state("prompt_bias", 2 * config.max_prompt_tokens, dtype=_F32)


def scratch_buffers(config: LingbotConfig, plan: Precision, views: int) -> Iterator[BufferSpec]:
    """Activations. One that products read has a buffer for every format that they read it in."""
    dtype, into = plan.wide, partial(scratch, plan, SITES)

    def single(name: str, *shape: int, dtype: DType = dtype) -> BufferSpec:
        return BufferSpec(name, shape, dtype, Role.SCRATCH)

    net, D = config.net, config.net.width
    video, width = config.video_tokens(views), config.token_width
    rows = 2 * max(video, config.horizon)
    yield single("net_x", rows, D)
    yield from into("net_normal", rows, D)
    yield single("net_qkv", rows, 3 * D)
    yield single("net_q", rows, D)
    yield from into("net_mixed", rows, D)
    yield from into("net_hidden", rows, net.ffn)
    yield single("net_rope", rows, net.head_dim, dtype=_F32)
    yield single("net_rows", rows, dtype=_I32)
    yield single("net_bias", 2 * config.capacity(views), dtype=_F32)
    yield single("net_velocity", 2 * video, width, dtype=_F32)
    yield single("net_video", video, width, dtype=_F32)
    for index, group in enumerate(groups(config, views)):
        for flat in range(FLATS):
            yield single(f"vae_{index}_{flat}", most_numbers(config, group))
        cells = (group.height // 8, group.width // 8)
        latent = (group.views, config.frames, *cells, config.vae.latent)
        yield single(f"vae_{index}_latent", prod(latent), dtype=_F32)
    yield single("vae_tokens", video, width, dtype=_F32)
    prompt = 2 * config.max_prompt_tokens
    yield single("text_rows", prompt, net.text)
    yield single("text_hidden", prompt, D)
    yield single("text_x", prompt, D)
    yield single("text_kv", prompt, 2 * D)
