"""The stages of π0.5 on the CPU device, without engine and session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from flashrt_core.contract import ShapeKey
from flashrt_core.guidance import GUIDANCE, PREVIOUS
from flashrt_core.policies.pi05 import POLICY, Pi05Config
from flashrt_core.policies.reference import ReferenceGuide

from ..pipeline import StagePipeline, same_bits, spread, worst

__all__ = ["TWO", "VIEWS", "Case", "Pipeline", "make_case", "same_bits", "spread", "worst"]

VIEWS = POLICY.slots
TWO = VIEWS[:2]


@dataclass(frozen=True)
class Case:
    """Inputs of one decision."""

    images: dict[str, np.ndarray[Any, Any]]
    tokens: list[int]
    noise: np.ndarray[Any, Any]
    guide: ReferenceGuide | None = None


def make_case(config: Pi05Config, views: tuple[str, ...], length: int, seed: int = 0) -> Case:
    """Random pixels, token ids and noise."""
    draw = np.random.default_rng(seed)
    side = config.image_size
    return Case(
        {view: draw.integers(0, 256, (side, side, 3), dtype=np.uint8) for view in views},
        draw.integers(4, config.vocab, length).tolist(),
        draw.standard_normal((config.horizon, config.action_dim), dtype=np.float32),
    )


class Pipeline(StagePipeline):
    """Buffers, weights and captured stages of one configuration."""

    def __init__(
        self,
        config: Pi05Config,
        views: tuple[str, ...] = TWO,
        precision: str = "fp32",
        weights: str = "random:0",
    ) -> None:
        super().__init__(POLICY, config, views, precision, weights)

    def write(self, case: Case) -> None:
        """Puts a case into the windows."""
        for view in self.views:
            self.device.write(self.buffers[f"image.{view}"], case.images[view])
        self.write_prompt(case.tokens)
        self.device.write(self.buffers["noise"], case.noise)
        if self.config.real_time_chunking:
            none = np.zeros_like(case.noise)
            guide = case.guide or ReferenceGuide(none, none)
            self.device.write(self.buffers[PREVIOUS], guide.previous)
            self.device.write(self.buffers[GUIDANCE], guide.weight)

    def decide(self, case: Case, shape: ShapeKey | None = None) -> Tensor:
        """One decision from its inputs."""
        self.write(case)
        return self.run_all(len(case.tokens), shape)
