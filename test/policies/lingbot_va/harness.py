"""The stages of LingBot-VA on the CPU device, without engine and session."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashrt_core.devices.cpu import CpuDevice, CpuProgram
from flashrt_core.policies.lingbot_va import POLICY, LingbotConfig
from flashrt_core.policies.lingbot_va.preprocess import squares
from flashrt_core.policies.windows import image_input
from flashrt_core.tensors import TensorSource
from flashrt_core.weights import open_weights

Array = np.ndarray[Any, Any]


class Pipeline:
    """Buffers, weights and captured stages of one configuration."""

    def __init__(
        self,
        config: LingbotConfig,
        views: int = 2,
        precision: str = "fp32",
        source: TensorSource | None = None,
    ) -> None:
        self.config = config
        self.views = POLICY.slots[:views]
        shapes = POLICY.shapes(config, views)
        self.contract = POLICY.contract(config, shapes, self.views, precision)
        self.device = CpuDevice()
        self.buffers = self.device.allocate(self.contract.buffers)
        self.source = source or open_weights("random:0", POLICY.tensors(config))
        POLICY.pack(config, self.source, self.buffers)
        self.turn = 0
        self._programs: dict[tuple[Any, ...], CpuProgram] = {}

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

    def set_prompt(self, prompt: Array, empty: Array, bucket: int = 0) -> None:
        """Rows of both texts."""
        rows, lengths = self.buffers["prompt_rows"], self.buffers["prompt_lengths"]
        rows.zero_()
        for index, text in enumerate((prompt, empty)):
            rows[index, 1 : 1 + len(text)] = torch.from_numpy(text)
            lengths[index] = len(text)
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
            window = self.buffers[image_input(view)]
            for index, picture in enumerate(video):
                window[index] = torch.from_numpy(squares(picture))
        for name, value in noise.items():
            self.buffers[name].copy_(torch.from_numpy(value))
        if executed is not None:
            self.buffers["executed"].copy_(torch.from_numpy(executed))
        for stage in ("commit", "video", "action"):
            self.run(stage, bucket)
        self.turn += 1
        return self.buffers["actions"].clone()
