"""GR00T N1.7 straight from its formulas, to compare the stages with. Slow on purpose.

Shares nothing with the stages: unpacked checkpoint tensors, no ops, no tables, no merged products,
images between the text where the chat has them, both frames of a still image, keys and values of
all context rows made anew in every block of every step and masked. float32, or float64 to tell
whose rounding a difference is.

Source: transformers (Qwen3-VL), Isaac-GR00T and diffusers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..reference import Array, ReferenceGuide, standardise
from .formulas import HEAD, LANGUAGE, mix, sinusoid
from .reference_tower import Tower


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


class Reference(Tower):
    """The network on unpacked weights.

    Args:
        config: sizes.
        source: checkpoint.
        dtype: torch.float32, or torch.float64.
        place: where torch computes.
    """

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
            rows, features = self.tower(images)
            table = self.get(f"{LANGUAGE}embed_tokens.weight")
            text = table[torch.tensor(list(tokens), device=table.device)].to(self.place)
            order, places = self._chat(len(images), len(tokens))
            x = torch.empty(len(order), text.shape[1], dtype=self.dtype)
            x[~order], x[order] = text, rows
            x = self._language(x, order, places, features)
            x = self._adapter(x)
            hidden = torch.relu(self.slot("state_encoder.layer1", self.tensor(state)))
            return ReferenceContext(x, order, self.slot("state_encoder.layer2", hidden), text, rows)

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
        names = [f"{HEAD}model.transformer_blocks.{block}.attn1.to_" for block in blocks]
        pairs = [
            torch.stack([self.linear(f"{name}{part}", rows) for part in "kv"], dim=1)
            for name in names
        ]
        return torch.stack(pairs, dim=1)

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
        frequency = self.frequencies(half, config.rope_theta)
        _, rows, columns = sizes.sections
        axes = [
            1 if i % 3 == 1 and i < 3 * rows else 2 if i % 3 == 2 and i < 3 * columns else 0
            for i in range(half)
        ]
        angles = torch.stack([places[:, axis] for axis in axes], dim=1) * frequency
        ahead = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        for layer in range(sizes.depth):
            name = f"{LANGUAGE}layers.{layer}."
            normal = self.rms(f"{name}input_layernorm", x)
            q, k, v = (
                self.linear(f"{name}self_attn.{part}_proj", normal).unflatten(
                    -1, (-1, sizes.head_dim)
                )
                for part in "qkv"
            )
            q = self.turn(self.rms(f"{name}self_attn.q_norm", q), angles)
            k = self.turn(self.rms(f"{name}self_attn.k_norm", k), angles)
            group = sizes.heads // sizes.kv_heads
            k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
            x = x + self.linear(f"{name}self_attn.o_proj", mix(q, k, v, ahead).flatten(1))
            normal = self.rms(f"{name}post_attention_layernorm", x)
            gate, up = (self.linear(f"{name}mlp.{part}_proj", normal) for part in ("gate", "up"))
            x = x + self.linear(f"{name}mlp.down_proj", gate * torch.sigmoid(gate) * up)
            if layer < len(features):
                x = x.clone()
                x[order] += features[layer]
        return x

    def _adapter(self, x: Tensor) -> Tensor:
        config, heads = self.config, self.config.adapter.heads
        x = self.norm(f"{HEAD}vlln", x, config.adapter_eps)
        for layer in range(config.adapter.depth):
            name = f"{HEAD}vl_self_attention.transformer_blocks.{layer}."
            normal = self.norm(f"{name}norm1", x, config.adapter_eps)
            x = x + self.attend(f"{name}attn1.", heads, normal, normal)
            normal = self.norm(f"{name}norm3", x, config.adapter_eps)
            x = x + self.feed_forward(name, normal)
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
        rows = self.slot("action_encoder.W1", sample)
        time = sinusoid(now, sizes.width, sizes.width // 2, first="sin").to(self.dtype)
        both = torch.cat((rows, time.expand(len(rows), -1)), dim=1)
        hidden = self.slot("action_encoder.W2", both)
        rows = self.slot("action_encoder.W3", hidden * torch.sigmoid(hidden))
        rows = rows + self.get(f"{HEAD}position_embedding.weight")[: config.horizon]
        x = torch.cat((context.state, rows))
        condition = self._condition(now)
        for block in range(sizes.depth):
            name = f"{HEAD}model.transformer_blocks.{block}."
            scale, shift = self.linear(f"{name}norm1.linear", condition).chunk(2)
            normal = standardise(x, config.adapter_eps) * (1.0 + scale) + shift
            if block % 2:
                mixed = self.attend(f"{name}attn1.", sizes.heads, normal, normal)
            else:
                mixed = self._cross(f"{name}attn1.", block, normal, context, found)
            x = x + mixed
            x = x + self.feed_forward(name, standardise(x, config.adapter_eps))
        shift, scale = self.linear(f"{HEAD}model.proj_out_1", condition).chunk(2)
        x = standardise(x, config.eps) * (1.0 + scale) + shift
        x = self.linear(f"{HEAD}model.proj_out_2", x)
        x = torch.relu(self.slot("action_decoder.layer1", x))
        return self.slot("action_decoder.layer2", x)[1:]

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
            return self.attend(name, heads, x, context.rows, hidden)
        kept = found["image" if block % 4 else "text"][:, block // 4]
        k, v = kept.to(self.place, self.dtype).unflatten(-1, (heads, -1)).unbind(1)
        q = self.linear(f"{name}to_q", x).unflatten(-1, (heads, -1))
        return self.linear(f"{name}to_out.0", mix(q, k, v).flatten(-2))

    def _condition(self, now: int) -> Tensor:
        """Time -> [W], the input of every conditioned norm's product."""
        half = self.config.head.time // 2
        x = sinusoid(now, 2 * half, half - 1, first="cos").to(self.dtype)
        for layer in (1, 2):
            x = self.linear(f"{HEAD}model.timestep_encoder.timestep_embedder.linear_{layer}", x)
            x = x * torch.sigmoid(x)
        return x
