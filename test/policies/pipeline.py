"""The stages of a policy on the CPU device, without engine and session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashrt_core.contract import ShapeKey
from flashrt_core.devices.cpu import CpuDevice, CpuProgram
from flashrt_core.guidance import GUIDANCE, PREVIOUS
from flashrt_core.policies.base import Policy
from flashrt_core.policies.reference import ReferenceGuide
from flashrt_core.policies.windows import STATE, image_input
from flashrt_core.weights import TensorSource, open_weights

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """Inputs of one decision: pixels by view, ids of the text rows, noise; the state as a row."""

    images: dict[str, Array]
    tokens: list[int]
    noise: Array
    guide: ReferenceGuide | None = None
    state: Array | None = None


def draw_case(
    config: Any, views: tuple[str, ...], length: int, seed: int, *, lowest: int = 0
) -> Case:
    """Random pixels, ``length`` token ids, noise, and a state where there is a window for it."""
    draw = np.random.default_rng(seed)
    side, state = config.image_size, None
    images = {view: draw.integers(0, 256, (side, side, 3), dtype=np.uint8) for view in views}
    tokens = draw.integers(lowest, config.vocab, length).tolist()
    if config.state_width:
        state = draw.uniform(-1, 1, (1, config.state_width)).astype(np.float32)
    noise = draw.standard_normal((config.horizon, config.action_dim), dtype=np.float32)
    return Case(images, tokens, noise, state=state)


class StagePipeline:
    """Buffers, weights and captured stages of one configuration of a policy."""

    def __init__(
        self,
        policy: Policy,
        config: Any,
        views: tuple[str, ...],
        precision: str = "fp32",
        weights: str | TensorSource = "random:0",
    ) -> None:
        self.policy = policy
        self.config = config
        self.views = views
        shapes = policy.shapes(config, len(views))
        self.contract = policy.contract(config, shapes, views, precision)
        self.device = CpuDevice()
        self.buffers = self.device.allocate(self.contract.buffers)
        self.source = (
            open_weights(weights, policy.tensors(config)) if isinstance(weights, str) else weights
        )
        policy.pack(config, self.source, self.buffers)
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
            body = self.policy.body(self.config, self.contract, stage, shape)
            issue = [(stage, lambda lane: body(lane, self.buffers))]
            self._programs[stage, shape] = self.device.capture(issue)
        return self._programs[stage, shape]

    def write_prompt(self, tokens: Sequence[int]) -> None:
        """Puts token ids into their window, and their count."""
        window = np.zeros(self.config.max_prompt_tokens, np.int32)
        window[: len(tokens)] = tokens
        self.device.write(self.buffers["prompt_tokens"], window)
        self.device.write(self.buffers["prompt_length"], np.array([len(tokens)], np.int32))

    def write(self, case: Case) -> None:
        """Puts a case into the windows."""
        for view in self.views:
            self.device.write(self.buffers[image_input(view)], case.images[view])
        self.write_prompt(case.tokens)
        if case.state is not None:
            self.device.write(self.buffers[STATE], case.state)
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

    def run(self, *stages: str, length: int, shape: ShapeKey | None = None) -> Tensor:
        """Replays stages on what the windows hold; the actions."""
        for stage in stages:
            self.device.replay(self.program(stage, shape or self.shape(length)))
        return self.buffers["actions"].clone()

    def run_all(self, length: int, shape: ShapeKey | None = None) -> Tensor:
        """Replays every stage in order."""
        stages = (stage.name for stage in self.contract.stages)
        return self.run(*stages, length=length, shape=shape)


def count_ops(policy: Policy, preset: str, views: tuple[str, ...]) -> dict[str, list[str]]:
    """Ops each stage issues; the buffers are on the meta device, so that base takes no memory."""
    config = policy.config(preset)
    shapes = policy.shapes(config, len(views))
    contract = policy.contract(config, shapes, views, "bf16")
    buffers = {
        spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.value), device="meta")
        for spec in contract.buffers
    }

    class Counter:
        def __init__(self) -> None:
            self.names: list[str] = []

        def issue(self, op: Any, *args: Any, **kwargs: Any) -> None:
            self.names.append(op.name)

    found = {}
    for stage in contract.stages:
        counter = Counter()
        policy.body(config, contract, stage.name, shapes[0])(counter, buffers)
        found[stage.name] = counter.names
    return found


def spread(actions: Tensor) -> float:
    """Range of the actions: what errors are measured against."""
    return float(actions.max() - actions.min())


def worst(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference."""
    return float((a.double() - b.double()).abs().max())


def least_cosine(a: Tensor, b: Tensor) -> float:
    """The least of the rows' cosines."""
    return float(torch.cosine_similarity(a.double(), b.double(), dim=1).min())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, NaN included."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
