"""Flow matching on demonstrations: batches, the loss, and what is held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .demonstrations import Demonstrations, Encoder
from .model import Pi05

#: Of an image's grey levels in [-1, 1]: factor on contrast, brightness of all and of one colour.
_CONTRAST, _BRIGHTNESS, _TINT = 0.12, 0.08, 0.03


@dataclass(frozen=True)
class Batch:
    """B decisions on the device that trains.

    Attributes:
        images: [B, V, R, R, 3] uint8.
        tokens: [B, P] int64; ``lengths`` [B] int64.
        actions: [B, H, A] float32, normalised, zero where the robot has no joint.
    """

    images: Tensor
    tokens: Tensor
    lengths: Tensor
    actions: Tensor


class Samples:
    """Demonstrations in memory, encoded once.

    Args:
        data: decisions of an expert.
        encoder: what the engine will do to them.
        width: A, action numbers of the network.
        device: where batches are wanted; on a GPU everything lies there.
    """

    def __init__(
        self, data: Demonstrations, encoder: Encoder, width: int, device: torch.device
    ) -> None:
        tokens, lengths = encoder.prompts(data.state, data.task, data.instructions)
        actions = torch.from_numpy(encoder.actions(data.chunk, data.state))
        self.joints = actions.shape[-1]
        self.images = torch.from_numpy(data.images).to(device)
        self.tokens = torch.from_numpy(tokens.astype(np.int64)).to(device)
        self.lengths = torch.from_numpy(lengths.astype(np.int64)).to(device)
        self.actions = F.pad(actions, (0, width - self.joints)).to(device)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, rows: Tensor) -> Batch:
        """The decisions ``rows`` [B] int64."""
        at = rows.to(self.images.device)
        return Batch(self.images[at], self.tokens[at], self.lengths[at], self.actions[at])


def pixels(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """uint8 [B, V, R, R, 3] -> float32 in [-1, 1]; with a generator, in another light each."""
    x = images.float() / 127.5 - 1.0
    if generator is None:
        return x

    def draw(*shape: int) -> Tensor:
        values = torch.rand(*images.shape[:2], *shape, generator=generator)
        return (2.0 * values - 1.0).to(x.device)

    gain = 1.0 + _CONTRAST * draw(1, 1, 1)
    offset = _BRIGHTNESS * draw(1, 1, 1) + _TINT * draw(1, 1, 3)
    return torch.addcmul(offset, x, gain).clamp_(-1.0, 1.0)


def draw_times(count: int, samples: int, generator: torch.Generator) -> Tensor:
    """[count, samples] of Beta(1.5, 1) * 0.999 + 0.001, the samples of a row spread over it."""
    places = torch.arange(samples) + torch.rand(count, samples, generator=generator)
    return 0.999 * (places / samples) ** (2.0 / 3.0) + 0.001


Network = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def network(model: Pi05) -> Network:
    """Velocities of noisy samples from images, tokens, lengths, samples and embedded times."""

    def run(
        images: Tensor, tokens: Tensor, lengths: Tensor, samples: Tensor, times: Tensor
    ) -> Tensor:
        return model.velocity(samples, times, model.context(images, tokens, lengths))

    return run


def flow_loss(
    run: Network,
    model: Pi05,
    batch: Batch,
    joints: int,
    samples: int,
    generator: torch.Generator,
    *,
    augment: bool,
) -> Tensor:
    """Mean squared error of the velocity, over the robot's own joints.

    Columns that the robot lacks are zero on the way in, so that weights from and to them, zero at
    the start, stay zero: whatever noise the engine puts there changes nothing.
    """
    count, rows, width = batch.actions.shape
    times = draw_times(count, samples, generator)
    shape = (count, samples, rows, joints)
    noise = torch.randn(shape, generator=generator).to(batch.actions.device)
    target = batch.actions[:, None, :, :joints]
    now = times[..., None, None].to(noise.device)
    noisy = F.pad(now * noise + (1.0 - now) * target, (0, width - joints))
    images = pixels(batch.images, generator if augment else None)
    found = run(images, batch.tokens, batch.lengths, noisy, model.embed_times(times))
    return F.mse_loss(found[..., :joints], noise - target)


def close_unused(model: Pi05, joints: int) -> None:
    """Zeroes the weights of action numbers that the robot lacks."""
    with torch.no_grad():
        model.action_in_proj.weight[:, joints:] = 0.0
        model.action_out_proj.weight[joints:] = 0.0
        model.action_out_proj.bias[joints:] = 0.0


@torch.no_grad()
def held_out(
    model: Pi05, data: Samples, cast: Callable[[], Any], limit: int = 256
) -> dict[str, float]:
    """Errors on decisions that are not trained on, with the same noise at every call.

    Returns:
        ``loss``, that of the training; ``action``, mean absolute error of sampled actions in the
        network's range, and ``first``, the same over the first half of the rows.
    """
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(data), generator=generator)[:limit]
    run, losses, errors = network(model), [], []
    for rows in chosen.split(64):
        batch = data.batch(rows)
        with cast():
            losses.append(
                flow_loss(run, model, batch, data.joints, 4, generator, augment=False).item()
            )
            context = model.context(pixels(batch.images), batch.tokens, batch.lengths)
            shape = (len(rows), 1, *batch.actions.shape[1:])
            noise = torch.randn(shape, generator=generator).to(batch.actions.device)
            found = model.sample(noise, context)[:, 0]
        errors.append((found - batch.actions)[..., : data.joints].abs().float().cpu())
    error = torch.cat(errors)
    half = error.shape[1] // 2
    return {
        "loss": float(np.mean(losses)),
        "action": float(error.mean()),
        "first": float(error[:, :half].mean()),
    }


class Average:
    """Exponential moving average of a model's weights, shorter at the start.

    Args:
        model: whose weights; the average starts as them.
        decay: share that stays at each step.
    """

    def __init__(self, model: Pi05, decay: float) -> None:
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, model: Pi05, step: int) -> None:
        """Takes in the weights behind ``step``, counted from 1."""
        share = 1.0 - min(self._decay, (1 + step) / (10 + step))
        own = list(self.weights.values())
        new = list(model.state_dict().values())
        torch._foreach_lerp_(own, new, share)
