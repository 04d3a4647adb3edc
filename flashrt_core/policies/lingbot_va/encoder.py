"""The streaming video encoder over ops: pictures of a group of cameras to cells of latents.

Activations lie channels last and take turns in a few flat buffers. What a convolution reads again
with the next pictures is kept in one buffer a group; before an episode's first picture it is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torch import Tensor

from ...gemm import linear
from ...kernels.attention import attention
from ...kernels.conv_frames import conv_frames
from ...kernels.copy_rows import copy_rows
from ...kernels.fill import fill
from ...kernels.maths import Activation
from ...kernels.mean_frames import mean_frames
from ...kernels.op import Lane
from ...kernels.rms_norm import rms_norm
from .buffers import FLATS
from .config import LingbotConfig
from .encoder_layout import Group, groups, kept_sizes

Buffers = Mapping[str, Tensor]
#: Under the root of the norms, which divide by a length alone: so much that zeros stay zeros.
_EPS = 1e-24


class Encoder:
    """One group's part of a commit.

    Args:
        lane: where ops go.
        buffers: of the contract.
        config: sizes.
        views: cameras in all.
        index: of the group.
    """

    def __init__(
        self, lane: Lane, buffers: Buffers, config: LingbotConfig, views: int, index: int
    ) -> None:
        self._lane, self._buffers, self._config = lane, buffers, config
        self.group: Group = groups(config, views)[index]
        self._flats = [buffers[f"vae_{index}_{flat}"] for flat in range(FLATS)]
        self._free = list(range(FLATS))
        self._kept = {
            name: buffers[f"kept{index}"][start : start + prod(shape)].view(shape)
            for name, (start, shape) in kept_sizes(config, self.group).items()
        }
        self._all_kept = buffers[f"kept{index}"]
        self._latent = buffers[f"vae_{index}_latent"]

    def encode(self, windows: list[Tensor], frames: int) -> Tensor:
        """Latents [V, t, h, w, C] float32 of the first ``frames`` of each window.

        One frame starts an episode; else they are a multiple of four.
        """
        opening = frames == 1
        if opening:
            fill(self._lane, self._all_kept)
        group, vae = self.group, self._config.vae
        x = self._take((group.views, frames, group.height, group.width, 12))
        for video, window in zip(x, windows, strict=True):
            copy_rows(self._lane, window[:frames].view(-1, 12), video.view(-1, 12))
        x = self._conv("in", x)
        for level in range(len(vae.levels)):
            x = self._level(level, x, opening)
        x = self._residual("mid.0", x, x.shape[-1])
        self._attend(x)
        x = self._residual("mid.1", x, x.shape[-1])
        normal = self._norm("out", x, "silu")
        shape = (*x.shape[:4], vae.latent)
        out = self._latent[: prod(shape)].view(shape)
        self._convolve("out", normal, out)
        self._remember("out", normal)
        self._give(normal, x)
        return out

    def _level(self, level: int, x: Tensor, opening: bool) -> Tensor:
        config = self._config.vae
        out, last = config.channels[level + 1], level == len(config.levels) - 1
        y = x
        for block in range(config.blocks):
            y = self._residual(f"{level}.{block}", y, out, keep=y is x)
        halves_time = config.halves_time(level)
        if not last:
            V, T, H, W, C = y.shape
            half = self._take((V, T, H // 2, W // 2, C))
            weight, bias = self._weights(f"{level}.halve")
            conv_frames(self._lane, y, None, weight, bias, half, strides=(1, 2))
            self._give(y)
            y = half
        if halves_time:
            y = self._halve_time(f"{level}.time", y, opening)
        mean_frames(self._lane, x, y, halved=(halves_time, not last))
        self._give(x)
        return y

    def _halve_time(self, name: str, x: Tensor, opening: bool) -> Tensor:
        """The episode's first frame stays as it is."""
        if opening:
            self._remember(name, x)
            return x
        V, T, H, W, C = x.shape
        half = self._take((V, T // 2, H, W, C))
        weight, bias = self._weights(name)
        conv_frames(self._lane, x, self._kept[name], weight, bias, half, strides=(2, 1))
        self._remember(name, x)
        self._give(x)
        return half

    def _residual(self, name: str, x: Tensor, out: int, *, keep: bool = False) -> Tensor:
        """x + convolutions of x; in place where the width stays and ``x`` need not be kept."""
        normal = self._norm(f"{name}.1", x, "silu")
        hidden = self._take((*x.shape[:4], out))
        self._convolve(f"{name}.conv1", normal, hidden)
        self._remember(f"{name}.conv1", normal)
        self._give(normal)
        normal = self._norm(f"{name}.2", hidden, "silu")
        self._give(hidden)
        made = self._take(hidden.shape) if keep or x.shape[-1] != out else x
        short = x
        if x.shape[-1] != out:
            level = name.partition(".")[0]
            weight, bias = (self._buffers[f"vae.{level}.short_{k}"] for k in ("weight", "bias"))
            linear(self._lane, x.flatten(0, 3), weight, bias, made.flatten(0, 3))
            short = made
        self._convolve(f"{name}.conv2", normal, made, short)
        self._remember(f"{name}.conv2", normal)
        self._give(normal)
        return made

    def _attend(self, x: Tensor) -> None:
        """x += attention over the cells of each frame, with one head."""
        V, T, H, W, C = x.shape
        rows = V * T * H * W
        normal = self._norm("mid.attention", x, "none")
        qkv = self._take((rows, 3 * C))
        weight, bias = self._weights("mid.qkv")
        linear(self._lane, normal.view(rows, C), weight, bias, qkv)
        q, k, v = qkv.view(rows, 3, 1, C).unbind(1)
        mixed = normal.view(rows, C)
        attention(self._lane, q, k, v, mixed, scale=C**-0.5, segments=V * T)
        weight, bias = self._weights("mid.proj")
        linear(self._lane, mixed, weight, bias, x.view(rows, C), residual=x.view(rows, C))
        self._give(normal, qkv)

    def _norm(self, name: str, x: Tensor, activation: Activation) -> Tensor:
        out, gain = self._take(tuple(x.shape)), self._buffers[f"vae.{name}_norm"]
        rows, made = (each.flatten(0, 3) for each in (x, out))
        rms_norm(self._lane, rows, gain, made, eps=_EPS, activation=activation)
        return out

    def _conv(self, name: str, x: Tensor) -> Tensor:
        out = self._take((*x.shape[:4], self._buffers[f"vae.{name}_weight"].shape[0]))
        self._convolve(name, x, out)
        self._remember(name, x)
        self._give(x)
        return out

    def _convolve(self, name: str, x: Tensor, out: Tensor, residual: Tensor | None = None) -> None:
        weight, bias = self._weights(name)
        conv_frames(self._lane, x, self._kept[name], weight, bias, out, residual=residual)

    def _weights(self, name: str) -> tuple[Tensor, Tensor]:
        return self._buffers[f"vae.{name}_weight"], self._buffers[f"vae.{name}_bias"]

    def _remember(self, name: str, x: Tensor) -> None:
        """The last frames of an input, behind those of the one before where it has but one."""
        kept = self._kept[name]
        count = min(kept.shape[1], x.shape[1])
        if count < kept.shape[1]:
            for video in kept:
                copy_rows(self._lane, video[1].flatten(0, 1), video[0].flatten(0, 1))
        copy_rows(self._lane, x[:, -count:].flatten(1), kept[:, -count:].flatten(1))

    def _take(self, shape: tuple[int, ...]) -> Tensor:
        """A flat buffer, as a tensor of a shape."""
        return self._flats[self._free.pop()][: prod(shape)].view(shape)

    def _give(self, *used: Tensor) -> None:
        """The buffers of tensors that nobody reads any more."""
        starts = [flat.data_ptr() for flat in self._flats]
        self._free += [starts.index(each.data_ptr()) for each in used]
