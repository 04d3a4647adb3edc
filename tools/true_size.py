"""What comparisons with an official network share: random weights and scenes, stages, errors.

``true_size_<policy>.py`` hold what a policy adds to compare_true_size.py.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import toolbox  # noqa: F401  (first: it finds the packages)
import torch
from torch import Tensor

from flashrt_core.bench import machine
from flashrt_core.devices import REFERENCE_CUDA, Device, Segment, open_device
from flashrt_core.errors import DeviceError
from flashrt_core.policies.base import Policy
from flashrt_core.policies.windows import image_input
from flashrt_core.tensors import TensorSource, TensorSpec

WITHOUT_GPU = "--place cpu --narrow"
Array = np.ndarray[Any, Any]


class Drawn:
    """Random weights drawn where they are used; a tensor source. Equal names give equal values.

    Args:
        specs: tensors by name.
        place: where torch draws them.
        spread: name and tensor -> mean and deviation.
    """

    digest = "drawn"

    def __init__(
        self,
        specs: dict[str, TensorSpec],
        place: str,
        spread: Callable[[str, TensorSpec], tuple[float, float]],
    ) -> None:
        self._specs = specs
        self._place = place
        self._spread = spread

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._specs

    def get(self, name: str) -> Tensor:
        """A new float32 tensor."""
        spec = self._specs[name]
        mean, deviation = self._spread(name, spec)
        generator = torch.Generator(self._place)
        generator.manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little"))
        values = torch.randn(spec.shape, generator=generator, device=self._place)
        return values.mul_(deviation).add_(mean)


#: What a tensor's deviation is multiplied by, by the end of its name.
_CALM = {
    "attn1.to_q.weight": 0.5,
    "attn1.to_out.0.weight": 0.5,
    "ff.net.2.weight": 0.5,
    "qkv.weight": 0.8,
}


def calm(name: str, spec: TensorSpec) -> tuple[float, float]:
    """Mean and deviation: those of the random stand-in, but for queries and branches.

    They are calmer: a network that amplifies rounding noise would compare noise only.
    """
    share = next((each for end, each in _CALM.items() if name.endswith(end)), 1.0)
    return spec.mean, spec.std * share


def draw_images(
    draw: np.random.Generator, views: Iterable[str], side: int, blocks: int
) -> dict[str, Array]:
    """A random scene, pixels by view: ``blocks`` coarse blocks along a side, with grain."""
    size, images = side // blocks, {}
    for view in views:
        coarse = draw.integers(0, 200, (blocks, blocks, 3)).repeat(size, 0).repeat(size, 1)
        images[view] = (coarse + draw.integers(0, 56, (side, side, 3))).astype(np.uint8)
    return images


def stage_results(
    policy: Policy,
    config: Any,
    source: TensorSource,
    images: list[dict[str, Array]],
    rest: list[tuple[list[int], dict[str, Array]]],
    precision: str,
    device: Device,
    watched: Iterable[str],
) -> list[Array]:
    """Actions of every decision, and what is left in each watched buffer.

    Args:
        policy, config, source, precision: of the plan.
        images: of each decision, by view.
        rest: of each decision, token ids and the values of other windows.
        device: closed behind.
        watched: names of buffers.
    """
    views = tuple(images[0])
    shapes = policy.shapes(config, len(views))
    contract = policy.contract(config, shapes, views, precision)
    buffers = device.allocate(contract.buffers)
    policy.pack(config, source, buffers)
    (shape,) = shapes

    def segment(stage: str) -> Segment:
        body = policy.body(config, contract, stage, shape)
        return stage, lambda lane: body(lane, buffers)

    program = device.capture([segment(stage.name) for stage in contract.stages])
    results: list[list[Array]] = []
    for shown, (ids, windows) in zip(images, rest, strict=True):
        tokens = np.zeros(config.max_prompt_tokens, np.int32)
        tokens[: len(ids)] = ids
        length = np.array([len(ids)], np.int32)
        values = {"prompt_tokens": tokens, "prompt_length": length, **windows}
        values |= {image_input(view): pixels for view, pixels in shown.items()}
        for name, value in values.items():
            device.write(buffers[name], value)
        device.replay(program)
        results.append([device.read(buffers[name]) for name in ("actions", *watched)])
    device.close()
    return [np.stack(each) for each in zip(*results, strict=True)]


def compare(found: Array, expected: Array) -> dict[str, float]:
    """Least cosine of an action row, largest difference, root mean square difference."""
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return {
        "min_cosine": float(((found * expected).sum(-1) / norms).min()),
        "max_abs": float(np.abs(found - expected).max()),
        "rms": float(np.sqrt(np.mean((found - expected) ** 2))),
    }


def require_place(place: str) -> None:
    """DeviceError where torch has no GPU to draw weights on."""
    if place == "cuda":
        with machine.gpu_only(f"compare at the golden sizes with {WITHOUT_GPU}"):
            open_device(REFERENCE_CUDA).close()


def devices(place: str) -> list[str]:
    """Devices that this machine can run the stages on."""
    found = []
    for name in ("cpu",) if place == "cpu" else (REFERENCE_CUDA, "cuda"):
        try:
            open_device(name).close()
        except DeviceError as error:
            print(f"without device {name}: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found
