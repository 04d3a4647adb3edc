"""Where the official implementations of π0.5 differ in their numbers, as switches.

A checkpoint gives the actions of the code it comes from only when every switch stands as that code
has it. docs/numerics.md says what each one does and where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from ..profiles import parse_profile

Rounding = Literal["exact", "bfloat16"]


@dataclass(frozen=True)
class Numerics:
    """One value a switch.

    Attributes:
        rope_frequencies: "bfloat16": the rotary frequencies went through bfloat16, as the buffers
            of a PyTorch module do when it is cast; up to 1 rad at position 700.
        embedding_scale: factor on embedding rows, the root of the trunk's width: "exact" (45.2548
            for 2048) or held in "bfloat16" (45.25).
        time_grid: times of the denoising steps: "accumulated" by float32 additions of dt, or
            "multiplied", 1 + step * dt in double precision and then rounded.
        image_resize: "pillow" (uint8, averages over the source area when it shrinks) or "torch"
            (bilinear between the four nearest pixels at any ratio).
        state_text: numbers of the state that the prompt holds: those of the robot ("real"), or
            "padded" with zeros to the network's width before they are discretised.
        normalisation: "added": 1e-6 on every denominator, float64; "guarded": an epsilon only where
            the denominator is 0 (mean/std: 1e-8, forward only), float32.
        overlong_prompt: more tokens than the network was trained with: "refuse", or "truncate"
            there with a warning.
    """

    rope_frequencies: Rounding = "exact"
    embedding_scale: Rounding = "exact"
    time_grid: Literal["accumulated", "multiplied"] = "multiplied"
    image_resize: Literal["pillow", "torch"] = "pillow"
    state_text: Literal["real", "padded"] = "real"
    normalisation: Literal["added", "guarded"] = "added"
    overlong_prompt: Literal["refuse", "truncate"] = "refuse"


#: Values that each switch may take, the order of :class:`Numerics`.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "rope_frequencies": ("exact", "bfloat16"),
    "embedding_scale": ("exact", "bfloat16"),
    "time_grid": ("accumulated", "multiplied"),
    "image_resize": ("pillow", "torch"),
    "state_text": ("real", "padded"),
    "normalisation": ("added", "guarded"),
    "overlong_prompt": ("refuse", "truncate"),
}

_LEROBOT = Numerics(image_resize="torch", normalisation="guarded", overlong_prompt="truncate")

#: ``openpi``: its PyTorch code, which always runs in bfloat16. ``lerobot``: LeRobot with dtype
#: float32, its default. ``lerobot_bf16``: with dtype bfloat16. ``exact``: no one's quirks.
PROFILES: Mapping[str, Numerics] = {
    "openpi": Numerics(
        rope_frequencies="bfloat16", time_grid="accumulated", overlong_prompt="truncate"
    ),
    "lerobot": _LEROBOT,
    "lerobot_bf16": replace(_LEROBOT, rope_frequencies="bfloat16", embedding_scale="bfloat16"),
    "exact": Numerics(),
}


def parse_numerics(text: str) -> Numerics:
    """A profile with single switches replaced: ``openpi`` or ``lerobot,state_text=padded``.

    OptionError on an unknown profile, switch or value.
    """
    return parse_profile(text, PROFILES, CHOICES)


def embedding_scale(numerics: Numerics, width: int) -> float:
    """Factor on embedding rows."""
    scale = width**0.5
    if numerics.embedding_scale == "bfloat16":
        return float(torch.tensor(scale).bfloat16())
    return scale


def step_times(numerics: Numerics, steps: int) -> list[float]:
    """Time at the start of each step, float32 values: from 1 (noise) towards 0 (action)."""
    if numerics.time_grid == "multiplied":
        return [float(np.float32(1.0 + step * (-1.0 / steps))) for step in range(steps)]
    times, now, dt = [], np.float32(1.0), np.float32(-1.0 / steps)
    for _ in range(steps):
        times.append(float(now))
        now = np.float32(now + dt)
    return times
