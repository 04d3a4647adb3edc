"""What the golden cases of GR00T N1.7 run: sizes, weights, images, tokens, state, noise.

As :mod:`.case` for π0.5: both sides use this file, only outputs are stored, and every number comes
from formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashrt_core.policies.groot_n17.config import GrootConfig, make_config
from flashrt_core.policies.groot_n17.weights import tensors
from flashrt_core.tensors import TensorSpec

from .case import SEED, Array, raw_image, uniform

__all__ = ["SEED", "raw_image"]

#: Overrides of the ``base`` preset: its full depth (24, 16, 4, 32), narrow enough for any machine.
#: What LeRobot's code fixes is as there: a feed-forward block four times as wide as its stream, 256
#: numbers of a time.
SIZES: dict[str, Any] = {
    "vision_width": 64,
    "vision_heads": 4,
    "vision_ffn": 96,
    "vision_table": 12,
    "text_width": 96,
    "text_heads": 6,
    "text_kv_heads": 2,
    "text_head_dim": 32,
    "text_ffn": 160,
    "text_sections": (6, 5, 5),
    "adapter_heads": 4,
    "adapter_ffn": 384,
    "head_width": 64,
    "head_heads": 4,
    "head_ffn": 256,
    "head_hidden": 48,
    "image_size": 96,
    "vocab": 1024,
    "embodiments": 4,
    "positions": 64,
}
#: Tokens of the cases; the network knows them by their place alone.
IMAGE, VISION_START, VISION_END, CHAT = 1000, 1001, 1002, (1003, 77, 78)
VIEWS = ("view_0", "view_1", "view_2")


@dataclass(frozen=True)
class Case:
    """One decision.

    Attributes:
        name: prefix of its arrays in the data file.
        views: cameras.
        words: tokens of the instruction.
        embodiment: slot of the projections.
        steps: of the sampler.
        arithmetic: "float32", "bfloat16", or "rounded": float32 arithmetic and weights after the
            module went through bfloat16, so that only its buffers of rotary frequencies keep their
            rounding.
    """

    name: str
    views: int
    words: int
    embodiment: int = 1
    steps: int = 4
    arithmetic: str = "float32"

    @property
    def numerics(self) -> str:
        """The profile that it needs of ours."""
        return "lerobot" if self.arithmetic == "float32" else "lerobot_bf16"


CASES = (
    Case("one_view", views=1, words=7),
    Case("two_views", views=2, words=19, embodiment=3),
    Case("three_views", views=3, words=3, steps=2),
    Case("rounded", views=2, words=19, arithmetic="rounded"),
    Case("bfloat16", views=2, words=19, arithmetic="bfloat16"),
)


def config(case: Case, **changes: Any) -> GrootConfig:
    """Our configuration of a case."""
    own = {"embodiment": case.embodiment, "steps": case.steps, "numerics": case.numerics}
    return make_config("base", **SIZES, **(own | changes))


class Formulas:
    """Weights from formulas, with the means and deviations of the random stand-in; a source."""

    digest = "formulas"

    def __init__(self, specs: dict[str, TensorSpec]) -> None:
        self._specs = specs

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._specs

    def get(self, name: str) -> Tensor:
        """A new float32 tensor."""
        spec = self._specs[name]
        values = uniform(name, prod(spec.shape)).reshape(spec.shape)
        return torch.from_numpy(values * np.float32(spec.std * 3.0**0.5) + np.float32(spec.mean))


def source(case: Case) -> Formulas:
    """The checkpoint of a case."""
    return Formulas(tensors(config(case)))


def images(case: Case) -> dict[str, Array]:
    """View name -> [R, R, 3] uint8: coarse blocks plus noise."""
    size, found = SIZES["image_size"], {}
    for view in VIEWS[: case.views]:
        coarse = uniform(f"blocks.{view}", 48).reshape(4, 4, 3)
        coarse = coarse.repeat(size // 4, axis=0).repeat(size // 4, axis=1)
        grain = uniform(f"noise.{view}", size * size * 3).reshape(size, size, 3)
        found[view] = np.clip(128.0 + 90.0 * coarse + 60.0 * grain, 0, 255).astype(np.uint8)
    return found


def words(case: Case) -> list[int]:
    """Token ids of the instruction and of the chat's end."""
    drawn = (uniform("words", case.words) + 1.0) / 2.0 * (IMAGE - 1)
    return [*(int(value) for value in drawn), CHAT[1], CHAT[2]]


def text_tokens(case: Case) -> list[int]:
    """Token ids without those of images, as our window takes them."""
    return [*CHAT, *[VISION_START, VISION_END] * case.views, *words(case)]


def all_tokens(case: Case) -> list[int]:
    """Token ids as LeRobot takes them."""
    side = SIZES["image_size"] // 32
    image = [VISION_START, *[IMAGE] * side**2, VISION_END]
    return [*CHAT, *image * case.views, *words(case)]


def state(case: Case) -> Array:
    """[1, 132] float32 in [-1, 1): 9 numbers of a robot, then zeros."""
    values = np.zeros((1, 132), np.float32)
    values[0, :9] = uniform("state", 9)
    return values


def noise(case: Case) -> Array:
    """[40, 132] float32, variance 1."""
    return uniform("noise", 40 * 132).reshape(40, 132) * np.float32(3.0**0.5)


#: Instructions; each is cleaned to something.
PROMPTS = (
    "Pick up the RED block!",
    "  under_scored (and) \n lines  ",
    "Grüße, 把杯子 放好 🤖 2½",
    "7",
    "don't you'll THEY'RE",
)
#: Texts as they are, to cut and merge.
TEXTS = (
    "it's WE'LL I'd 'sup  two  spaces\n\n x",
    "a1b2 c3 ½² ٣ e\u0301 x\u00a0y\u2028z",
    "\t\ttabs \r\n end !!! ??\n\n\nok __",
)

#: Camera sizes: taller, wider, smaller, larger, equal; what is cropped before and behind.
RAW_SIZES = ((120, 90), (48, 160), (60, 60), (300, 300), (96, 96))
EDGE, FRACTION = 104, 0.95

#: A robot of three groups: joints relative to the state, with ranges a row; a gripper; a base that
#: never moved.
MODALITY: dict[str, Any] = {
    "state": {"modality_keys": ["gripper", "joints", "base"]},
    "action": {
        "modality_keys": ["joints", "gripper", "base"],
        "delta_indices": list(range(6)),
        "action_configs": [
            {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": "joints"},
            {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
            {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
        ],
    },
    "video": {"modality_keys": ["front", "wrist"], "delta_indices": [0]},
}
_GROUPS = {"joints": 4, "gripper": 1, "base": 2}


def _spans(name: str, count: int) -> dict[str, Any]:
    low = uniform(f"{name}.low", count).astype(np.float64) - 1.0
    span = uniform(f"{name}.span", count).astype(np.float64) + 1.5
    if name.endswith("base"):
        span[-1] = 0.0
    parts = {"min": 0.0, "q01": 0.1, "mean": 0.5, "q99": 0.9, "max": 1.0, "std": 0.3}
    return {stat: (low + share * span).tolist() for stat, share in parts.items()}


#: As ``statistics.json`` has them for one embodiment.
STATISTICS: dict[str, Any] = {
    part: {group: _spans(f"{part}.{group}", count) for group, count in _GROUPS.items()}
    for part in ("state", "action")
}
STATISTICS["relative_action"] = {
    "joints": {
        stat: [[value * (1 + 0.3 * row) for value in values] for row in range(6)]
        for stat, values in _spans("relative.joints", 4).items()
    }
}


def robot_state() -> Array:
    """[7] float32 in robot units, two of them outside of their range."""
    values = uniform("robot.state", 7) - np.float32(0.3)
    values[[1, 4]] = (9.0, -9.0)
    return values


def raw_actions() -> Array:
    """[40, 132] float32 as a network gives them, some beyond [-1, 1]."""
    return uniform("raw.actions", 40 * 132).reshape(40, 132) * np.float32(1.4)
