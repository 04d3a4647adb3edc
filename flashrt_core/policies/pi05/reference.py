"""π0.5 straight from its formulas, to compare the stages with. Slow on purpose.

Shares nothing with the stages: unpacked checkpoint tensors, no ops, no tables, no dropped rows.
Absent cameras and the padding of the prompt are computed and masked, the way the official code does
it, so that equality also shows that leaving them out changes nothing. float32, or float64 to tell
whose rounding a difference is.

Source: openpi, PyTorch modules (SigLIP, Gemma, action expert and sampler).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ...weights import TensorSource
from ..reference import Array, ReferenceGuide, ReferenceNetwork, gelu, unit_rms
from .config import SLOTS, GemmaConfig, Pi05Config

_MASKED = -2.3819763e38  # added to the score of a pair that must not see each other
_MODEL = "paligemma_with_expert."
_EVERY_STEP = (f"{_MODEL}gemma_expert.", "action_", "time_")


@dataclass(frozen=True)
class ReferenceContext:
    """What one observation gives.

    Attributes:
        keys, values: [L, 3 T + P, d] of the whole padded prefix; keys are turned already.
        valid: [3 T + P] bool, rows that count.
        text: [P, D of the trunk] scaled embedding rows of the padded prompt.
    """

    keys: Tensor
    values: Tensor
    valid: Tensor
    text: Tensor


@dataclass(frozen=True)
class ReferenceResult(ReferenceContext):
    """What one decision gives: a context and ``actions`` [H, A], normalised."""

    actions: Tensor


class Reference(ReferenceNetwork):
    """The network on unpacked weights.

    Args:
        config: sizes.
        source: checkpoint.
        dtype: torch.float32, or torch.float64.
        place: where torch computes.
    """

    def __init__(
        self,
        config: Pi05Config,
        source: TensorSource,
        dtype: torch.dtype = torch.float32,
        place: str | torch.device = "cpu",
    ) -> None:
        super().__init__(source, dtype, place, _EVERY_STEP)
        self.config = config

    @torch.inference_mode()
    def decide(
        self,
        images: Mapping[str, Array],
        tokens: Sequence[int],
        noise: Array,
        guide: ReferenceGuide | None = None,
    ) -> ReferenceResult:
        """One decision.

        Args:
            images: view name -> [R, R, 3] uint8; views that are missing here are masked.
            tokens: token ids of the prompt, without padding.
            noise: [H, A] float32, the sample at time 1.
            guide: of real-time chunking.
        """
        context = self.context(images, tokens)
        return self.finish(context, noise, guide)

    def finish(
        self,
        context: ReferenceContext,
        noise: Array,
        guide: ReferenceGuide | None = None,
    ) -> ReferenceResult:
        """The decision on a context; ``noise`` and ``guide`` as for :meth:`decide`."""
        actions = self.act(noise, context.keys, context.values, context.valid, guide)
        return ReferenceResult(**vars(context), actions=actions)

    @torch.inference_mode()
    def context(self, images: Mapping[str, Array], tokens: Sequence[int]) -> ReferenceContext:
        """What decisions on an observation share; arguments as for :meth:`decide`."""
        with self.place:
            x, valid = self._prefix(images, tokens)
            positions = valid.cumsum(0) - 1
            keys, values = self._trunk(x, valid, positions)
        text = x[valid.shape[0] - self.config.max_prompt_tokens :]
        return ReferenceContext(keys, values, valid, text)

    @torch.inference_mode()
    def act(
        self,
        noise: Array,
        keys: Tensor,
        values: Tensor,
        valid: Tensor,
        guide: ReferenceGuide | None = None,
    ) -> Tensor:
        """The sampler alone: actions [H, A] from any context, as :class:`ReferenceResult` has it.

        Rows that do not count may be left out altogether.
        """
        with self.place:
            keys, values, valid = (
                x.to(self.place) for x in (keys.to(self.dtype), values.to(self.dtype), valid)
            )
            sample = self.tensor(noise)
            dt = torch.tensor(-1.0 / self.config.steps, dtype=torch.float32)
            for step, now in enumerate(self._times(dt)):
                velocity = self._velocity(sample, now, keys, values, valid)
                if guide is not None:
                    velocity = self._guided(sample, velocity, 1.0 - step / self.config.steps, guide)
                sample = sample + dt.to(self.dtype) * velocity
            return sample

    def _guided(
        self, sample: Tensor, velocity: Tensor, time: float, guide: ReferenceGuide
    ) -> Tensor:
        """The velocity towards the clean estimate when that is blended with the previous chunk."""
        previous, weight = self.tensor(guide.previous), self.tensor(guide.weight)
        clean = sample - time * velocity
        clean = clean + weight * (previous - clean)
        return (sample - clean) / time

    def _times(self, dt: Tensor) -> Iterator[Tensor]:
        """float32 times, in openpi's loop or in LeRobot's."""
        if self.config.numerics.time_grid == "accumulated":
            now = torch.tensor(1.0, dtype=torch.float32)
            while now >= -dt / 2:
                yield now.clone()
                now += dt
        else:
            for step in range(self.config.steps):
                yield torch.tensor(1.0 + step * (-1.0 / self.config.steps), dtype=torch.float32)

    # ---- prefix ---------------------------------------------------------------------------------

    def _prefix(self, images: Mapping[str, Array], tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        config = self.config
        black = np.zeros((config.image_size, config.image_size, 3), np.uint8)
        stack = np.stack([images.get(slot, black) for slot in SLOTS])
        pixels = torch.from_numpy(stack).to(self.place)
        image_rows = self._images(pixels)
        padding = config.max_prompt_tokens - len(tokens)
        ids = torch.tensor([*tokens, *[0] * padding])
        table = self.get(_MODEL + "paligemma.lm_head.weight")
        scale = torch.tensor(math.sqrt(config.trunk.width), dtype=torch.float64)
        if config.numerics.embedding_scale == "bfloat16":
            scale = scale.bfloat16()
        text_rows = table[ids] * scale.to(self.dtype)
        present = torch.tensor([slot in images for slot in SLOTS])
        written = torch.arange(config.max_prompt_tokens) < len(tokens)
        valid = torch.cat((present.repeat_interleave(image_rows.shape[1]), written))
        return torch.cat((image_rows.flatten(0, 1), text_rows)), valid

    def _images(self, pixels: Tensor) -> Tensor:
        """[3, R, R, 3] uint8 -> [3, T, D of the trunk]."""
        config = self.config
        tower = _MODEL + "paligemma.model.vision_tower.vision_model."
        scaled = pixels.to(self.dtype) / 255.0 * 2.0 - 1.0
        grid = F.conv2d(
            scaled.permute(0, 3, 1, 2),
            self.get(tower + "embeddings.patch_embedding.weight"),
            self.get(tower + "embeddings.patch_embedding.bias"),
            stride=config.patch,
        )
        x = grid.flatten(2).transpose(1, 2) + self.get(
            tower + "embeddings.position_embedding.weight"
        )
        for layer in range(config.vision.depth):
            name = f"{tower}encoder.layers.{layer}."
            normal = self.norm(f"{name}layer_norm1", x, config.eps)
            x = x + self._vision_attention(name + "self_attn.", normal)
            normal = self.norm(f"{name}layer_norm2", x, config.eps)
            hidden = gelu(self._linear(name + "mlp.fc1", normal))
            x = x + self._linear(name + "mlp.fc2", hidden)
        x = self.norm(f"{tower}post_layernorm", x, config.eps)
        return self._linear(_MODEL + "paligemma.model.multi_modal_projector.linear", x)

    def _vision_attention(self, name: str, x: Tensor) -> Tensor:
        sizes = self.config.vision
        q, k, v = (
            self._linear(f"{name}{part}_proj", x).unflatten(-1, (sizes.heads, sizes.head_dim))
            for part in "qkv"
        )
        scores = torch.einsum("nihd,njhd->nhij", q, k) / math.sqrt(sizes.head_dim)
        mixed = torch.einsum("nhij,njhd->nihd", scores.softmax(dim=-1), v)
        return self._linear(name + "out_proj", mixed.flatten(2))

    def _trunk(self, x: Tensor, valid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every layer."""
        sizes, eps = self.config.trunk, self.config.eps
        bias = torch.where(valid[None, :] & valid[:, None], 0.0, _MASKED).to(self.dtype)
        keys, values = [], []
        for layer in range(sizes.depth):
            name = f"{_MODEL}paligemma.model.language_model.layers.{layer}."
            normal = unit_rms(x, eps) * (1.0 + self.get(name + "input_layernorm.weight"))
            k, v = self._keys_values(name, normal, positions)
            keys.append(k)
            values.append(v)
            if layer == sizes.depth - 1:
                break  # no one reads what this layer would make of x; a checkpoint may lack it
            q = self._queries(name, sizes, normal, positions)
            x = x + self._mix(name, q, k, v, bias)
            gain = 1.0 + self.get(name + "post_attention_layernorm.weight")
            x = x + self._geglu(name, unit_rms(x, eps) * gain)
        return torch.stack(keys), torch.stack(values)

    # ---- action expert --------------------------------------------------------------------------

    def _velocity(
        self, sample: Tensor, now: Tensor, keys: Tensor, values: Tensor, valid: Tensor
    ) -> Tensor:
        config, sizes = self.config, self.config.expert
        cond = self._condition(now)
        x = self._linear("action_in_proj", sample)
        positions = valid.sum() + torch.arange(config.horizon)
        visible = torch.cat((valid, torch.ones(config.horizon, dtype=torch.bool)))
        bias = torch.where(visible, 0.0, _MASKED).to(self.dtype)
        for layer in range(sizes.depth):
            name = f"{_MODEL}gemma_expert.model.layers.{layer}."
            normal, gate = self._ada_norm(name + "input_layernorm", x, cond)
            q = self._queries(name, sizes, normal, positions)
            k, v = self._keys_values(name, normal, positions)
            k, v = torch.cat((keys[layer], k)), torch.cat((values[layer], v))
            x = x + gate * self._mix(name, q, k, v, bias)
            normal, gate = self._ada_norm(name + "post_attention_layernorm", x, cond)
            x = x + gate * self._geglu(name, normal)
        normal, _ = self._ada_norm(f"{_MODEL}gemma_expert.model.norm", x, cond)
        return self._linear("action_out_proj", normal)

    def _condition(self, now: Tensor) -> Tensor:
        """Time -> [D of the expert], the input of every conditioned norm."""
        count = self.config.expert.width // 2
        periods = [4e-3 * 1000.0 ** (index / (count - 1)) for index in range(count)]
        angles = now.double() * 2.0 * math.pi / torch.tensor(periods, dtype=torch.float64)
        x = torch.cat((angles.sin(), angles.cos())).float().to(self.dtype)
        for layer in ("time_mlp_in", "time_mlp_out"):
            x = self._linear(layer, x)
            x = x * torch.sigmoid(x)
        return x

    def _ada_norm(self, name: str, x: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift, gate = self._linear(f"{name}.dense", cond).chunk(3)
        return unit_rms(x, self.config.eps) * (1.0 + scale) + shift, gate

    # ---- shared ---------------------------------------------------------------------------------

    def _queries(self, name: str, sizes: GemmaConfig, x: Tensor, positions: Tensor) -> Tensor:
        """[M, heads, d], turned to their positions."""
        q = self._linear(f"{name}self_attn.q_proj", x)
        return self._turn(q.reshape(-1, sizes.heads, sizes.head_dim), positions)

    def _keys_values(self, name: str, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """k [M, d], turned to their positions, and v [M, d]."""
        k, v = (self._linear(f"{name}self_attn.{part}_proj", x) for part in "kv")
        return self._turn(k[:, None], positions)[:, 0], v

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        frequency = self.config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        if self.config.numerics.rope_frequencies == "bfloat16":
            frequency = frequency.bfloat16().double()
        angles = positions[:, None].double() * frequency
        cos, sin = (
            part.to(self.dtype).repeat(1, 2)[:, None] for part in (angles.cos(), angles.sin())
        )
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    def _mix(self, name: str, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = torch.einsum("ihd,jd->hij", q, k) / math.sqrt(q.shape[-1]) + bias
        mixed = torch.einsum("hij,jd->ihd", scores.softmax(dim=-1), v)
        return self._linear(name + "self_attn.o_proj", mixed.flatten(1))

    def _geglu(self, name: str, x: Tensor) -> Tensor:
        gate, up = self._linear(name + "mlp.gate_proj", x), self._linear(name + "mlp.up_proj", x)
        return self._linear(name + "mlp.down_proj", gelu(gate) * up)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.get(name + ".weight").t()
        has_bias = name.startswith(("action_", "time_")) or any(
            part in name for part in ("vision_tower", "multi_modal_projector", ".dense")
        )
        return y + self.get(name + ".bias") if has_bias else y
