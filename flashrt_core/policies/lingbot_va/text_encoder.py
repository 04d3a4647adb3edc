"""The text encoder (UMT5) in float32 torch: an instruction's rows, made once a prompt on the host.

Source: the standard UMT5 encoder: RMS norms, unscaled scores with a bias of relative positions in
every layer, a gated feed-forward block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ...tensors import TensorSource, TensorSpec
from .config import LingbotConfig, TextConfig

ROOT = "text_encoder."
_EPS = 1e-6


def tensors(config: LingbotConfig) -> dict[str, TensorSpec]:
    """Every tensor by name, that of the folder in front."""
    return dict(_tensors(config))


def _tensors(config: LingbotConfig) -> Iterator[tuple[str, TensorSpec]]:
    text, D = config.text, config.net.text
    inner = text.heads * text.head_dim
    tied = (f"{ROOT}encoder.embed_tokens.weight",)
    yield f"{ROOT}shared.weight", TensorSpec((text.vocab, D), std=1.0, aliases=tied)
    for layer in range(text.depth):
        name = f"{ROOT}encoder.block.{layer}.layer."
        for part in "qkv":
            std = D**-0.5 * (0.5 if part in "qk" else 1.0)
            yield f"{name}0.SelfAttention.{part}.weight", TensorSpec((inner, D), std=std)
        yield f"{name}0.SelfAttention.o.weight", TensorSpec((D, inner), std=inner**-0.5)
        bias = (text.distances, text.heads)
        yield f"{name}0.SelfAttention.relative_attention_bias.weight", TensorSpec(bias, std=0.5)
        for part, shape in (
            ("wi_0", (text.ffn, D)),
            ("wi_1", (text.ffn, D)),
            ("wo", (D, text.ffn)),
        ):
            yield f"{name}1.DenseReluDense.{part}.weight", TensorSpec(shape, std=shape[1] ** -0.5)
        for index in range(2):
            yield f"{name}{index}.layer_norm.weight", TensorSpec((D,), mean=1.0, std=0.1)
    yield f"{ROOT}encoder.final_layer_norm.weight", TensorSpec((D,), mean=1.0, std=0.1)


class TextEncoder:
    """Token ids to rows; reads the weights of a layer when it needs them.

    Args:
        config: sizes.
        source: a checkpoint with :func:`tensors`.
    """

    def __init__(self, config: LingbotConfig, source: TensorSource) -> None:
        self._sizes = config.text
        self._source = source

    def encode(self, ids: Iterable[int]) -> Tensor:
        """[n] ids, the end of text last -> [n, width] float32."""
        rows = torch.tensor(list(ids))
        x = self._source.get(f"{ROOT}shared.weight")[rows].float()
        for layer in range(self._sizes.depth):
            name = f"{ROOT}encoder.block.{layer}.layer."
            x = x + self._attend(f"{name}0.SelfAttention.", self._norm(f"{name}0.layer_norm", x))
            x = x + self._feed_forward(
                f"{name}1.DenseReluDense.", self._norm(f"{name}1.layer_norm", x)
            )
        return self._norm(f"{ROOT}encoder.final_layer_norm", x)

    def _get(self, name: str) -> Tensor:
        return self._source.get(f"{name}.weight").float()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._get(name), _EPS)

    def _attend(self, name: str, x: Tensor) -> Tensor:
        heads = (self._sizes.heads, self._sizes.head_dim)
        q, k, v = (
            F.linear(x, self._get(f"{name}{part}")).unflatten(1, heads).transpose(0, 1)
            for part in "qkv"
        )
        table = self._get(f"{name}relative_attention_bias")
        bias = table[_buckets(len(x), self._sizes)].permute(2, 0, 1)  # [heads, n, n]
        scores = torch.softmax(q @ k.transpose(1, 2) + bias, dim=-1)
        return F.linear((scores @ v).transpose(0, 1).flatten(1), self._get(f"{name}o"))

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        gate = F.gelu(F.linear(x, self._get(f"{name}wi_0")), approximate="tanh")
        return F.linear(gate * F.linear(x, self._get(f"{name}wi_1")), self._get(f"{name}wo"))


def _buckets(rows: int, sizes: TextConfig) -> Tensor:
    """[n, n]: bucket of a key's position seen from a query's; near ones have their own, far ones
    share them by the logarithm of the distance, one half of the buckets a direction.
    """
    at = torch.arange(rows)
    apart = at[None, :] - at[:, None]
    half = sizes.distances // 2
    exact = half // 2
    distance = apart.abs()
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(sizes.furthest / exact)
    shared = (exact + (far * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(apart > 0, half, 0) + torch.where(distance < exact, distance, shared)
