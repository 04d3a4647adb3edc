"""The stages of LingBot-VA on a device, without engine and session."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.policies.lingbot_va import POLICY, LingbotConfig
from flashrt_core.policies.lingbot_va.preprocess import squares
from flashrt_core.policies.windows import image_input
from flashrt_core.tensors import TensorSource
from flashrt_core.weights import open_weights

Array = np.ndarray[Any, Any]


class Pipeline:
    """Buffers, weights and captured stages of one configuration.

    Args:
        config, views, precision: of the plan.
        source: the checkpoint; None: random weights.
        device: where stages run; None: on the CPU.
    """

    def __init__(
        self,
        config: LingbotConfig,
        views: int = 2,
        precision: str = "fp32",
        source: TensorSource | None = None,
        device: Any = None,
    ) -> None:
        self.config = config
        self.views = POLICY.slots[:views]
        shapes = POLICY.shapes(config, views)
        self.contract = POLICY.contract(config, shapes, self.views, precision)
        self.device = device or CpuDevice()
        memory = self.device if hasattr(self.device, "allocate") else CpuDevice()
        self.buffers = memory.allocate(self.contract.buffers)
        self.source = source or open_weights("random:0", POLICY.tensors(config))
        POLICY.pack(config, self.source, self.buffers)
        self.turn = 0
        self._programs: dict[tuple[Any, ...], Any] = {}

    def run(self, stage: str, bucket: int = 0) -> None:
        """Replays a stage's variant of this turn."""
        last = self.contract.stage(stage).variants - 1
        shape, variant = self.contract.shapes[bucket], min(self.turn, last)
        key = (stage, shape, variant)
        if key not in self._programs:
            body = POLICY.body(self.config, self.contract, stage, shape, variant)
            issue = [(stage, lambda lane: body(lane, self.buffers))]
            self._programs[key] = self.device.capture(issue)
        self.device.replay(self._programs[key])

    def write(self, name: str, value: Array) -> None:
        """Puts values into a buffer, as a device does."""
        if hasattr(self.device, "write"):
            self.device.write(self.buffers[name], value)
        else:
            self.buffers[name].copy_(torch.from_numpy(value))

    def read(self, name: str) -> Tensor:
        """A copy of a buffer on the CPU."""
        if hasattr(self.device, "read"):
            return torch.from_numpy(self.device.read(self.buffers[name]))
        return self.buffers[name].clone()

    def set_prompt(self, prompt: Array, empty: Array, bucket: int = 0) -> None:
        """Rows of both texts."""
        rows = np.zeros(tuple(self.buffers["prompt_rows"].shape), np.float32)
        lengths = np.array([len(prompt), len(empty)], np.int32)
        for index, text in enumerate((prompt, empty)):
            rows[index, 1 : 1 + len(text)] = text
        self.write("prompt_rows", rows)
        self.write("prompt_lengths", lengths)
        self.run("prompt", bucket)

    def decide(
        self,
        frames: list[Array],
        noise: dict[str, Array],
        executed: Array | None = None,
        bucket: int = 0,
    ) -> Tensor:
        """One chunk, as the reference takes it: the actions."""
        for view, video in zip(self.views, frames, strict=True):
            values = np.zeros(tuple(self.buffers[image_input(view)].shape), np.float32)
            for index, picture in enumerate(video):
                values[index] = squares(picture)
            self.write(image_input(view), values)
        for name, value in noise.items():
            self.write(name, value)
        if executed is not None:
            self.write("executed", executed)
        for stage in ("commit", "video", "action"):
            self.run(stage, bucket)
        self.turn += 1
        return self.read("actions")
