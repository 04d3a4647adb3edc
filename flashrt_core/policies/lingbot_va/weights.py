"""What a LingBot-VA checkpoint holds: tensors of the transformer and of the video encoder.

Names are those of the folders ``transformer`` and ``vae`` with the folder's name in front; LeRobot
writes the first so. The encoder's statistics of a latent are constants of Wan2.2's release.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ...tensors import TensorSpec
from ..packing import dense, layer_norm
from .config import LingbotConfig

NET, VAE = "transformer.", "vae."

#: Of the latent channels, as the release normalises them.
LATENT_MEAN: tuple[float, ...] = (
    *(-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557),
    *(-0.1382, 0.0542, 0.2813, 0.0891, 0.1570, -0.0098, 0.0375, -0.1825),
    *(-0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502),
    *(-0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230),
    *(-0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748),
    *(0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667),
)
LATENT_STD: tuple[float, ...] = (
    *(0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013),
    *(0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978),
    *(0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659),
    *(0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093),
    *(0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887),
    *(0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744),
)

Specs = Iterator[tuple[str, TensorSpec]]


def tensors(config: LingbotConfig) -> dict[str, TensorSpec]:
    """Every tensor by name, with the statistics of a random stand-in."""
    return dict((*_net(config), *_vae(config)))


def _net(config: LingbotConfig) -> Specs:
    net, D = config.net, config.net.width
    yield from dense(f"{NET}patch_embedding_mlp", D, config.token_width)
    yield from dense(f"{NET}action_embedder", D, config.action_dim)
    for name in ("condition_embedder", "condition_embedder_action"):
        part = f"{NET}{name}."
        yield from dense(f"{part}time_embedder.linear_1", D, net.time)
        yield from dense(f"{part}time_embedder.linear_2", D, D)
        yield from dense(f"{part}time_proj", 6 * D, D, gain=0.3)
        used = name == "condition_embedder"
        for layer, into in (("linear_1", net.text), ("linear_2", D)):
            for key, spec in dense(f"{part}text_embedder.{layer}", D, into):
                yield key, spec if used else TensorSpec(spec.shape, std=spec.std, used=False)
    for block in range(net.depth):
        yield from _block(config, f"{NET}blocks.{block}.")
    yield f"{NET}scale_shift_table", TensorSpec((1, 2, D), std=D**-0.5)
    yield from dense(f"{NET}proj_out", config.token_width, D)
    yield from dense(f"{NET}action_proj_out", config.action_dim, D)


def _block(config: LingbotConfig, name: str) -> Specs:
    net, D = config.net, config.net.width
    for attention in ("attn1", "attn2"):
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            yield from dense(f"{name}{attention}.{part}", D, D)
        for part in ("norm_q", "norm_k"):
            yield f"{name}{attention}.{part}.weight", TensorSpec((D,), mean=1.0, std=0.1)
    yield from layer_norm(f"{name}norm2", D)
    yield from dense(f"{name}ffn.net.0.proj", net.ffn, D)
    yield from dense(f"{name}ffn.net.2", D, net.ffn)
    yield f"{name}scale_shift_table", TensorSpec((1, 6, D), std=D**-0.5)


def _vae(config: LingbotConfig) -> Specs:
    vae, root = config.vae, f"{VAE}encoder."
    channels, last = vae.channels, vae.channels[-1]
    yield from _conv(f"{root}conv_in", channels[0], 12, 3, 3)
    for level, (into, out) in enumerate(pairwise(channels)):
        name = f"{root}down_blocks.{level}."
        for block in range(vae.blocks):
            yield from _residual(f"{name}resnets.{block}", into if block == 0 else out, out)
        if level < len(vae.levels) - 1:
            yield from _flat_conv(f"{name}downsampler.resample.1", out, out, 3)
        if vae.halves_time(level):
            yield from _conv(f"{name}downsampler.time_conv", out, out, 3, 1)
    for block in range(2):
        yield from _residual(f"{root}mid_block.resnets.{block}", last, last)
    attention = f"{root}mid_block.attentions.0."
    yield f"{attention}norm.gamma", TensorSpec((last, 1, 1), mean=1.0, std=0.1)
    yield from _flat_conv(f"{attention}to_qkv", 3 * last, last, 1)
    yield from _flat_conv(f"{attention}proj", last, last, 1)
    yield f"{root}norm_out.gamma", TensorSpec((last, 1, 1, 1), mean=1.0, std=0.1)
    yield from _conv(f"{root}conv_out", 2 * vae.latent, last, 3, 3)
    yield from _conv(f"{VAE}quant_conv", 2 * vae.latent, 2 * vae.latent, 1, 1)


def _residual(name: str, into: int, out: int) -> Specs:
    yield f"{name}.norm1.gamma", TensorSpec((into, 1, 1, 1), mean=1.0, std=0.1)
    yield from _conv(f"{name}.conv1", out, into, 3, 3)
    yield f"{name}.norm2.gamma", TensorSpec((out, 1, 1, 1), mean=1.0, std=0.1)
    yield from _conv(f"{name}.conv2", out, out, 3, 3)
    if into != out:
        yield from _conv(f"{name}.conv_shortcut", out, into, 1, 1)


def _conv(name: str, out: int, into: int, time: int, space: int) -> Specs:
    """Over time and space."""
    shape = (out, into, time, space, space)
    yield f"{name}.weight", TensorSpec(shape, std=(into * time * space * space) ** -0.5)
    yield f"{name}.bias", TensorSpec((out,), std=0.1)


def _flat_conv(name: str, out: int, into: int, space: int) -> Specs:
    """Over space."""
    yield f"{name}.weight", TensorSpec((out, into, space, space), std=(into * space**2) ** -0.5)
    yield f"{name}.bias", TensorSpec((out,), std=0.1)
