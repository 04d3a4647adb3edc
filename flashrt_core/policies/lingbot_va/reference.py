"""LingBot-VA in plain float32 torch, chunk by chunk: what the stages are compared with.

Written after the released sampler: every pass allocates its rows of the pool, attends to all that
are valid and gives temporary ones back; both prompts are run in every pass, their rows of padding
too. Shares neither ops, packing, tables nor the stages' algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ...tensors import TensorSource
from ..reference import Array, ReferenceNetwork
from .config import LingbotConfig
from .layout import frequencies, offsets, step_sizes, times, to_latents, to_tokens
from .reference_vae import StreamingEncoder
from .weights import NET, VAE

Get = Callable[[str], Tensor]


@dataclass
class Pool:
    """Keys and values of what was seen and predicted; the same rows in every block.

    Attributes:
        ids: of the pass that wrote a row.
        valid, predicted: what the row holds.
        keys, values: [L, 2, rows, heads, d].
    """

    ids: list[int]
    valid: list[bool]
    predicted: list[bool]
    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, rows: int, shape: tuple[int, ...]) -> Pool:
        """Nothing in it; ``shape``: blocks, prompts, heads, width of a head."""
        L, B, *head = shape
        keys, values = (torch.zeros(L, B, rows, *head) for _ in range(2))
        return cls([-1] * rows, [False] * rows, [False] * rows, keys, values)

    def take(self, count: int, predicted: bool) -> list[int]:
        """Rows for a pass: the first free ones; before that, where there are too few, the rows of
        the oldest passes are given up, of one pass the lower ones first.
        """
        lacking = count - self.valid.count(False)
        if lacking > 0:
            held = [row for row, valid in enumerate(self.valid) if valid]
            for row in sorted(held, key=lambda row: self.ids[row])[:lacking]:
                self.valid[row] = False
        rows = [row for row, valid in enumerate(self.valid) if not valid][:count]
        newest = max((self.ids[row] for row, valid in enumerate(self.valid) if valid), default=-1)
        for row in rows:
            self.ids[row], self.valid[row], self.predicted[row] = newest + 1, True, predicted
        return rows

    def release(self, rows: list[int]) -> None:
        """What a temporary pass wrote is void."""
        for row in rows:
            self.valid[row] = False

    def forget_predictions(self) -> None:
        """Before what really happened is written."""
        self.valid = [v and not p for v, p in zip(self.valid, self.predicted, strict=True)]


@dataclass
class Chunk:
    """What one decision gave.

    Attributes:
        actions: [H, A].
        latents: [C, F, h, w], the predicted video.
    """

    actions: Tensor
    latents: Tensor


@dataclass
class State:
    """What lives on between decisions."""

    pool: Pool
    encoders: list[StreamingEncoder]
    frame: int = 0
    first: Tensor | None = None
    opened: bool = False
    text: Tensor = field(default_factory=lambda: torch.empty(0))


class Reference(ReferenceNetwork):
    """One episode at a time.

    Args:
        config: sizes.
        source: checkpoint; read unrounded.
        views: cameras.
        place: where torch computes.
    """

    def __init__(
        self, config: LingbotConfig, source: TensorSource, views: int, place: str = "cpu"
    ) -> None:
        super().__init__(source, torch.float32, place, again=(NET, VAE))
        self._config = config
        self._views = views
        self.restart()

    def restart(self) -> None:
        """A new episode; the prompt stays unknown."""
        config, net = self._config, self._config.net
        shape = (net.depth, 2, net.heads, net.head_dim)
        pool = Pool.empty(config.capacity(self._views), shape)
        encoders = [StreamingEncoder(config.vae, self.get) for _ in range(self._views)]
        self.state = State(pool, encoders)

    def set_prompt(self, prompt: Array, empty: Array) -> None:
        """Rows [n, text] of the instruction and of the empty prompt, from the text encoder."""
        rows = torch.zeros(2, self._config.prompt_rows, self._config.net.text)
        for index, each in enumerate((prompt, empty)):
            rows[index, : len(each)] = torch.tensor(each, dtype=torch.float32)
        name = "condition_embedder.text_embedder.linear_"
        hidden = F.gelu(self._linear(f"{name}1", rows.to(self.place)), approximate="tanh")
        self.state.text = self._linear(f"{name}2", hidden)

    def decide(
        self,
        frames: list[Array],
        noise: Mapping[str, Array],
        executed: Array | None = None,
    ) -> Chunk:
        """One chunk.

        Args:
            frames: for each camera [T, H, W, 3] float32 in -1..1: one frame in a first decision,
                then those seen while the last chunk was executed.
            noise: ``noise`` [H, A] and ``noise.video`` in tokens.
            executed: [H, A], what was done with the last chunk; None in a first decision.
        """
        state = self.state
        latents = self.encode(frames)
        if executed is None:
            state.first = latents
        else:
            self._commit(latents, self.tensor(executed))
        opening = state.first if executed is None else None
        video = self.tensor(noise["noise.video"])
        video = self._denoise_video(video, opening)
        actions = self.tensor(noise["noise"])
        actions = self._denoise_actions(actions, opening is not None)
        return Chunk(actions, to_latents(video, self._config.grid(self._views)))

    def encode(self, frames: list[Array]) -> Tensor:
        """[C, F, h, w] of all cameras on their grid."""
        made = []
        for encoder, video in zip(self.state.encoders, frames, strict=True):
            made.append(encoder.encode(self.tensor(video).permute(3, 0, 1, 2)))
        if self._config.tee:
            return torch.cat((torch.cat(made[1:], dim=-1), made[0]), dim=-2)
        return torch.cat(made, dim=-1)

    def _commit(self, latents: Tensor, executed: Tensor) -> None:
        state = self.state
        state.pool.forget_predictions()
        if state.frame == 0 and state.first is not None:
            latents = torch.cat((state.first, latents), dim=1)
        still = [0.0] * self._config.frames
        tokens = self._video_tokens(to_tokens(latents))
        self._pass(tokens, "video", still, keep=True, predicted=False)
        actions = self._action_tokens(executed)
        self._pass(actions, "action", still, keep=True, predicted=False)
        state.frame += latents.shape[1]

    def _denoise_video(self, x: Tensor, first: Tensor | None) -> Tensor:
        config = self._config
        F_, each = config.frames, config.frame_tokens(self._views)
        sizes = [*step_sizes(config.steps, config.shift), None]
        for time, size in zip(times(config.steps, config.shift), sizes, strict=True):
            at = [time] * F_
            if first is not None:
                x = torch.cat((to_tokens(first), x[each:]))
                at[0] = 0.0
            last = size is None
            out = self._pass(self._video_tokens(x), "video", at, keep=last, predicted=last)
            if size is not None:
                velocity = self._linear("proj_out", out)
                x = x + size * (velocity[1] + config.guidance * (velocity[0] - velocity[1]))
        return x if first is None else torch.cat((to_tokens(first), x[each:]))

    def _denoise_actions(self, x: Tensor, opening: bool) -> Tensor:
        config = self._config
        a = config.frame_rows
        unused = [c for c in range(config.action_dim) if c not in config.channels]
        sizes = [*step_sizes(config.action_steps, config.action_shift), None]
        for time, size in zip(times(config.action_steps, config.action_shift), sizes, strict=True):
            at = [time] * config.frames
            if opening:
                x[:a], at[0] = 0.0, 0.0
            x[:, unused] = 0.0
            last = size is None
            out = self._pass(self._action_tokens(x), "action", at, keep=last, predicted=last)
            if size is not None:
                x = x + size * self._linear("action_proj_out", out[0])
        if opening:
            x[:a] = 0.0
        x[:, unused] = 0.0
        return x

    def _video_tokens(self, x: Tensor) -> Tensor:
        """The checkpoint's order inside a token: channel, y, x."""
        x = x.view(len(x), 2, 2, -1).permute(0, 3, 1, 2).flatten(1)
        return self._linear("patch_embedding_mlp", x)

    def _action_tokens(self, x: Tensor) -> Tensor:
        return self._linear("action_embedder", x)

    def _pass(
        self, x: Tensor, stream: str, at: list[float], *, keep: bool, predicted: bool
    ) -> Tensor:
        """Token rows [n, D] of a stream through all blocks for both prompts: [2, n, D]."""
        config, net, state = self._config, self._config.net, self.state
        name = "condition_embedder" if stream == "video" else "condition_embedder_action"
        each = len(x) // config.frames
        embedded, projected = self._time(name, at)
        of_row = torch.arange(config.frames, device=x.device).repeat_interleave(each)
        rope = self._rope(stream)
        rows = state.pool.take(len(x), predicted)
        valid = [row for row, held in enumerate(state.pool.valid) if held]
        h = x.expand(2, *x.shape)
        for block in range(net.depth):
            part = f"blocks.{block}."
            table = self.get(f"{NET}{part}scale_shift_table") + projected.view(-1, 6, net.width)
            shift, scale, gate, c_shift, c_scale, c_gate = table[of_row].unbind(1)
            normal = self._normal(h) * (1 + scale) + shift
            h = h + gate * self._attend_history(part, block, normal, rope, rows, valid)
            normal = F.layer_norm(
                h,
                (net.width,),
                self.get(f"{NET}{part}norm2.weight"),
                self.get(f"{NET}{part}norm2.bias"),
                config.eps,
            )
            h = h + self._attend_text(part, normal)
            normal = self._normal(h) * (1 + c_scale) + c_shift
            hidden = F.gelu(self._linear(f"{part}ffn.net.0.proj", normal), approximate="tanh")
            h = h + c_gate * self._linear(f"{part}ffn.net.2", hidden)
        if not keep:
            state.pool.release(rows)
        table = self.get(f"{NET}scale_shift_table") + embedded[:, None]
        shift, scale = table[of_row].unbind(1)
        return self._normal(h) * (1 + scale) + shift

    def _attend_history(
        self,
        part: str,
        block: int,
        normal: Tensor,
        rope: Tensor,
        rows: list[int],
        valid: list[int],
    ) -> Tensor:
        q, k, v = self._qkv(f"{part}attn1", normal, normal)
        pool = self.state.pool
        pool.keys[block, :, rows] = _turn(k, rope).to(pool.keys)
        pool.values[block, :, rows] = v.to(pool.values)
        keys, values = (each[block][:, valid].to(q) for each in (pool.keys, pool.values))
        return self._mix(f"{part}attn1", _turn(q, rope), keys, values)

    def _attend_text(self, part: str, normal: Tensor) -> Tensor:
        q, k, v = self._qkv(f"{part}attn2", normal, self.state.text)
        return self._mix(f"{part}attn2", q, k, v)

    def _qkv(self, name: str, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        net, eps = self._config.net, self._config.eps
        q = self._linear(f"{name}.to_q", x)
        k, v = (self._linear(f"{name}.to_{part}", source) for part in "kv")
        q, k = (
            F.rms_norm(value, (net.width,), self.get(f"{NET}{name}.norm_{part}.weight"), eps)
            for part, value in (("q", q), ("k", k))
        )
        heads = (net.heads, net.head_dim)
        return q.unflatten(-1, heads), k.unflatten(-1, heads), v.unflatten(-1, heads)

    def _mix(self, name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        scores = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
        return self._linear(f"{name}.to_out.0", (scores @ v).transpose(1, 2).flatten(2))

    def _time(self, name: str, at: list[float]) -> tuple[Tensor, Tensor]:
        """Of each frame: the embedding [F, D] and the six vectors of a block side by side."""
        half = self._config.net.time // 2
        rates = torch.exp(-np.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        angles = (torch.tensor(at)[:, None] * rates).to(self.place)
        waves = torch.cat((angles.cos(), angles.sin()), dim=1)
        hidden = F.silu(self._linear(f"{name}.time_embedder.linear_1", waves))
        embedded = self._linear(f"{name}.time_embedder.linear_2", hidden)
        return embedded, self._linear(f"{name}.time_proj", F.silu(embedded))

    def _rope(self, stream: str) -> Tensor:
        """[n, 1, d/2] complex."""
        at = offsets(self._config, self._views, stream)
        at = at + torch.tensor([float(self.state.frame), 0.0, 0.0])
        rates, axes = frequencies(self._config)
        angles = (at.double()[:, axes] * rates).float().to(self.place)
        return torch.polar(torch.ones_like(angles), angles)[:, None]

    def _normal(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), eps=self._config.eps)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.get(f"{NET}{name}.weight"), self.get(f"{NET}{name}.bias"))


def _turn(x: Tensor, rope: Tensor) -> Tensor:
    """Neighbouring numbers of a head turn together."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rope).flatten(-2)
