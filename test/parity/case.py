"""What the golden cases run: sizes, weights, images, tokens and noise, all from formulas.

Both sides use this file: the recorder, which runs an official implementation, and the tests, which
run ours. So only outputs are stored. Every number comes from raw Philox bits by exact arithmetic
(no library's idea of a normal distribution is involved): it is the same on every machine and
version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]

#: Overrides of the ``base`` preset: its full depth (27, 18, 18), narrow enough for any machine.
#: The trunk's width has a root that bfloat16 cannot hold (9.798 -> 9.8125).
SIZES: dict[str, Any] = {
    "vision_width": 64,
    "vision_heads": 4,
    "vision_ffn": 96,
    "trunk_width": 96,
    "trunk_heads": 8,
    "trunk_head_dim": 32,
    "trunk_ffn": 192,
    "expert_width": 64,
    "expert_heads": 8,
    "expert_head_dim": 32,
    "expert_ffn": 128,
    "image_size": 56,
    "vocab": 1024,
}
VIEWS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
SEED = 20


@dataclass(frozen=True)
class Case:
    """One decision.

    Attributes:
        name: prefix of its arrays in the data file.
        views: cameras present; the others are masked.
        tokens: valid prompt tokens.
        padded: prompt rows of the official implementation, the rest masked.
        horizon: action rows.
        steps: denoising steps.
        arithmetic: "float32", "bfloat16", or "rounded": float32 arithmetic and weights after the
            module went through bfloat16, so that only its non-persistent buffers (rotary
            frequencies, embedding scale) keep their rounding.
    """

    name: str
    views: int
    tokens: int
    padded: int
    horizon: int
    steps: int
    arithmetic: str = "float32"


CASES = (
    Case("two_views", views=2, tokens=21, padded=48, horizon=10, steps=10),
    Case("three_views", views=3, tokens=40, padded=40, horizon=15, steps=4),
    Case("one_view", views=1, tokens=5, padded=64, horizon=50, steps=10),
    Case("rounded", views=2, tokens=21, padded=48, horizon=10, steps=10, arithmetic="rounded"),
    Case("bfloat16", views=2, tokens=21, padded=48, horizon=10, steps=10, arithmetic="bfloat16"),
    Case("bfloat16_3", views=3, tokens=40, padded=40, horizon=15, steps=4, arithmetic="bfloat16"),
    Case("bfloat16_1", views=1, tokens=5, padded=64, horizon=50, steps=10, arithmetic="bfloat16"),
)
#: Layers whose keys and values are stored.
LAYERS = (0, 8, 17)
#: Step counts whose time grids are stored.
GRIDS = (4, 5, 10, 20, 50)


def uniform(name: str, count: int, seed: int = SEED) -> Array:
    """[count] float32 in [-1, 1), a pure function of seed and name; a prefix of any longer run."""
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16]
    bits = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)


def weight(name: str, shape: tuple[int, ...]) -> Array:
    """The checkpoint tensor ``name`` (openpi's names), float32; nothing saturates."""
    mean, std = spread(name, shape)
    values = uniform(name, prod(shape)).reshape(shape)
    return values * np.float32(std * 3.0**0.5) + np.float32(mean)


def load_weights(model: Any) -> None:
    """Formula weights into every parameter; a tied embedding table goes by its saved name."""
    table = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    head = "paligemma_with_expert.paligemma.lm_head.weight"
    state = {}
    for name, parameter in model.named_parameters():
        values = weight(head if name == table else name, tuple(parameter.shape))
        state[name] = torch.from_numpy(values).to(parameter.dtype)
    result = model.load_state_dict(state, strict=False)
    if result.unexpected_keys or set(result.missing_keys) - {head, table}:
        raise RuntimeError(f"weights do not fit: {result}")


def images(case: Case, size: int) -> dict[str, Array]:
    """View name -> [size, size, 3] uint8: coarse blocks plus noise."""
    result = {}
    for view in VIEWS[: case.views]:
        blocks = uniform(f"blocks.{view}", 16 * 3).reshape(4, 4, 3)
        coarse = blocks.repeat(size // 4, axis=0).repeat(size // 4, axis=1)
        noise = uniform(f"noise.{view}", size * size * 3).reshape(size, size, 3)
        result[view] = np.clip(128.0 + 90.0 * coarse + 60.0 * noise, 0, 255).astype(np.uint8)
    return result


def tokens(case: Case) -> list[int]:
    """Token ids; the first is BOS."""
    ids = (uniform("tokens", case.tokens) + 1.0) / 2.0 * SIZES["vocab"]
    return [2, *(int(value) for value in ids[1:])]


def noise(case: Case) -> Array:
    """[H, 32] float32, variance 1."""
    values = uniform(f"noise.{case.horizon}", case.horizon * 32).reshape(case.horizon, 32)
    return values * np.float32(3.0**0.5)


@dataclass(frozen=True)
class Inputs:
    """A case as the official implementations take it: a batch of one, every slot, padded text.

    Attributes:
        images: three of [1, 3, R, R] float32 in [-1, 1]; absent cameras are black.
        image_masks: three of [1] bool.
        tokens, token_mask: [1, padded].
        noise: [1, H, 32] float32.
    """

    images: list[torch.Tensor]
    image_masks: list[torch.Tensor]
    tokens: torch.Tensor
    token_mask: torch.Tensor
    noise: torch.Tensor


def inputs(case: Case, size: int) -> Inputs:
    """The official implementations' view of a case."""
    ids = tokens(case)
    padded = [*ids, *[0] * (case.padded - len(ids))]
    mask = np.arange(case.padded) < len(ids)
    return as_inputs(images(case, size), size, padded, mask, noise(case))


def as_inputs(
    shown: Mapping[str, Array], size: int, padded: list[int], mask: Array, sample: Array
) -> Inputs:
    """Images by view, padded token ids and their mask, and noise, as the official codes want."""
    pictures = []
    for view in VIEWS:
        pixels = torch.from_numpy(shown.get(view, np.zeros((size, size, 3), np.uint8)))
        pictures.append(pixels.permute(2, 0, 1)[None].float() / 255.0 * 2.0 - 1.0)
    return Inputs(
        images=pictures,
        image_masks=[torch.tensor([view in shown]) for view in VIEWS],
        tokens=torch.tensor([padded]),
        token_mask=torch.from_numpy(mask)[None],
        noise=torch.from_numpy(sample)[None],
    )


#: State vectors around the edges of the 256 bins, two robots' widths.
def states() -> list[Array]:
    """Normalised states for the prompt table."""
    edges = [-1.0, -1.0000001, -1.7, 0.0, -0.0, 0.9921875, 0.99218744, 1.0, 3.5, 0.5, -0.0078126]
    return [
        np.array(edges, np.float32),
        uniform("state.8", 8) * np.float32(1.2),
        uniform("state.32", 32) * np.float32(1.1),
    ]


PROMPTS = (
    "pick up the red block",
    "  leading and trailing  ",
    "under_scored_task_name",
    "two\nlines\n",
    "Grüße, 把杯子 放好 🤖",
    "tab\tand  double  spaces",
    "UPPER case, punctuation: 100% (really)!",
    "7",
    "a " * 250,
)


def raw_image(name: str, height: int, width: int) -> Array:
    """[height, width, 3] uint8 with structure at several scales."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [(x * 7 + y * 3) % 64 * 4, (x * y // 8) % 256, (x + 2 * y) % 256]
    grain = uniform(f"raw.{name}", height * width * 3).reshape(height, width, 3) * 40.0
    return np.clip(np.stack(waves, axis=-1) + grain, 0, 255).astype(np.uint8)


#: Camera sizes for the resize cases: taller, wider, smaller, odd, equal.
RAW_SIZES = ((120, 90), (48, 160), (33, 21), (57, 56), (56, 56))


def spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and deviation of a tensor's values: inputs show in the actions, noise does not grow."""
    if name.endswith(".bias"):
        return 0.0, 0.2 if ".dense." in name else 0.1
    if "layer_norm" in name or "post_layernorm" in name:
        return 1.0, 0.1
    if len(shape) == 1:
        return 0.0, 0.15
    if "position_embedding" in name:
        return 0.0, 0.4
    if "lm_head" in name or "embed_tokens" in name:
        return 0.0, shape[1] ** -0.5
    gain = 1.0
    if "patch_embedding" in name:
        gain = 2.0
    elif any(part in name for part in ("out_proj", "fc2", "o_proj", "down_proj")):
        gain = 0.5 if "gemma_expert" in name or "action_" in name else 0.3
    elif any(part in name for part in ("q_proj", "k_proj")):
        gain = 1.4
    elif ".dense." in name:
        gain = 0.8
    elif "time_mlp" in name:
        gain = 1.5
    return 0.0, gain * prod(shape[1:]) ** -0.5


#: Tokens that the prompt table is cut or padded to.
PROMPT_LIMIT = 200

#: Width of the statistics cases; one dimension never moved (equal quantiles).
STATS_DIM = 8
ACTION_NAMES = ("j1", "j2", "j3", "j4", "j5", "j6", "left_gripper", "j8")


def statistics(part: str) -> dict[str, list[float]]:
    """Statistics as a dataset has them; the last dimension is constant, one is nearly so."""
    low = uniform(f"stats.low.{part}", STATS_DIM).astype(np.float64) - 1.0
    span = uniform(f"stats.span.{part}", STATS_DIM).astype(np.float64) + 1.1
    span[-2:] = (3e-6, 0.0)
    return {
        "q01": (low + 0.1 * span).tolist(),
        "q99": (low + 0.9 * span).tolist(),
        "mean": (low + 0.5 * span).tolist(),
        "std": (0.3 * span).tolist(),
        "min": low.tolist(),
        "max": (low + span).tolist(),
    }


def statistics_inputs() -> tuple[Array, Array]:
    """State [1, 8] in robot units near the statistics, and network actions [1, 5, 8]."""
    known = statistics("state")
    low, high = np.array(known["min"]), np.array(known["max"])
    mix = (uniform("stats.state", STATS_DIM) + 1.0) / 2.0
    state = (low + (high - low) * mix).astype(np.float32)
    actions = uniform("stats.actions", 5 * STATS_DIM).reshape(1, 5, STATS_DIM) * np.float32(1.3)
    return state[None], actions


#: The whole way from a robot's observation to its actions.
PIPELINE = Case("pipeline", views=2, tokens=0, padded=PROMPT_LIMIT, horizon=10, steps=10)
PIPELINE_PROMPT = "put_the cup on the shelf\n"


def pipeline_images(small: bool) -> dict[str, Array]:
    """Camera images of the pipeline cases: the network's size, or others that must be resized."""
    side = SIZES["image_size"]
    shapes = ((side, side), (side, side)) if small else ((120, 90), (48, 160))
    return {view: raw_image(view, *shape) for view, shape in zip(VIEWS[:2], shapes, strict=True)}
