"""Formulas that the reference of GR00T N1.7 is written in, on tensors of a checkpoint by name."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...tensors import TensorSource
from ..reference import ReferenceNetwork, gelu, unit_rms
from .config import GrootConfig

VISUAL, LANGUAGE = "backbone.model.model.visual.", "backbone.model.model.language_model."
HEAD = "action_head."


class Formulas(ReferenceNetwork):
    """Layers on unpacked weights.

    Args:
        config: sizes.
        source: checkpoint.
        dtype: torch.float32, or torch.float64.
        place: where torch computes.
    """

    def __init__(
        self,
        config: GrootConfig,
        source: TensorSource,
        dtype: torch.dtype = torch.float32,
        place: str | torch.device = "cpu",
    ) -> None:
        super().__init__(source, dtype, place, again=(HEAD,))
        self.config = config

    def attend(
        self, name: str, heads: int, x: Tensor, context: Tensor, hidden: Tensor | None = None
    ) -> Tensor:
        q = self.linear(f"{name}to_q", x).unflatten(-1, (heads, -1))
        k, v = (
            self.linear(f"{name}to_{part}", context).unflatten(-1, (heads, -1)) for part in "kv"
        )
        return self.linear(f"{name}to_out.0", mix(q, k, v, hidden).flatten(-2))

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        return self.linear(f"{name}ff.net.2", gelu(self.linear(f"{name}ff.net.0.proj", x)))

    def frequencies(self, count: int, theta: float) -> Tensor:
        found = torch.tensor([theta ** (-i / count) for i in range(count)], dtype=torch.float64)
        if self.config.numerics.rope_frequencies == "bfloat16":
            found = found.bfloat16().double()
        return found

    def turn(self, x: Tensor, angles: Tensor) -> Tensor:
        """[.., rows, heads, d] by angles [rows, d / 2]."""
        half = x.shape[-1] // 2
        cos, sin = (part.to(self.dtype)[:, None] for part in (angles.cos(), angles.sin()))
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def rms(self, name: str, x: Tensor) -> Tensor:
        return unit_rms(x, self.config.eps) * self.get(f"{name}.weight")

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.get(f"{name}.weight").t()
        return y if LANGUAGE in name else y + self.get(f"{name}.bias")

    def slot(self, name: str, x: Tensor) -> Tensor:
        """A projection of the embodiment in use."""
        slot = self.config.embodiment
        weight, bias = (self.get(f"{HEAD}{name}.{kind}", slot) for kind in "Wb")
        return x @ weight + bias


def mix(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Attention of [.., rows, heads, d]; ``hidden`` [rows, keys] true where a row sees no key."""
    scores = torch.einsum("...ihd,...jhd->...hij", q, k) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("...hij,...jhd->...ihd", scores.softmax(dim=-1), v)


def sinusoid(now: int, width: int, divisor: int, *, first: str) -> Tensor:
    """[width] float32 of a time, sines or cosines first."""
    exponents = [-index * math.log(10000.0) / divisor for index in range(width // 2)]
    angles = now * torch.tensor(exponents, dtype=torch.float32).exp()
    parts = (angles.sin(), angles.cos())
    return torch.cat(parts if first == "sin" else parts[::-1])
