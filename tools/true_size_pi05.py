"""π0.5's part of compare_true_size.py: its sizes, weights, inputs and LeRobot's network."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import goldens_lerobot
import numpy as np
import toolbox
import torch
from parity import case as parity
from true_size import Array, draw_images, stage_results

from flashrt_core.devices import Device
from flashrt_core.policies.pi05 import POLICY, Pi05Config
from flashrt_core.policies.pi05.numerics import PROFILES
from flashrt_core.policies.pi05.reference import Reference
from flashrt_core.tensors import TensorSource, TensorSpec

__all__ = ["POLICY", "PROFILES"]

PACKAGES = toolbox.LEROBOT
_LOOKUP = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
_HEAD = "paligemma_with_expert.paligemma.lm_head.weight"


def spread(name: str, spec: TensorSpec) -> tuple[float, float]:
    """Those of the golden cases: a network that amplifies rounding would compare noise only."""
    return parity.spread(name, spec.shape)


@dataclass(frozen=True)
class Decision:
    """Inputs of one decision: pixels by view, token ids, noise [H, 32]."""

    images: dict[str, Array]
    tokens: list[int]
    noise: Array


def base_config(options: argparse.Namespace) -> Pi05Config:
    """The sizes that are compared: released ones, or those of the golden cases."""
    sizes = parity.SIZES if options.narrow else {}
    shape = {"horizon": options.horizon, "prompt_buckets": (options.tokens,)}
    config: Pi05Config = POLICY.config("base", **{**sizes, **shape})
    return config


def draw_decisions(config: Pi05Config, options: argparse.Namespace) -> list[Decision]:
    """Random scenes: coarse blocks with grain, random words."""
    draw, views = np.random.default_rng(1), POLICY.slots[: options.views]
    decisions = []
    for _ in range(options.decisions):
        images = draw_images(draw, views, config.image_size, blocks=7)
        tokens = [2, *draw.integers(4, config.vocab, options.tokens - 1).tolist()]
        noise = draw.standard_normal((config.horizon, config.action_dim), dtype=np.float32)
        decisions.append(Decision(images, tokens, noise))
    return decisions


def run_lerobot(
    config: Pi05Config,
    source: TensorSource,
    decisions: list[Decision],
    arithmetic: str,
    place: str,
    watch: Callable[[Any], None] | None = None,
) -> Array:
    """[decisions, H, 32] of LeRobot's network; ``arithmetic`` "float32" or "bfloat16".

    ``watch`` gets the network before its first decision.
    """
    case = parity.Case(
        "true_size",
        views=len(decisions[0].images),
        tokens=len(decisions[0].tokens),
        padded=len(decisions[0].tokens),
        horizon=config.horizon,
        steps=config.steps,
        arithmetic=arithmetic,
    )
    with torch.device(place):
        model = goldens_lerobot.build(case, config).to(place).eval()
    for name, parameter in model.named_parameters():
        parameter.data.copy_(source.get(_HEAD if name == _LOOKUP else name))
    if watch is not None:
        watch(model)
    results = []
    with torch.inference_mode():
        for decision in decisions:
            images = [
                torch.from_numpy(pixels).to(place).permute(2, 0, 1)[None].float() / 255.0 * 2.0
                - 1.0
                for pixels in decision.images.values()
            ]
            tokens = torch.tensor([decision.tokens], device=place)
            actions = model.sample_actions(
                images,
                [torch.ones(1, dtype=torch.bool, device=place) for _ in images],
                tokens,
                torch.ones_like(tokens, dtype=torch.bool),
                noise=torch.from_numpy(decision.noise).to(place)[None],
            )
            results.append(actions[0].float().cpu().numpy())
    return np.stack(results)


def run_stages(
    config: Pi05Config,
    source: TensorSource,
    decisions: list[Decision],
    precision: str,
    device: Device,
    *watched: str,
) -> list[Array]:
    """[decisions, H, 32] of our stages on a device, then what they leave in each watched buffer."""
    return stage_results(
        POLICY,
        config,
        source,
        [each.images for each in decisions],
        [(each.tokens, {"noise": each.noise}) for each in decisions],
        precision,
        device,
        watched,
    )


def run_reference(
    config: Pi05Config, source: TensorSource, decisions: list[Decision], place: str
) -> Array:
    """[decisions, H, 32] of our float32 reference."""
    reference = Reference(config, source, place=place)
    return np.stack(
        [
            reference.decide(each.images, each.tokens, each.noise).actions.cpu().numpy()
            for each in decisions
        ]
    )
