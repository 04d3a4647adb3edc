"""What the golden episodes of LingBot-VA run: sizes, weights, pictures, prompts, noise.

As :mod:`.case` for π0.5: both sides use this file, only outputs are stored, and every number comes
from formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flashrt_core.policies.lingbot_va.config import LingbotConfig, make_config
from flashrt_core.policies.lingbot_va.weights import tensors

from .case import Array, uniform
from .groot import Formulas

#: A camera's picture: [Y, X], resized to the network's.
CAMERA = (48, 40)
TEXT = (7, 1)  # rows of the prompt, and of the empty one
#: Token ids of the text encoder's case; 1 ends a text.
IDS = (17, 403, 56, 9, 998, 31, 2, 640, 77, 5, 812, 1)


@dataclass(frozen=True)
class Case:
    """An episode.

    Attributes:
        name: prefix of its arrays in the data file.
        views: cameras.
        chunks: decisions.
        sizes: overrides of the preset.
        preset: whose sizes these are.
    """

    name: str
    views: int
    chunks: int
    sizes: tuple[tuple[str, Any], ...] = ()
    preset: str = "tiny"

    @property
    def config(self) -> LingbotConfig:
        """Our configuration."""
        return make_config(self.preset, **dict(self.sizes))


CASES = (
    Case("row", views=2, chunks=8),
    Case("long_rows", views=1, chunks=7, sizes=(("frame_rows", 8), ("window", 5), ("frames", 3))),
    Case("tee", views=3, chunks=3, sizes=(("tee", 1), ("height", 64), ("width", 64))),
)


def source(case: Case) -> Formulas:
    """The checkpoint of a case."""
    return Formulas(tensors(case.config))


def frames(case: Case, chunk: int) -> list[Array]:
    """For each camera [T, Y, X, 3] uint8: what was seen since the last decision."""
    count = 1 if chunk == 0 else 4 * (case.config.frames - (chunk == 1))
    shape = (count, *CAMERA, 3)
    found = []
    for view in range(case.views):
        coarse = uniform(f"{case.name}.{chunk}.{view}", count * 48).reshape(count, 4, 4, 3)
        coarse = coarse.repeat(CAMERA[0] // 4, axis=1).repeat(CAMERA[1] // 4, axis=2)
        grain = uniform(f"grain.{case.name}.{chunk}.{view}", prod(shape)).reshape(shape)
        found.append(np.clip(128.0 + 90.0 * coarse + 40.0 * grain, 0, 255).astype(np.uint8))
    return found


def prompts(case: Case) -> tuple[Array, Array]:
    """Rows of the instruction and of the empty prompt, float32."""
    width = case.config.net.text
    real, empty = (uniform(f"prompt.{n}", n * width).reshape(n, width) for n in TEXT)
    return real, empty


def noise(case: Case, chunk: int) -> tuple[Array, Array]:
    """Latents [C, F, h, w] and actions [A, F, a], variance 1."""
    config = case.config
    shapes = (
        (config.vae.latent, config.frames, *config.grid(case.views)),
        (config.action_dim, config.frames, config.frame_rows),
    )
    scale = np.float32(3.0**0.5)
    latents, actions = (
        uniform(f"noise.{case.name}.{chunk}.{index}", prod(shape)).reshape(shape) * scale
        for index, shape in enumerate(shapes)
    )
    return latents, actions


def executed(case: Case, chunk: int, actions: Array) -> Array:
    """What was done of actions [H, A]: in odd chunks not quite what was decided."""
    if chunk % 2 == 0:
        return actions
    used = list(case.config.channels)
    done = actions.copy()
    off = uniform(f"off.{case.name}.{chunk}", len(done) * len(used)).reshape(len(done), -1)
    done[:, used] += np.float32(0.1) * off
    return done
