"""The stages of π0.5 on the CPU device, without engine and session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashrt_core.contract import ShapeKey
from flashrt_core.devices.cpu import CpuDevice, CpuProgram
from flashrt_core.guidance import GUIDANCE, PREVIOUS
from flashrt_core.policies.pi05 import POLICY, Pi05Config
from flashrt_core.policies.pi05.reference import ReferenceGuide
from flashrt_core.weights import open_weights

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


class Pipeline:
    """Buffers, weights and captured stages of one configuration."""

    def __init__(
        self,
        config: Pi05Config,
        views: tuple[str, ...] = TWO,
        precision: str = "fp32",
        weights: str = "random:0",
    ) -> None:
        self.config = config
        self.views = views
        shapes = POLICY.shapes(config, len(views))
        self.contract = POLICY.contract(config, shapes, views, precision)
        self.device = CpuDevice()
        self.buffers = self.device.allocate(self.contract.buffers)
        self.source = open_weights(weights, POLICY.tensors(config))
        POLICY.pack(config, self.source, self.buffers)
        self._programs: dict[tuple[str, ShapeKey], CpuProgram] = {}

    def shape(self, length: int) -> ShapeKey:
        """The captured shape for a prompt of that many tokens."""
        config = self.config
        return self.contract.shape_for(
            views=len(self.views),
            prompt_tokens=length,
            horizon=config.horizon,
            steps=config.steps,
        )

    def program(self, stage: str, shape: ShapeKey) -> CpuProgram:
        """A captured stage; each is captured once."""
        if (stage, shape) not in self._programs:
            body = POLICY.body(self.config, self.contract, stage, shape)
            issue = [(stage, lambda lane: body(lane, self.buffers))]
            self._programs[stage, shape] = self.device.capture(issue)
        return self._programs[stage, shape]

    def write(self, case: Case) -> None:
        """Puts a case into the windows."""
        for view in self.views:
            self.device.write(self.buffers[f"image.{view}"], case.images[view])
        tokens = np.zeros(self.config.max_prompt_tokens, np.int32)
        tokens[: len(case.tokens)] = case.tokens
        self.device.write(self.buffers["prompt_tokens"], tokens)
        length = np.array([len(case.tokens)], np.int32)
        self.device.write(self.buffers["prompt_length"], length)
        self.device.write(self.buffers["noise"], case.noise)
        if self.config.real_time_chunking:
            none = np.zeros_like(case.noise)
            guide = case.guide or ReferenceGuide(none, none)
            self.device.write(self.buffers[PREVIOUS], guide.previous)
            self.device.write(self.buffers[GUIDANCE], guide.weight)

    def run(self, *stages: str, length: int, shape: ShapeKey | None = None) -> Tensor:
        """Replays stages on what the windows hold; the actions."""
        for stage in stages:
            self.device.replay(self.program(stage, shape or self.shape(length)))
        return self.buffers["actions"].clone()

    def decide(self, case: Case, shape: ShapeKey | None = None) -> Tensor:
        """One decision from its inputs."""
        self.write(case)
        length = len(case.tokens)
        return self.run("prompt", "context", "action", length=length, shape=shape)


def spread(actions: Tensor) -> float:
    """Range of the actions: what errors are measured against."""
    return float(actions.max() - actions.min())


def worst(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference."""
    return float((a.double() - b.double()).abs().max())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, NaN included."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
