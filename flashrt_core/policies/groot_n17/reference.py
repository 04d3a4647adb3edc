"""GR00T N1.7 straight from its formulas, to compare the stages with. Slow on purpose.

Shares nothing with the stages: unpacked checkpoint tensors, no ops, no tables, no merged products,
images between the text where the chat has them, both frames of a still image, keys and values of
all context rows made anew in every block of every step and masked. float32, or float64 to tell
whose rounding a difference is.

Source: transformers (Qwen3-VL), Isaac-GR00T and diffusers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...tensors import TensorSource
from .config import GrootConfig

Array = np.ndarray[Any, Any]
_VISUAL, _LANGUAGE = "backbone.model.model.visual.", "backbone.model.model.language_model."
_HEAD = "action_head."


@dataclass(frozen=True)
class ReferenceContext:
    """What one observation gives.

    Attributes:
        rows: [S, D] context in the order of the chat.
        images: [S] bool, rows of images.
        state: [1, W] row of the state.
        text: [P, D] embedding rows of the text.
        embedding: [V T, D] image rows in front of the text stack.
    """

    rows: Tensor
    images: Tensor
    state: Tensor
    text: Tensor
    embedding: Tensor


@dataclass(frozen=True)
class ReferenceGuide:
    """What guides the sampler, both [H, A].

    Attributes:
        previous: numbers to guide towards.
        weight: how far, 0..1.
    """

    previous: Array
    weight: Array


class Reference:
    """The network on unpacked weights.

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
        self.config = config
        self.dtype = dtype
        self.place = torch.device(place)
        self._source = source
        self._kept: dict[str, Tensor] = {}

    @torch.inference_mode()
    def context(
        self, images: Sequence[Array], tokens: Sequence[int], state: Array
    ) -> ReferenceContext:
        """What decisions on an observation share.

        Args:
            images: [R, R, 3] uint8, a view each, in order.
            tokens: token ids of the text rows: the chat's first, two marks a view, the rest.
            state: [1, state width] float32, normalised.
        """
        with self.place:
            rows, features = self._tower(images)
            table = self._get(f"{_LANGUAGE}embed_tokens.weight")
            text = table[torch.tensor(list(tokens), device=table.device)].to(self.place)
            order, places = self._chat(len(images), len(tokens))
            x = torch.empty(len(order), text.shape[1], dtype=self.dtype)
            x[~order], x[order] = text, rows
            x = self._language(x, order, places, features)
            x = self._adapter(x)
            hidden = torch.relu(self._slot("state_encoder.layer1", self.tensor(state)))
            return ReferenceContext(
                x, order, self._slot("state_encoder.layer2", hidden), text, rows
            )

    @torch.inference_mode()
    def act(
        self,
        noise: Array,
        context: ReferenceContext,
        guide: ReferenceGuide | None = None,
        found: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """The sampler alone: actions [H, A].

        Args:
            noise: [H, A].
            context: of the observation.
            guide: of real-time chunking.
            found: keys and values as :meth:`keys_values` has them, by kind, used for the context's.
        """
        steps = self.config.steps
        with self.place:
            sample = self.tensor(noise)
            for step in range(steps):
                now = int(step / steps * self.config.time_scale)
                velocity = self._velocity(sample, now, context, found)
                if guide is not None:
                    left = 1.0 - step / steps
                    clean = sample + left * velocity
                    previous, weight = self.tensor(guide.previous), self.tensor(guide.weight)
                    clean = clean + weight * (previous - clean)
                    velocity = (clean - sample) / left
                sample = sample + velocity / steps
            return sample

    @torch.inference_mode()
    def keys_values(self, kind: str, rows: Tensor) -> Tensor:
        """[n, blocks, 2, W]: of ``rows`` [n, D], for all blocks that attend to rows of a kind."""
        blocks = range({"text": 0, "image": 2}[kind], self.config.head.depth, 4)
        names = [f"{_HEAD}model.transformer_blocks.{block}.attn1.to_" for block in blocks]
        pairs = [
            torch.stack([self._linear(f"{name}{part}", rows) for part in "kv"], dim=1)
            for name in names
        ]
        return torch.stack(pairs, dim=1)

    # ---- tower ----------------------------------------------------------------------------------

    def _tower(self, images: Sequence[Array]) -> tuple[Tensor, list[Tensor]]:
        """[V T, D] image rows, and those of each layer that the text stack takes features of."""
        config, found = self.config, []
        x = torch.stack([self._patches(image) for image in images])  # [V, patches, D]
        for layer in range(config.vision.depth):
            name = f"{_VISUAL}blocks.{layer}."
            x = x + self._tower_attention(name, self._norm(f"{name}norm1", x, config.eps))
            normal = self._norm(f"{name}norm2", x, config.eps)
            hidden = _gelu(self._linear(f"{name}mlp.linear_fc1", normal))
            x = x + self._linear(f"{name}mlp.linear_fc2", hidden)
            if layer in config.vision.features:
                index = config.vision.features.index(layer)
                merger = f"{_VISUAL}deepstack_merger_list.{index}."
                grouped = self._norm(f"{merger}norm", self._groups(x), config.eps)
                found.append(self._merged(merger, grouped))
        normal = self._norm(f"{_VISUAL}merger.norm", x, config.eps)
        return self._merged(f"{_VISUAL}merger.", self._groups(normal)), found

    def _groups(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.config.merged)

    def _merged(self, name: str, x: Tensor) -> Tensor:
        y = self._linear(f"{name}linear_fc1", x)
        y = 0.5 * y * (1.0 + torch.erf(y / math.sqrt(2.0)))
        return self._linear(f"{name}linear_fc2", y)

    def _cells(self) -> list[tuple[int, int]]:
        """Row and column of each patch, in the order of the groups."""
        grid, merge = self.config.grid, self.config.merge
        return [
            (top + y, left + x)
            for top in range(0, grid, merge)
            for left in range(0, grid, merge)
            for y in range(merge)
            for x in range(merge)
        ]

    def _patches(self, image: Array) -> Tensor:
        """[R, R, 3] uint8 -> [patches, D] with positions; both frames are the image."""
        size = self.config.patch
        pixels = (torch.from_numpy(image.copy()).to(self.place, self.dtype) / 255.0 - 0.5) / 0.5
        weight = self._get(f"{_VISUAL}patch_embed.proj.weight")
        bias = self._get(f"{_VISUAL}patch_embed.proj.bias")
        learned = self._get(f"{_VISUAL}pos_embed.weight")
        found = []
        for row, column in self._cells():
            part = pixels[row * size : (row + 1) * size, column * size : (column + 1) * size]
            frames = part.permute(2, 0, 1)[:, None].expand(-1, 2, -1, -1)
            found.append(torch.einsum("octyx,ctyx->o", weight, frames) + bias)
            found[-1] = found[-1] + self._between(learned, row, column)
        return torch.stack(found)

    def _between(self, learned: Tensor, row: int, column: int) -> Tensor:
        """The learned table at a place between its own."""
        side, grid = self.config.vision.table, self.config.grid
        total = torch.zeros(learned.shape[1], dtype=self.dtype)
        line = torch.linspace(0, side - 1, grid, dtype=torch.float32)
        y, x = float(line[row]), float(line[column])
        for at, down in ((int(y), 1 - y % 1), (min(int(y) + 1, side - 1), y % 1)):
            for to, across in ((int(x), 1 - x % 1), (min(int(x) + 1, side - 1), x % 1)):
                total = total + down * across * learned[at * side + to]
        return total

    def _tower_attention(self, name: str, x: Tensor) -> Tensor:
        sizes = self.config.vision
        q, k, v = (
            part.unflatten(-1, (sizes.heads, sizes.head_dim))
            for part in self._linear(f"{name}attn.qkv", x).chunk(3, dim=-1)
        )
        quarter = sizes.head_dim // 4
        frequency = self._frequencies(quarter, self.config.vision_theta)
        places = torch.tensor(self._cells(), dtype=torch.float64)
        angles = (places[:, :, None] * frequency).flatten(1)  # rows, then columns
        q, k = (self._turn(part, angles) for part in (q, k))
        mixed = _mix(q, k, v)
        return self._linear(f"{name}attn.proj", mixed.flatten(-2))

    # ---- text stack and adapter -----------------------------------------------------------------

    def _chat(self, views: int, texts: int) -> tuple[Tensor, Tensor]:
        """[S] bool, which rows are of images; [S, 3] places in time, row and column."""
        config = self.config
        side = config.grid // config.merge
        kinds: list[bool] = []
        places: list[tuple[int, int, int]] = []
        after = 0

        def text(count: int) -> None:
            nonlocal after
            for _ in range(count):
                kinds.append(False)
                places.append((after, after, after))
                after += 1

        text(config.lead)
        for _ in range(views):
            text(1)
            kinds.extend([True] * side * side)
            places.extend((after, after + y, after + x) for y in range(side) for x in range(side))
            after += side
            text(1)
        text(texts - config.lead - 2 * views)
        return torch.tensor(kinds), torch.tensor(places, dtype=torch.float64)

    def _language(self, x: Tensor, order: Tensor, places: Tensor, features: list[Tensor]) -> Tensor:
        config, sizes = self.config, self.config.text
        half = sizes.head_dim // 2
        frequency = self._frequencies(half, config.rope_theta)
        _, rows, columns = sizes.sections
        axes = [
            1 if i % 3 == 1 and i < 3 * rows else 2 if i % 3 == 2 and i < 3 * columns else 0
            for i in range(half)
        ]
        angles = torch.stack([places[:, axis] for axis in axes], dim=1) * frequency
        ahead = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        for layer in range(sizes.depth):
            name = f"{_LANGUAGE}layers.{layer}."
            normal = self._rms(f"{name}input_layernorm", x)
            q, k, v = (
                self._linear(f"{name}self_attn.{part}_proj", normal).unflatten(
                    -1, (-1, sizes.head_dim)
                )
                for part in "qkv"
            )
            q = self._turn(self._rms(f"{name}self_attn.q_norm", q), angles)
            k = self._turn(self._rms(f"{name}self_attn.k_norm", k), angles)
            group = sizes.heads // sizes.kv_heads
            k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
            x = x + self._linear(f"{name}self_attn.o_proj", _mix(q, k, v, ahead).flatten(1))
            normal = self._rms(f"{name}post_attention_layernorm", x)
            gate, up = (self._linear(f"{name}mlp.{part}_proj", normal) for part in ("gate", "up"))
            x = x + self._linear(f"{name}mlp.down_proj", gate * torch.sigmoid(gate) * up)
            if layer < len(features):
                x = x.clone()
                x[order] += features[layer]
        return x

    def _adapter(self, x: Tensor) -> Tensor:
        config, heads = self.config, self.config.adapter.heads
        x = self._norm(f"{_HEAD}vlln", x, config.adapter_eps)
        for layer in range(config.adapter.depth):
            name = f"{_HEAD}vl_self_attention.transformer_blocks.{layer}."
            normal = self._norm(f"{name}norm1", x, config.adapter_eps)
            x = x + self._attend(f"{name}attn1.", heads, normal, normal)
            normal = self._norm(f"{name}norm3", x, config.adapter_eps)
            x = x + self._feed_forward(name, normal)
        return x

    # ---- head -----------------------------------------------------------------------------------

    def _velocity(
        self,
        sample: Tensor,
        now: int,
        context: ReferenceContext,
        found: Mapping[str, Tensor] | None,
    ) -> Tensor:
        config, sizes = self.config, self.config.head
        rows = self._slot("action_encoder.W1", sample)
        time = _sinusoid(now, sizes.width, sizes.width // 2, first="sin").to(self.dtype)
        both = torch.cat((rows, time.expand(len(rows), -1)), dim=1)
        hidden = self._slot("action_encoder.W2", both)
        rows = self._slot("action_encoder.W3", hidden * torch.sigmoid(hidden))
        rows = rows + self._get(f"{_HEAD}position_embedding.weight")[: config.horizon]
        x = torch.cat((context.state, rows))
        condition = self._condition(now)
        for block in range(sizes.depth):
            name = f"{_HEAD}model.transformer_blocks.{block}."
            scale, shift = self._linear(f"{name}norm1.linear", condition).chunk(2)
            normal = _standardise(x, config.adapter_eps) * (1.0 + scale) + shift
            if block % 2:
                mixed = self._attend(f"{name}attn1.", sizes.heads, normal, normal)
            else:
                mixed = self._cross(f"{name}attn1.", block, normal, context, found)
            x = x + mixed
            x = x + self._feed_forward(name, _standardise(x, config.adapter_eps))
        shift, scale = self._linear(f"{_HEAD}model.proj_out_1", condition).chunk(2)
        x = _standardise(x, config.eps) * (1.0 + scale) + shift
        x = self._linear(f"{_HEAD}model.proj_out_2", x)
        x = torch.relu(self._slot("action_decoder.layer1", x))
        return self._slot("action_decoder.layer2", x)[1:]

    def _cross(
        self,
        name: str,
        block: int,
        x: Tensor,
        context: ReferenceContext,
        found: Mapping[str, Tensor] | None,
    ) -> Tensor:
        """Attention of a block to the rows of its kind; the others are masked."""
        heads = self.config.head.heads
        if found is None:
            wanted = context.images if block % 4 else ~context.images
            hidden = (~wanted).expand(len(x), -1)
            return self._attend(name, heads, x, context.rows, hidden)
        kept = found["image" if block % 4 else "text"][:, block // 4]
        k, v = kept.to(self.place, self.dtype).unflatten(-1, (heads, -1)).unbind(1)
        q = self._linear(f"{name}to_q", x).unflatten(-1, (heads, -1))
        return self._linear(f"{name}to_out.0", _mix(q, k, v).flatten(-2))

    def _condition(self, now: int) -> Tensor:
        """Time -> [W], the input of every conditioned norm's product."""
        half = self.config.head.time // 2
        x = _sinusoid(now, 2 * half, half - 1, first="cos").to(self.dtype)
        for layer in (1, 2):
            x = self._linear(f"{_HEAD}model.timestep_encoder.timestep_embedder.linear_{layer}", x)
            x = x * torch.sigmoid(x)
        return x

    # ---- shared ---------------------------------------------------------------------------------

    def _attend(
        self, name: str, heads: int, x: Tensor, context: Tensor, hidden: Tensor | None = None
    ) -> Tensor:
        q = self._linear(f"{name}to_q", x).unflatten(-1, (heads, -1))
        k, v = (
            self._linear(f"{name}to_{part}", context).unflatten(-1, (heads, -1)) for part in "kv"
        )
        return self._linear(f"{name}to_out.0", _mix(q, k, v, hidden).flatten(-2))

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        return self._linear(f"{name}ff.net.2", _gelu(self._linear(f"{name}ff.net.0.proj", x)))

    def _frequencies(self, count: int, theta: float) -> Tensor:
        found = torch.tensor([theta ** (-i / count) for i in range(count)], dtype=torch.float64)
        if self.config.numerics.rope_frequencies == "bfloat16":
            found = found.bfloat16().double()
        return found

    def _turn(self, x: Tensor, angles: Tensor) -> Tensor:
        """[.., rows, heads, d] by angles [rows, d / 2]."""
        half = x.shape[-1] // 2
        cos, sin = (part.to(self.dtype)[:, None] for part in (angles.cos(), angles.sin()))
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        return _standardise(x, eps) * self._get(f"{name}.weight") + self._get(f"{name}.bias")

    def _rms(self, name: str, x: Tensor) -> Tensor:
        size = torch.sqrt((x**2).mean(dim=-1, keepdim=True) + self.config.eps)
        return x / size * self._get(f"{name}.weight")

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self._get(f"{name}.weight").t()
        return y if _LANGUAGE in name else y + self._get(f"{name}.bias")

    def _slot(self, name: str, x: Tensor) -> Tensor:
        """A projection of the embodiment in use."""
        slot = self.config.embodiment
        weight, bias = (self._get(f"{_HEAD}{name}.{kind}", slot) for kind in "Wb")
        return x @ weight + bias

    def tensor(self, values: Array) -> Tensor:
        """Numbers of the host where the reference computes."""
        return torch.from_numpy(np.array(values, order="C")).to(self.place, self.dtype)

    def _get(self, name: str, slot: int | None = None) -> Tensor:
        """A tensor; those of the head are kept, as every step reads them again."""
        if name in self._kept:
            return self._kept[name]
        found = self._source.get(name)
        found = (found if slot is None else found[slot]).to(self.place).to(self.dtype)
        if name.startswith(_HEAD):
            self._kept[name] = found
        return found


def _mix(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Attention of [.., rows, heads, d]; ``hidden`` [rows, keys] true where a row sees no key."""
    scores = torch.einsum("...ihd,...jhd->...hij", q, k) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("...hij,...jhd->...ihd", scores.softmax(dim=-1), v)


def _sinusoid(now: int, width: int, divisor: int, *, first: str) -> Tensor:
    """[width] float32 of a time, sines or cosines first."""
    exponents = [-index * math.log(10000.0) / divisor for index in range(width // 2)]
    angles = now * torch.tensor(exponents, dtype=torch.float32).exp()
    parts = (angles.sin(), angles.cos())
    return torch.cat(parts if first == "sin" else parts[::-1])


def _standardise(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + eps)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
