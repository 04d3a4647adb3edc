"""The stages of GR00T N1.7 on the CPU device, without engine and session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from flashrt_core.contract import ShapeKey
from flashrt_core.guidance import GUIDANCE, PREVIOUS
from flashrt_core.policies.groot_n17 import POLICY, GrootConfig
from flashrt_core.policies.groot_n17.layout import marks
from flashrt_core.policies.groot_n17.reference import Reference, ReferenceContext
from flashrt_core.policies.reference import ReferenceGuide
from flashrt_core.tensors import TensorSource

from ..pipeline import StagePipeline

Array = np.ndarray[Any, Any]
VIEWS = POLICY.slots
TWO = VIEWS[:2]


@dataclass(frozen=True)
class Case:
    """Inputs of one decision; ``tokens`` are those of the text rows."""

    images: dict[str, Array]
    tokens: list[int]
    state: Array
    noise: Array
    guide: ReferenceGuide | None = None

    def expected(self, reference: Reference) -> tuple[ReferenceContext, Tensor]:
        """What the reference makes of it."""
        context = reference.context(list(self.images.values()), self.tokens, self.state)
        return context, reference.act(self.noise, context, self.guide)


def make_case(config: GrootConfig, views: tuple[str, ...], words: int, seed: int = 0) -> Case:
    """Random pixels, token ids, state and noise; ``words`` behind the marks of the chat."""
    draw = np.random.default_rng(seed)
    side = config.image_size
    return Case(
        {view: draw.integers(0, 256, (side, side, 3), dtype=np.uint8) for view in views},
        draw.integers(0, config.vocab, marks(config, len(views)) + words).tolist(),
        draw.uniform(-1, 1, (1, config.state_width)).astype(np.float32),
        draw.standard_normal((config.horizon, config.action_dim), dtype=np.float32),
    )


class Pipeline(StagePipeline):
    """Buffers, weights and captured stages of one configuration."""

    def __init__(
        self,
        config: GrootConfig,
        views: tuple[str, ...] = TWO,
        precision: str = "fp32",
        weights: str | TensorSource = "random:0",
    ) -> None:
        super().__init__(POLICY, config, views, precision, weights)

    def write(self, case: Case) -> None:
        """Puts a case into the windows."""
        for view in self.views:
            self.device.write(self.buffers[f"image.{view}"], case.images[view])
        self.write_prompt(case.tokens)
        self.device.write(self.buffers["state"], case.state)
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
