"""π0.5 to train: any ``Pi05Config``, in batches, with gradients, on a CPU or a GPU.

Parameters have the names of a checkpoint, so ``state_dict()`` is one; what no one reads in a
checkpoint (the last trunk layer behind its keys and values, output heads) has none. A test holds
this network equal to the reference that the engine is held to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from flashrt_core.kernels.rope_rows import rope_rows_ref
from flashrt_core.policies.pi05.config import GemmaConfig, Pi05Config
from flashrt_core.policies.pi05.numerics import embedding_scale, step_times
from flashrt_core.policies.pi05.schedule import step_size, time_embedding
from flashrt_core.policies.transformer import Transformer


@dataclass(frozen=True)
class Context:
    """What B observations give; S = V T + P rows, the last of them perhaps padding.

    Attributes:
        keys, values: one [B, S, d] a layer; keys are turned to their positions already.
        valid: [B, S] bool, rows that count.
        lengths: [B] int64, how many do; the action rows stand behind them.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    valid: Tensor
    lengths: Tensor


class Pi05(nn.Module):
    """The network.

    Args:
        config: sizes and numerics.

    Weights are drawn for training from scratch: gates of the expert open, its modulation off.
    """

    _rope: Tensor

    def __init__(self, config: Pi05Config) -> None:
        super().__init__()
        self.config = config
        trunk, expert = config.trunk, config.expert
        self.paligemma_with_expert = nn.ModuleDict(
            {
                "paligemma": nn.ModuleDict(
                    {
                        "model": nn.ModuleDict(
                            {
                                "vision_tower": nn.ModuleDict({"vision_model": _Tower(config)}),
                                "multi_modal_projector": nn.ModuleDict(
                                    {"linear": nn.Linear(config.vision.width, trunk.width)}
                                ),
                                "language_model": _stack(
                                    _TrunkLayer(trunk, last=last) for last in _last(trunk.depth)
                                ),
                            }
                        ),
                        "lm_head": nn.Embedding(config.vocab, trunk.width),
                    }
                ),
                "gemma_expert": nn.ModuleDict({"model": _Expert(expert, config.eps)}),
            }
        )
        self.action_in_proj = nn.Linear(config.action_dim, expert.width)
        self.action_out_proj = nn.Linear(expert.width, config.action_dim)
        self.time_mlp_in = nn.Linear(expert.width, expert.width)
        self.time_mlp_out = nn.Linear(expert.width, expert.width)
        rows = 3 * config.view_tokens + config.max_prompt_tokens + config.horizon
        rope = torch.empty(rows, trunk.head_dim)
        rope_rows_ref(
            torch.zeros(1, dtype=torch.int32),
            rope,
            theta=config.rope_theta,
            rounded=config.numerics.rope_frequencies == "bfloat16",
        )
        self.register_buffer("_rope", rope, persistent=False)
        self._text_scale = embedding_scale(config.numerics, trunk.width)
        _draw(self)

    def context(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> Context:
        """The prefix of B observations.

        Args:
            images: [B, V, R, R, 3] float32 in [-1, 1], the cameras in use in slot order.
            tokens: [B, P] int64, anything behind a prompt's own length.
            lengths: [B] int64, tokens of each prompt.
        """
        views = images.shape[1]
        parts: Any = self.paligemma_with_expert["paligemma"]
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2)
        rows = parts["model"]["vision_tower"]["vision_model"](pixels)
        rows = parts["model"]["multi_modal_projector"]["linear"](rows)
        text = parts["lm_head"](tokens) * self._text_scale
        x = torch.cat((rows.unflatten(0, (-1, views)).flatten(1, 2).float(), text), dim=1)
        own = lengths + (x.shape[1] - tokens.shape[1])
        valid = torch.arange(x.shape[1], device=x.device) < own[:, None]
        rope = self._rope[: x.shape[1]]
        keys, values = [], []
        for layer in parts["model"]["language_model"]["layers"]:
            x, k, v = layer(x, rope, valid[:, None, None], self.config.eps)
            keys.append(k)
            values.append(v)
        return Context(tuple(keys), tuple(values), valid, own)

    def velocity(self, samples: Tensor, times: Tensor, context: Context) -> Tensor:
        """d sample / d t of K samples a context.

        Args:
            samples: [B, K, H, A] float32.
            times: [B, K, D of the expert], of :meth:`embed_times`.
            context: of the same B observations.

        Returns:
            [B, K, H, A] float32.
        """
        cond = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(times))))
        places = context.lengths[:, None] + torch.arange(samples.shape[2], device=samples.device)
        rope = self._rope[places][:, None, :, None]
        x = self.action_in_proj(samples)
        expert: Any = self.paligemma_with_expert["gemma_expert"]
        x = expert["model"](x, cond, rope, context)
        return self.action_out_proj(x).float()

    def embed_times(self, times: Tensor) -> Tensor:
        """[...] times in [0, 1] on the CPU -> [..., D of the expert] where the weights are."""
        width = self.config.expert.width
        table = time_embedding(times.flatten().tolist(), width)
        return table.unflatten(0, times.shape).to(self._rope.device)

    @torch.no_grad()
    def sample(self, noise: Tensor, context: Context) -> Tensor:
        """Euler steps from ``noise`` [B, K, H, A] at time 1 to actions, normalised."""
        x, dt = noise, step_size(self.config.steps)
        for now in step_times(self.config.numerics, self.config.steps):
            times = self.embed_times(torch.full(x.shape[:2], now))
            x = x + dt * self.velocity(x, times, context)
        return x


class _Tower(nn.Module):
    """SigLIP: [N, 3, R, R] -> [N, T, D]."""

    def __init__(self, config: Pi05Config) -> None:
        super().__init__()
        width = config.vision.width
        self.embeddings = nn.ModuleDict(
            {
                "patch_embedding": nn.Conv2d(3, width, config.patch, config.patch),
                "position_embedding": nn.Embedding(config.view_tokens, width),
            }
        )
        self.encoder: Any = _stack(
            _VisionLayer(config.vision, config.eps) for _ in range(config.vision.depth)
        )
        self.post_layernorm = nn.LayerNorm(width, config.eps)

    def forward(self, pixels: Tensor) -> Tensor:
        grid = self.embeddings["patch_embedding"](pixels)
        x = grid.flatten(2).transpose(1, 2).float() + self.embeddings["position_embedding"].weight
        for layer in self.encoder["layers"]:
            x = layer(x)
        return self.post_layernorm(x)


class _VisionLayer(nn.Module):
    def __init__(self, sizes: Transformer, eps: float) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.self_attn = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, sizes.ffn), "fc2": nn.Linear(sizes.ffn, width)}
        )

    def forward(self, x: Tensor) -> Tensor:
        normal = self.layer_norm1(x)
        q, k, v = (
            self.self_attn[f"{part}_proj"](normal).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in "qkv"
        )
        mixed = _attend(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.self_attn["out_proj"](mixed)
        hidden = self.mlp["fc1"](self.layer_norm2(x))
        return x + self.mlp["fc2"](F.gelu(hidden, approximate="tanh"))


class _Gemma(nn.Module):
    """What trunk and expert layers share: the products, without norms."""

    def __init__(self, sizes: GemmaConfig, *, last: bool = False) -> None:
        super().__init__()
        self.sizes = sizes
        shapes = {"k_proj": sizes.head_dim, "v_proj": sizes.head_dim}
        if not last:
            shapes["q_proj"] = sizes.q_width
        self.self_attn = nn.ModuleDict(
            {name: nn.Linear(sizes.width, out, bias=False) for name, out in shapes.items()}
        )
        if last:
            return
        self.self_attn["o_proj"] = nn.Linear(sizes.q_width, sizes.width, bias=False)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(sizes.width, sizes.ffn, bias=False),
                "up_proj": nn.Linear(sizes.width, sizes.ffn, bias=False),
                "down_proj": nn.Linear(sizes.ffn, sizes.width, bias=False),
            }
        )

    def mix(
        self, normal: Tensor, rope: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> Tensor:
        """Attention of rows [B, n, M, D] to keys [B, n, N, d]: all query heads share them, so the
        heads are rows too. ``rope`` [..., M, 1, d], ``mask`` [B, 1, 1, N].
        """
        q = self.self_attn["q_proj"](normal).unflatten(-1, (self.sizes.heads, -1))
        q = _turn(q, rope).to(values.dtype)
        mixed = _attend(q.flatten(-3, -2), keys, values, mask)
        return self.self_attn["o_proj"](mixed.unflatten(-2, (-1, self.sizes.heads)).flatten(-2))

    def feed_forward(self, normal: Tensor) -> Tensor:
        """The GeGLU block."""
        gate = F.gelu(self.mlp["gate_proj"](normal), approximate="tanh")
        return self.mlp["down_proj"](gate * self.mlp["up_proj"](normal))

    def keys_values(self, normal: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Both [..., M, d]; ``rope`` [..., M, d]."""
        v = self.self_attn["v_proj"](normal)
        return _turn(self.self_attn["k_proj"](normal), rope).to(v.dtype), v


class _TrunkLayer(_Gemma):
    def __init__(self, sizes: GemmaConfig, *, last: bool) -> None:
        super().__init__(sizes, last=last)
        self.input_layernorm = _Gain(sizes.width)
        if not last:
            self.post_attention_layernorm = _Gain(sizes.width)
        self.last = last

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [B, S, D], then keys and values [B, S, d]; the last layer leaves the rows alone."""
        normal = self.input_layernorm(x, eps)
        k, v = self.keys_values(normal, rope)
        if self.last:
            return x, k, v
        x = x + self.mix(normal[:, None], rope[:, None], k[:, None], v[:, None], mask)[:, 0]
        return x + self.feed_forward(self.post_attention_layernorm(x, eps)), k, v


class _Expert(nn.Module):
    def __init__(self, sizes: GemmaConfig, eps: float) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(_ExpertLayer(sizes) for _ in range(sizes.depth))
        self.norm = _Modulation(sizes.width)
        self.eps = eps

    def forward(self, x: Tensor, cond: Tensor, rope: Tensor, context: Context) -> Tensor:
        """Rows [B, K, H, D]; ``cond`` [B, K, D]; ``rope`` [B, 1, H, 1, d]."""
        samples, rows = x.shape[1:3]
        seen = F.pad(context.valid, (0, rows), value=True)[:, None, None]
        for layer, keys, values in zip(self.layers, context.keys, context.values, strict=True):
            normal, gate = layer.input_layernorm(x, cond, self.eps)
            k, v = (
                torch.cat((shared[:, None].expand(-1, samples, -1, -1), own), dim=2)
                for shared, own in zip(
                    (keys, values), layer.keys_values(normal, rope[..., 0, :]), strict=True
                )
            )
            x = x + gate * layer.mix(normal, rope, k, v, seen)
            normal, gate = layer.post_attention_layernorm(x, cond, self.eps)
            x = x + gate * layer.feed_forward(normal)
        return self.norm(x, cond, self.eps)[0]


class _ExpertLayer(_Gemma):
    def __init__(self, sizes: GemmaConfig) -> None:
        super().__init__(sizes)
        self.input_layernorm = _Modulation(sizes.width)
        self.post_attention_layernorm = _Modulation(sizes.width)


class _Modulation(nn.Module):
    """RMS norm whose gain and offset, and the gate of what follows, come from a condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, cond: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        scale, shift, gate = self.dense(cond)[..., None, :].chunk(3, dim=-1)
        return F.rms_norm(x, x.shape[-1:], eps=eps) * (1.0 + scale) + shift, gate


class _Gain(nn.Module):
    """RMS norm with a gain of 1 + weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], 1.0 + self.weight, eps)


def _stack(layers: Iterable[nn.Module]) -> nn.ModuleDict:
    return nn.ModuleDict({"layers": nn.ModuleList(layers)})


def _last(depth: int) -> list[bool]:
    return [layer == depth - 1 for layer in range(depth)]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scaled attention [..., M, d]; on a CPU in float32, whose gradient is several times faster
    there than that of bfloat16.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)


def _turn(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary embedding of [..., d] by [..., d]: cosines of d/2 angles, then their sines."""
    cos, sin = rope.chunk(2, dim=-1)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


_INTO_STREAM = ("self_attn.out_proj", "self_attn.o_proj", "mlp.fc2", "mlp.down_proj")


@torch.no_grad()
def _draw(model: Pi05) -> None:
    """Weights for a start from nothing.

    Products keep the size of what they multiply, those that end in a residual stream share it among
    the layers; places of patches are waves over the image's two axes.
    """
    config = model.config
    depth = {"vision_tower": config.vision.depth, "language_model": config.trunk.depth}
    for name, parameter in model.named_parameters():
        if name.endswith(".dense.weight"):
            parameter.zero_()
        elif name.endswith(".dense.bias"):
            width = config.expert.width
            parameter.zero_()[2 * width :] = 1.0
        elif name.endswith("position_embedding.weight"):
            parameter.copy_(_waves(config.image_size // config.patch, parameter.shape[1]))
        elif parameter.dim() > 1:
            parameter.normal_(std=parameter[0].numel() ** -0.5)
            if name.endswith(
                ("out_proj.weight", "o_proj.weight", "fc2.weight", "down_proj.weight")
            ):
                layers = next((n for part, n in depth.items() if part in name), config.expert.depth)
                parameter.mul_((2 * layers) ** -0.5)
        elif name.endswith("bias"):
            parameter.zero_()


def _waves(side: int, width: int) -> Tensor:
    """[side * side, width]: sines and cosines of rows and columns, amplitude 1/2."""
    quarter = width // 4
    frequencies = math.pi / 2 ** torch.linspace(0, math.log2(2 * side), max(1, quarter))
    angles = torch.arange(side)[:, None] * frequencies
    one = torch.cat((angles.sin(), angles.cos()), dim=1)
    rows, columns = one[:, None].expand(-1, side, -1), one[None].expand(side, -1, -1)
    table = torch.cat((rows, columns), dim=2).flatten(0, 1)
    return 0.5 * F.pad(table, (0, width - table.shape[1]))
