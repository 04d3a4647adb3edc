"""How latents lie as tokens, and when the noise levels of both streams are.

A video token is a square of four latent cells: [y, x, channel] inside, in the order of the grid's
rows outside, a frame behind the other. The checkpoint's own order of a token's numbers is another
where it enters the network; packing turns that weight's columns.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .config import LingbotConfig


def to_tokens(latents: Tensor) -> Tensor:
    """[C, F, h, w] -> [F h/2 w/2, 4 C]."""
    C, F, h, w = latents.shape
    cells = latents.view(C, F, h // 2, 2, w // 2, 2)
    return cells.permute(1, 2, 4, 3, 5, 0).reshape(F * (h // 2) * (w // 2), 4 * C)


def to_latents(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """The inverse, for a grid of h x w cells."""
    h, w = grid
    cells = tokens.view(-1, h // 2, w // 2, 2, 2, tokens.shape[1] // 4)
    return cells.permute(5, 0, 1, 3, 2, 4).reshape(cells.shape[5], -1, h, w)


def levels(steps: int, shift: float) -> list[float]:
    """Noise levels of the steps, from 1 down; 0 is behind the last.

    In float32, as the official samplers compute them.
    """
    even = torch.linspace(1.0, 0.0, steps + 1)[:-1]
    return (shift * even / (1 + (shift - 1) * even)).tolist()


def step_sizes(steps: int, shift: float) -> list[float]:
    """What a velocity is multiplied by in each step; negative, a float32 value."""
    at = np.array([*levels(steps, shift), 0.0], np.float32)
    return [float(size) for size in at[1:] - at[:-1]]


def times(steps: int, shift: float) -> list[float]:
    """The network's time in each step, and 0 for what is known."""
    at = torch.tensor(levels(steps, shift)) * 1000
    return [*at.tolist(), 0.0]


def offsets(config: LingbotConfig, views: int, stream: str) -> Tensor:
    """[M, 3] float32: latent frame from the chunk's start, row and column of each token.

    Action rows lie between the frames and on no cell of the grid.
    """
    frames = torch.arange(config.frames, dtype=torch.float32)
    if stream == "video":
        h, w = (side // 2 for side in config.grid(views))
        axes = (frames, torch.arange(h).float(), torch.arange(w).float())
        return torch.cartesian_prod(*axes)
    between = torch.ones(config.frame_rows).cumsum(0) / (config.frame_rows + 1)
    at = (frames[:, None] + between).flatten()
    return torch.stack((at, torch.full_like(at, -1.0), torch.full_like(at, -1.0)), dim=1)


def frequencies(config: LingbotConfig) -> tuple[Tensor, Tensor]:
    """Of each angle of a head: its frequency, float64, and the axis of the offset it turns with."""
    dim = config.net.head_dim
    third = dim // 3
    of_axis = (dim - 2 * third, third, third)
    found = [
        config.theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        for width in of_axis
    ]
    axes = [torch.full((len(each),), axis) for axis, each in enumerate(found)]
    return torch.cat(found), torch.cat(axes)
