"""The video encoder's convolutions: which there are, what each keeps of the past, what it is fed.

Cameras whose pictures have one size are encoded together, as one group of videos.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from .config import SPACE, TIME, LingbotConfig
from .weights import VAE


@dataclass(frozen=True)
class Conv:
    """One convolution over frames.

    Attributes:
        name: of its buffers, behind ``vae.``.
        origin: of its tensors.
        shape: [O, kt, k, k, C] of its weight.
        keeps: frames of its input that it reads again with the next ones.
        halves: pictures on the way, how often their sides were halved when they come here.
    """

    name: str
    origin: str
    shape: tuple[int, int, int, int, int]
    keeps: int
    halves: int


@dataclass(frozen=True)
class Group:
    """Cameras that are encoded together.

    Attributes:
        first, views: the first one's number, and how many.
        height, width: of the encoder's input, half of the picture's.
    """

    first: int
    views: int
    height: int
    width: int


def groups(config: LingbotConfig, views: int) -> tuple[Group, ...]:
    """The groups of so many cameras."""
    runs = ((0, 1), (1, views - 1)) if config.tee else ((0, views),)
    found = []
    for first, count in runs:
        height, width = config.picture(first)
        found.append(Group(first, count, height // 2, width // 2))
    return tuple(found)


def places(config: LingbotConfig, views: int) -> tuple[tuple[slice, slice], ...]:
    """Where the tokens of each camera lie on a frame's grid: rows and columns."""
    found, tall = [], config.height // SPACE // 2
    for view in range(views):
        h, w = (side // SPACE // 2 for side in config.picture(view))
        if not config.tee:
            found.append((slice(0, h), slice(view * w, (view + 1) * w)))
        elif view == 0:
            found.append((slice(tall // 2, tall // 2 + h), slice(0, w)))
        else:
            found.append((slice(0, h), slice((view - 1) * w, view * w)))
    return tuple(found)


def convs(config: LingbotConfig) -> tuple[Conv, ...]:
    """All convolutions over frames, in the order they run."""
    return tuple(_convs(config))


def _convs(config: LingbotConfig) -> Iterator[Conv]:
    vae, root = config.vae, f"{VAE}encoder."
    channels, last = vae.channels, vae.channels[-1]
    halvings = len(vae.levels) - 1
    yield Conv("in", f"{root}conv_in", (channels[0], 3, 3, 3, 12), 2, 0)
    for level, (into, out) in enumerate(pairwise(channels)):
        origin = f"{root}down_blocks.{level}."
        for block in range(vae.blocks):
            first = into if block == 0 else out
            yield from _pair(f"{level}.{block}", f"{origin}resnets.{block}", first, out, level)
        if level < halvings:
            name = f"{origin}downsampler.resample.1"
            yield Conv(f"{level}.halve", name, (out, 1, 3, 3, out), 0, level)
        if vae.halves_time(level):
            name = f"{origin}downsampler.time_conv"
            yield Conv(f"{level}.time", name, (out, 3, 1, 1, out), 1, level + 1)
    for block in range(2):
        origin = f"{root}mid_block.resnets.{block}"
        yield from _pair(f"mid.{block}", origin, last, last, halvings)
    yield Conv("out", f"{root}conv_out", (vae.latent, 3, 3, 3, last), 2, halvings)


def _pair(name: str, origin: str, into: int, out: int, halves: int) -> Iterator[Conv]:
    yield Conv(f"{name}.conv1", f"{origin}.conv1", (out, 3, 3, 3, into), 2, halves)
    yield Conv(f"{name}.conv2", f"{origin}.conv2", (out, 3, 3, 3, out), 2, halves)


def kept_shape(conv: Conv, group: Group) -> tuple[int, ...]:
    """[V, P, H, W, C] of what a convolution keeps."""
    side = 2**conv.halves
    return (group.views, conv.keeps, group.height // side, group.width // side, conv.shape[-1])


def kept_sizes(config: LingbotConfig, group: Group) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Of each convolution that keeps something: where it starts in the group's buffer, its shape.

    Starts are multiples of 128 numbers, for aligned rows.
    """
    found, at = {}, 0
    for conv in convs(config):
        if conv.keeps:
            shape = kept_shape(conv, group)
            found[conv.name] = (at, shape)
            at += -(-prod(shape) // 128) * 128
    return found


def kept_numbers(config: LingbotConfig, group: Group) -> int:
    """Numbers of a group's buffer."""
    start, shape = list(kept_sizes(config, group).values())[-1]
    return start + -(-prod(shape) // 128) * 128


def most_numbers(config: LingbotConfig, group: Group) -> int:
    """Numbers of the largest activation of a group."""
    frames, cells = config.frames * TIME, group.height * group.width
    widest, left = 12 * frames * cells, frames
    for level, width in enumerate(config.vae.channels[1:]):
        shrunk = cells // 4**level
        both = max(width, config.vae.channels[level])
        widest = max(widest, left * shrunk * both)
        left //= 2 if config.vae.halves_time(level) else 1
    last = config.vae.channels[-1]
    attended = left * (cells // 64) * 3 * last
    return group.views * max(widest, attended)
