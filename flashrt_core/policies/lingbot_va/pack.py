"""How the tensors of a checkpoint are packed into the static buffers.

Packing merges q|k|v and k|v row-wise, turns neighbouring pairs of rotary numbers into halves of a
head, stacks the blocks, tabulates what depends on the step, puts the columns of video tokens into
our order, zeroes what the robot does not use, and multiplies the last two matrices of the video
encoder, its statistics too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ...tensors import TensorSource
from ..packing import KINDS, copy_parts, fill, stack_both
from .buffers import norms
from .config import LingbotConfig
from .encoder_layout import convs
from .layout import frequencies, offsets, times
from .weights import LATENT_MEAN, LATENT_STD, NET, VAE

Buffers = Mapping[str, Tensor]
#: Stream -> the embedder of its times.
TIME_EMBEDDERS = {"video": "condition_embedder", "action": "condition_embedder_action"}


def pack(config: LingbotConfig, source: TensorSource, buffers: Buffers) -> None:
    """Fills every static buffer of the contract; what is merged in memory at a time.

    Raises WeightsError when a tensor is missing.
    """
    with torch.inference_mode():
        _pack_encoder(config, source, buffers)
        _pack_streams(config, source, buffers)
        for stream in TIME_EMBEDDERS:
            tabulate(config, source, buffers, stream)
        for block in range(config.net.depth):
            _pack_block(config, source, buffers, block)


def _pack_encoder(config: LingbotConfig, source: TensorSource, buffers: Buffers) -> None:
    root, latent = f"{VAE}encoder.", config.vae.latent
    for conv in convs(config):
        weight, bias = (source.get(f"{conv.origin}.{kind}").float() for kind in KINDS)
        if conv.name == "out":
            weight, bias = _with_statistics(source, weight, bias, latent)
        weight = weight.unsqueeze(2) if weight.dim() == 4 else weight
        buffers[f"vae.{conv.name}_weight"].copy_(weight.permute(0, 2, 3, 4, 1))
        buffers[f"vae.{conv.name}_bias"].copy_(bias)
    for name in norms(config):
        gain = source.get(f"{root}{_norm_origin(name)}.gamma").float().flatten()
        buffers[f"vae.{name}_norm"].copy_(gain - 1.0)
    for level in range(len(config.vae.levels)):
        if f"vae.{level}.short_weight" in buffers:
            origin = f"{root}down_blocks.{level}.resnets.0.conv_shortcut"
            _copy_flat(source, buffers, f"vae.{level}.short", origin)
    attention = f"{root}mid_block.attentions.0."
    _copy_flat(source, buffers, "vae.mid.qkv", f"{attention}to_qkv")
    _copy_flat(source, buffers, "vae.mid.proj", f"{attention}proj")


def _norm_origin(name: str) -> str:
    if name == "out":
        return "norm_out"
    if name == "mid.attention":
        return "mid_block.attentions.0.norm"
    level, block, which = name.split(".")
    place = "mid_block" if level == "mid" else f"down_blocks.{level}"
    return f"{place}.resnets.{block}.norm{which}"


def _copy_flat(source: TensorSource, buffers: Buffers, target: str, origin: str) -> None:
    """A convolution of one cell is a matrix."""
    buffers[f"{target}_weight"].copy_(source.get(f"{origin}.weight").flatten(1))
    buffers[f"{target}_bias"].copy_(source.get(f"{origin}.bias"))


def _with_statistics(
    source: TensorSource, weight: Tensor, bias: Tensor, latent: int
) -> tuple[Tensor, Tensor]:
    """The encoder's last convolution, the matrix behind it and (x - mean) / std as one."""
    mix = source.get(f"{VAE}quant_conv.weight").float().flatten(1)[:latent]
    offset = source.get(f"{VAE}quant_conv.bias").float()[:latent]
    mean, std = (torch.tensor(values[:latent]).to(mix) for values in (LATENT_MEAN, LATENT_STD))
    joined = torch.tensordot(mix, weight, dims=1) / std.view(-1, 1, 1, 1, 1)
    return joined, (mix @ bias + offset - mean) / std


def _pack_streams(config: LingbotConfig, source: TensorSource, buffers: Buffers) -> None:
    def get(name: str) -> Tensor:
        return source.get(f"{NET}{name}").float()

    used = torch.zeros(config.action_dim)
    used[list(config.channels)] = 1.0
    weight = get("patch_embedding_mlp.weight")  # columns: channel, y, x
    weight = weight.unflatten(1, (-1, 2, 2)).permute(0, 2, 3, 1).flatten(1)
    buffers["net.video_in_weight"].copy_(weight)
    buffers["net.video_in_bias"].copy_(get("patch_embedding_mlp.bias"))
    weight = get("action_embedder.weight")
    buffers["net.action_in_weight"].copy_(weight * used.to(weight))
    buffers["net.action_in_bias"].copy_(get("action_embedder.bias"))
    for kind in KINDS:
        buffers[f"net.video_out_{kind}"].copy_(get(f"proj_out.{kind}"))
        out = get(f"action_proj_out.{kind}")
        rows = used.to(out)
        buffers[f"net.action_out_{kind}"].copy_(out * (rows[:, None] if out.dim() > 1 else rows))
    embedder = f"{NET}condition_embedder.text_embedder."
    parts = {"text_in": "linear_1", "text_mix": "linear_2"}
    copy_parts(buffers, "net", None, source, embedder, parts)
    rates, axes = frequencies(config)
    high = rates.float()
    low = (rates - high.double()).float()
    buffers["net.rates"].copy_(torch.stack((high, low), dim=1))
    buffers["net.axes"].copy_(axes)
    views = buffers["net.video_at"].shape[0] // config.video_tokens(1)
    views = 3 if config.tee else views
    for stream in TIME_EMBEDDERS:
        buffers[f"net.{stream}_at"].copy_(offsets(config, views, stream))


def tabulate(config: LingbotConfig, source: TensorSource, buffers: Buffers, stream: str) -> None:
    """Shift, gain and gate of every norm and branch, for every step and for what is known."""
    net, name = config.net, f"{NET}{TIME_EMBEDDERS[stream]}."
    steps = (config.steps, config.shift)
    if stream == "action":
        steps = (config.action_steps, config.action_shift)
    half = net.time // 2
    rates = torch.exp(
        -torch.log(torch.tensor(10000.0)) * torch.arange(half, dtype=torch.float32) / half
    )
    angles = torch.tensor(times(*steps))[:, None] * rates

    def linear(part: str, x: Tensor) -> Tensor:
        weight, bias = (source.get(f"{name}{part}.{kind}").float() for kind in KINDS)
        return F.linear(x.to(weight), weight, bias)

    hidden = linear("time_embedder.linear_1", torch.cat((angles.cos(), angles.sin()), dim=1))
    embedded = linear("time_embedder.linear_2", F.silu(hidden))
    projected = linear("time_proj", F.silu(embedded)).unflatten(1, (6, -1))  # [steps, 6, D]
    for block in range(net.depth):
        table = source.get(f"{NET}blocks.{block}.scale_shift_table").float() + projected
        table[:, [1, 4]] += 1.0
        buffers[f"net.{stream}_table"][:, block].copy_(table)
    last = source.get(f"{NET}scale_shift_table").float() + embedded[:, None]
    last[:, 1] += 1.0
    buffers[f"net.{stream}_last"].copy_(last)


def _pack_block(config: LingbotConfig, source: TensorSource, buffers: Buffers, block: int) -> None:
    name, net = f"{NET}blocks.{block}.", config.net
    place = buffers["net.qkv_weight"].device  # where blocks are turned, merged and quantised

    def get(part: str) -> Tensor:
        return source.get(f"{name}{part}").to(place).float()

    def halves(rows: Tensor) -> Tensor:
        """The numbers that turn together, from neighbours to halves of their head."""
        heads = rows.unflatten(0, (net.heads, net.head_dim // 2, 2))
        return heads.transpose(1, 2).reshape(rows.shape)

    copy_parts(buffers, "net", block, source, name, {"text_norm": "norm2"})
    stack_both(buffers, "net.text_kv", block, source, (f"{name}attn2.to_{part}" for part in "kv"))
    for kind in KINDS:
        q, k, v = (get(f"attn1.to_{part}.{kind}") for part in "qkv")
        _put(buffers, "qkv", kind, block, torch.cat((halves(q), halves(k), v)))
        for part, origin in (
            ("out", "attn1.to_out.0"),
            ("text_q", "attn2.to_q"),
            ("text_out", "attn2.to_out.0"),
            ("fc1", "ffn.net.0.proj"),
            ("fc2", "ffn.net.2"),
        ):
            _put(buffers, part, kind, block, get(f"{origin}.{kind}"))
    for part in "qk":
        buffers[f"net.{part}_norm"][block].copy_(halves(get(f"attn1.norm_{part}.weight")))
        gain = get(f"attn2.norm_{part}.weight")
        buffers[f"net.text_{part}_norm"][block].copy_(gain - 1.0)


def _put(buffers: Buffers, part: str, kind: str, block: int, tensor: Tensor) -> None:
    """A product's tensor, into the weights of every pass and into those of sites with their own."""
    fill(buffers, f"net.{part}_{kind}", tensor, block)
    for group in ("video", "step"):
        own = f"{group}.{part}_{kind}"
        if own in buffers:
            fill(buffers, own, tensor, block, importance=_importance(buffers, part, block))


def _importance(buffers: Buffers, part: str, block: int) -> Tensor | None:
    """Mean square of each input of a product, where it is known beforehand: behind a norm that is
    its gain and shift. What a calibration has observed is nearer.
    """
    if part == "text_q":
        gain, shift = (buffers[f"net.text_norm_{kind}"][block] for kind in KINDS)
        return gain**2 + shift**2
    first = {"qkv": 0, "fc1": 3}.get(part)
    if first is None:
        return None
    table = buffers["net.action_table"][:-1, block]  # [steps, 6, D]
    return (table[:, first] ** 2 + table[:, first + 1] ** 2).mean(dim=0)
