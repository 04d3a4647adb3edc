"""Everything that depends on sizes and steps alone, made once: positions, rotary rows, step tables.

Source: transformers (Qwen3-VL's rotary embeddings and interpolated positions), diffusers' timestep
embedding, Isaac-GR00T's action encoder and conditioned norms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ...tensors import TensorSource
from .config import GrootConfig
from .layout import positions

ACTION = "action_head."
MODEL = ACTION + "model."
_LONGEST = 10000.0


def step_size(steps: int) -> float:
    """dt of the sampler, whose time runs from 1 (noise) to 0 (action)."""
    return -1.0 / steps


def time_left(steps: int, step: int) -> float:
    """Time at the start of a step, in (0, 1]."""
    return (steps - step) / steps


def network_times(config: GrootConfig) -> list[int]:
    """The whole numbers that the network is told as times, from 0 (noise) upwards."""
    return [int(config.time_scale * (step / config.steps)) for step in range(config.steps)]


def _frequencies(count: int, theta: float, rounded: bool) -> Tensor:
    """theta^(-i / count) for i < count, float64."""
    found = theta ** -(torch.arange(count, dtype=torch.float64) / count)
    return found.float().bfloat16().double() if rounded else found


def _turned(angles: Tensor) -> Tensor:
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def text_rope(config: GrootConfig, views: int, bucket: int) -> Tensor:
    """[S, head_dim] float64 rotary rows; frequencies take turns between the three positions."""
    count = config.text.head_dim // 2
    rounded = config.numerics.rope_frequencies == "bfloat16"
    _, rows, columns = config.text.sections
    index = torch.arange(count)
    axis = torch.zeros(count, dtype=torch.int64)
    axis[(index % 3 == 1) & (index < 3 * rows)] = 1
    axis[(index % 3 == 2) & (index < 3 * columns)] = 2
    at = positions(config, views, bucket)[axis].t().double()
    return _turned(at * _frequencies(count, config.rope_theta, rounded))


def patch_places(config: GrootConfig) -> tuple[Tensor, Tensor]:
    """Row and column of each patch of a view, [patches] each: group by group."""
    index = torch.arange(config.view_patches)
    inner = index % config.merge**2
    group = index // config.merge**2
    groups = config.grid // config.merge
    row = group // groups * config.merge + inner // config.merge
    column = group % groups * config.merge + inner % config.merge
    return row, column


def vision_rope(config: GrootConfig) -> Tensor:
    """[patches, head_dim] float64 rotary rows: a quarter of a head by row, the next by column."""
    rounded = config.numerics.rope_frequencies == "bfloat16"
    frequencies = _frequencies(config.vision.head_dim // 4, config.vision_theta, rounded)
    angles = [place[:, None].double() * frequencies for place in patch_places(config)]
    return _turned(torch.cat(angles, dim=1))


def vision_position(config: GrootConfig, table: Tensor) -> Tensor:
    """[patches, D] float32: the learned table [side^2, D], bilinear between its four nearest."""
    side = config.vision.table
    line = torch.linspace(0, side - 1, config.grid)
    low = line.long()
    high = (low + 1).clamp_max(side - 1)
    share = line - low
    learned = table.float().view(side, side, -1)
    row, column = patch_places(config)
    total = torch.zeros(config.view_patches, learned.shape[-1], device=table.device)
    for rows, down in ((low, 1 - share), (high, share)):
        for columns, across in ((low, 1 - share), (high, share)):
            weight = (down[row] * across[column])[:, None].to(table.device)
            total += weight * learned[rows[row], columns[column]]
    return total


def time_conditions(config: GrootConfig, source: TensorSource) -> Tensor:
    """[N, W] float32: what the products of the conditioned norms read."""
    half = config.head.time // 2
    exponent = torch.arange(half, dtype=torch.float32) / (half - 1)
    times = torch.tensor(network_times(config), dtype=torch.float32)
    angles = times[:, None] * torch.exp(-math.log(_LONGEST) * exponent)
    x = torch.cat((angles.cos(), angles.sin()), dim=1)
    name = f"{MODEL}timestep_encoder.timestep_embedder.linear_"
    for layer in (1, 2):
        weight, bias = (source.get(f"{name}{layer}.{kind}").float() for kind in ("weight", "bias"))
        x = F.silu(torch.addmm(bias, x.to(weight.device), weight.t()))
    return x


def fill_modulation(config: GrootConfig, source: TensorSource, table: Tensor) -> None:
    """Fills the step table of the conditioned norms.

    Args:
        config: sizes.
        source: checkpoint.
        table: [N, depth + 1, 2, W] float32: gain (1 + scale) and shift of each block's norm, and of
            the last one, whose product has them the other way round.
    """
    conditions = time_conditions(config, source)
    names = [f"{MODEL}transformer_blocks.{i}.norm1.linear" for i in range(config.head.depth)]
    for place, name in enumerate([*names, f"{MODEL}proj_out_1"]):
        weight, bias = (source.get(f"{name}.{kind}").float() for kind in ("weight", "bias"))
        first, second = torch.addmm(bias, conditions, weight.t()).chunk(2, dim=1)
        scale, shift = (first, second) if place < config.head.depth else (second, first)
        table[:, place, 0].copy_(1.0 + scale)
        table[:, place, 1].copy_(shift)


def action_times(config: GrootConfig) -> Tensor:
    """[N, W] float32: the sinusoid of each step's time that the action encoder reads."""
    half = config.head.width // 2
    exponent = -torch.arange(half, dtype=torch.float32) * (math.log(_LONGEST) / half)
    times = torch.tensor(network_times(config), dtype=torch.float32)
    angles = times[:, None] * exponent.exp()
    return torch.cat((angles.sin(), angles.cos()), dim=1)
