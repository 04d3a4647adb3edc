"""Everything of the action expert that depends only on the denoising step, tabulated once.

Source: openpi, PyTorch sampler (sine-cosine embedding in float64, time MLP in float32).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ...weights import TensorSource
from .config import Pi05Config
from .numerics import step_times

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0


def step_size(steps: int) -> float:
    """dt = float32(-1/N): the integration runs from t = 1 (noise) to t = 0 (action)."""
    return float(np.float32(-1.0 / steps))


def time_left(steps: int, step: int) -> float:
    """How far the sample of a step is from the action, float32: what the steps behind it go in all.

    The time that the network is told may be another in its last bits (``time_grid``).
    """
    return float(np.float32((steps - step) / steps))


def time_embedding(times: list[float], width: int) -> Tensor:
    """[N, width] float32: sines, then cosines, of width/2 geometric periods from 4 ms to 4 s.

    Computed in float64: at t = 1 the fastest angle is 1571 rad, where float32 is off by 1e-4.
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64)
    period = MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** fraction
    angle = torch.tensor(times, dtype=torch.float64)[:, None] * (2.0 * torch.pi / period)
    return torch.cat((angle.sin(), angle.cos()), dim=1).float()


def fill_modulation(config: Pi05Config, source: TensorSource, table: Tensor) -> None:
    """Fills the step table of all conditioned norms.

    Args:
        config: sizes.
        source: checkpoint; time MLP and the ``dense`` of every norm are read.
        table: [N, 2L + 1, 3, D] float32; norms in the order they run (before attention and before
            the feed-forward block of each layer, then the last), then scale, shift, gate.
    """
    width = config.expert.width
    cond = time_embedding(step_times(config.numerics, config.steps), width)
    for layer in ("time_mlp_in", "time_mlp_out"):
        weight, bias = source.get(f"{layer}.weight").float(), source.get(f"{layer}.bias").float()
        cond = F.silu(torch.addmm(bias, cond.to(weight.device), weight.t()))
    for site, name in enumerate(norm_names(config)):
        weight, bias = (source.get(f"{name}.dense.{kind}").float() for kind in ("weight", "bias"))
        table[:, site].copy_(torch.addmm(bias, cond, weight.t()).view(-1, 3, width))


def norm_names(config: Pi05Config) -> list[str]:
    """Checkpoint names of the conditioned norms, in the order they run."""
    model = "paligemma_with_expert.gemma_expert.model"
    names = [
        f"{model}.layers.{layer}.{norm}"
        for layer in range(config.expert.depth)
        for norm in ("input_layernorm", "post_attention_layernorm")
    ]
    return [*names, f"{model}.norm"]
