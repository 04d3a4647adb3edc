"""GR00T N1.7's part of compare_true_size.py: its sizes, weights, inputs and LeRobot's network."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import goldens_lerobot_groot as goldens
import numpy as np
import toolbox
import torch
from parity import groot as parity
from true_size import Array, calm, draw_images, stage_results

from flashrt_core.devices import Device
from flashrt_core.policies.groot_n17 import POLICY, GrootConfig
from flashrt_core.policies.groot_n17.numerics import PROFILES
from flashrt_core.policies.groot_n17.reference import Reference
from flashrt_core.tensors import TensorSource

__all__ = ["POLICY", "PROFILES", "spread"]

spread = calm

#: Rows of a chunk.
HORIZON = 40
PACKAGES = (*toolbox.LEROBOT, "diffusers", "tree")
#: Ids of Qwen's chat: in front of the images, an image's row and marks, behind the instruction.
_LEAD, _IMAGE, _MARKS, _BEHIND = (151644, 872, 198), 151655, (151652, 151653), (151645, 198)


@dataclass(frozen=True)
class Decision:
    """Inputs of one decision.

    Attributes:
        images: pixels by view.
        tokens: ids of the text rows.
        all_tokens: with those of image rows between.
        state: [1, 132] float32.
        noise: [H, 132] float32.
    """

    images: dict[str, Array]
    tokens: list[int]
    all_tokens: list[int]
    state: Array
    noise: Array


def base_config(options: argparse.Namespace) -> GrootConfig:
    """The sizes that are compared: released ones, or those of the golden cases."""
    sizes = dict(parity.SIZES) if options.narrow else {"embodiments": 32}
    slot = 1 if options.narrow else 10
    config: GrootConfig = POLICY.config(
        "base",
        **sizes,
        horizon=options.horizon,
        prompt_buckets=(options.tokens,),
        embodiment=slot,
    )
    return config


def draw_decisions(config: GrootConfig, options: argparse.Namespace) -> list[Decision]:
    """Random scenes: coarse blocks with grain, random words."""
    draw = np.random.default_rng(1)
    narrow = options.narrow
    lead = parity.CHAT if narrow else _LEAD
    marks = (parity.VISION_START, parity.VISION_END) if narrow else _MARKS
    row = parity.IMAGE if narrow else _IMAGE
    behind = parity.CHAT[1:] if narrow else _BEHIND
    words = options.tokens - len(lead) - len(behind) - 2 * options.views
    if words < 1:
        raise toolbox.ToolError(
            "argument --tokens",
            expected=f"at least {options.tokens - words + 1}",
            got=options.tokens,
        )
    decisions = []
    for _ in range(options.decisions):
        views = POLICY.slots[: options.views]
        images = draw_images(draw, views, config.image_size, blocks=8)
        text = [*draw.integers(4, min(row, config.vocab) - 8, words).tolist(), *behind]
        whole = [marks[0], *[row] * config.view_tokens, marks[1]]
        decisions.append(
            Decision(
                images,
                [*lead, *marks * options.views, *text],
                [*lead, *whole * options.views, *text],
                draw.uniform(-1, 1, (1, config.state_width)).astype(np.float32),
                draw.standard_normal((config.horizon, config.action_dim), dtype=np.float32),
            )
        )
    return decisions


def run_lerobot(
    config: GrootConfig,
    source: TensorSource,
    decisions: list[Decision],
    arithmetic: str,
    place: str,
    watch: Callable[[Any], None] | None = None,
) -> Array:
    """[decisions, H, 132] of LeRobot's network; ``arithmetic`` "float32" or "bfloat16".

    ``watch`` gets the network before its first decision.
    """
    own = (parity.IMAGE, parity.VISION_START, parity.VISION_END)
    with torch.device(place):
        model = goldens.build(config, own if config.vocab == parity.SIZES["vocab"] else None)
    if arithmetic == "bfloat16":
        model.to(torch.bfloat16)
    goldens.load_weights(model.to(place), source)
    if watch is not None:
        watch(model)
    results = []
    for each in decisions:
        values = goldens.as_inputs(
            list(each.images.values()), each.all_tokens, each.state, config.embodiment
        )
        noise = torch.from_numpy(each.noise)
        there = {name: value.to(place) for name, value in values.items()}
        results.append(goldens.decide(model, there, noise)["actions"].float().cpu().numpy())
    return np.stack(results)


def run_stages(
    config: GrootConfig,
    source: TensorSource,
    decisions: list[Decision],
    precision: str,
    device: Device,
    *watched: str,
) -> list[Array]:
    """[decisions, H, 132] of our stages on a device, then what they leave in watched buffers."""
    return stage_results(
        POLICY,
        config,
        source,
        [each.images for each in decisions],
        [(each.tokens, {"state": each.state, "noise": each.noise}) for each in decisions],
        precision,
        device,
        watched,
    )


def run_reference(
    config: GrootConfig, source: TensorSource, decisions: list[Decision], place: str
) -> Array:
    """[decisions, H, 132] of our float32 reference."""
    reference, results = Reference(config, source, place=place), []
    for each in decisions:
        context = reference.context(list(each.images.values()), each.tokens, each.state)
        results.append(reference.act(each.noise, context).cpu().numpy())
    return np.stack(results)
