"""The streaming video encoder in plain float32 torch: what the stages are compared with.

Source: Wan2.2's VAE as the released encoder runs it, frame groups one after the other, each
convolution keeping the end of its last input.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .config import VaeConfig
from .weights import LATENT_MEAN, LATENT_STD, VAE

Get = Callable[[str], Tensor]


class StreamingEncoder:
    """Encodes one camera's video as it comes.

    Args:
        config: sizes.
        get: tensor by name, float32.
    """

    def __init__(self, config: VaeConfig, get: Get) -> None:
        self._config = config
        self._get = get
        self.kept: dict[str, Tensor] = {}  # the end of each convolution's input

    def encode(self, frames: Tensor) -> Tensor:
        """Frames [3, T, H, W] in -1..1 -> normalised latents [48, t, H/16, W/16].

        The first call takes one frame and gives one; later ones take a multiple of four.
        """
        first = not self.kept
        x = F.pixel_unshuffle(frames.transpose(0, 1), 2)  # [T, 12, ..]: channel, y, x
        x = x.unflatten(1, (3, 2, 2)).transpose(2, 3).flatten(1, 3).transpose(0, 1)
        x = self._conv("conv_in", x)
        config = self._config
        for level, out in enumerate(config.channels[1:]):
            short = _means(x, out, level < len(config.levels) - 1, config.halves_time(level))
            for block in range(config.blocks):
                x = self._residual(f"down_blocks.{level}.resnets.{block}", x)
            if level < len(config.levels) - 1:
                x = self._halve(f"down_blocks.{level}.downsampler.", x)
            if config.halves_time(level):
                x = self._halve_time(f"down_blocks.{level}.downsampler.time_conv", x, first)
            x = x + short
        x = self._residual("mid_block.resnets.0", x)
        x = self._attend("mid_block.attentions.0.", x)
        x = self._residual("mid_block.resnets.1", x)
        x = self._conv("conv_out", self._norm("norm_out", x))
        x = self._plain(f"{VAE}quant_conv", x)[: config.latent]
        mean, std = (torch.tensor(each).to(x).view(-1, 1, 1, 1) for each in _statistics(config))
        return (x - mean) / std

    def _conv(self, name: str, x: Tensor) -> Tensor:
        past = self.kept.get(name)
        if past is None:
            past = torch.zeros_like(x[:, :1]).repeat(1, 2, 1, 1)
        x = torch.cat((past, x), dim=1)
        self.kept[name] = x[:, -2:]
        weight, bias = self._weights(f"{VAE}encoder.{name}")
        return F.conv3d(x[None], weight, bias, padding=(0, 1, 1))[0]

    def _weights(self, name: str) -> tuple[Tensor, Tensor]:
        return self._get(f"{name}.weight"), self._get(f"{name}.bias")

    def _plain(self, name: str, x: Tensor) -> Tensor:
        return F.conv3d(x[None], *self._weights(name))[0]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        gain = self._get(f"{VAE}encoder.{name}.gamma").view(-1, 1, 1, 1)
        return F.silu(F.normalize(x, dim=0) * len(x) ** 0.5 * gain)

    def _residual(self, name: str, x: Tensor) -> Tensor:
        h = self._conv(f"{name}.conv1", self._norm(f"{name}.norm1", x))
        h = self._conv(f"{name}.conv2", self._norm(f"{name}.norm2", h))
        if h.shape[0] != x.shape[0]:
            x = self._plain(f"{VAE}encoder.{name}.conv_shortcut", x)
        return x + h

    def _halve(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights(f"{VAE}encoder.{name}resample.1")
        x = F.pad(x.transpose(0, 1), (0, 1, 0, 1))
        return F.conv2d(x, weight, bias, stride=2).transpose(0, 1)

    def _halve_time(self, name: str, x: Tensor, first: bool) -> Tensor:
        """The very first frame stays as it is."""
        if first:
            self.kept[name] = x[:, -1:]
            return x
        joined = torch.cat((self.kept[name], x), dim=1)
        self.kept[name] = x[:, -1:]
        weight, bias = self._weights(f"{VAE}encoder.{name}")
        return F.conv3d(joined[None], weight, bias, stride=(2, 1, 1))[0]

    def _attend(self, name: str, x: Tensor) -> Tensor:
        """Over the cells of each frame, with one head."""
        C, T, H, W = x.shape
        gain = self._get(f"{VAE}encoder.{name}norm.gamma").view(-1, 1, 1, 1)
        rows = (F.normalize(x, dim=0) * C**0.5 * gain).permute(1, 2, 3, 0).reshape(T, H * W, C)
        (into, into_bias), (out, out_bias) = (
            self._weights(f"{VAE}encoder.{name}{part}") for part in ("to_qkv", "proj")
        )
        q, k, v = F.linear(rows, into.flatten(1), into_bias).chunk(3, dim=-1)
        mixed = torch.softmax(q @ k.transpose(1, 2) * C**-0.5, dim=-1) @ v
        made = F.linear(mixed, out.flatten(1), out_bias)
        return x + made.view(T, H, W, C).permute(3, 0, 1, 2)


def _statistics(config: VaeConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return LATENT_MEAN[: config.latent], LATENT_STD[: config.latent]


def _means(x: Tensor, out: int, space: bool, time: bool) -> Tensor:
    """The shortcut around a level: means over what falls together, channels spread over frames."""
    st, ss = (2 if time else 1), (2 if space else 1)
    x = F.pad(x, (0, 0, 0, 0, -x.shape[1] % st, 0))
    C, T, H, W = x.shape
    x = x.view(C, T // st, st, H // ss, ss, W // ss, ss).permute(0, 2, 4, 6, 1, 3, 5)
    return x.reshape(out, -1, T // st, H // ss, W // ss).mean(dim=1)
