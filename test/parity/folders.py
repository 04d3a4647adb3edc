"""Checkpoint folders with the golden cases' weights, as openpi and as LeRobot write them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from flashrt_core.policies.pi05.config import Pi05Config, make_config
from flashrt_core.policies.pi05.weights import tensors

from . import case as parity

HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
LOOKUP = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
TINY_TOKENIZER = (
    Path(__file__).parents[2] / "flashrt_core" / "policies" / "pi05" / "tiny_tokenizer.model"
)
#: Shapes of the robot in these folders: state numbers, action numbers.
STATE_DIM = ACTION_DIM = parity.STATS_DIM
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Tensors]


def sizes(**overrides: Any) -> Pi05Config:
    """The configuration of the golden cases."""
    return make_config("base", **{**parity.SIZES, **overrides})


def seeded_tensors() -> Tensors:
    """Every tensor of an openpi checkpoint, float32."""
    return {
        name: torch.from_numpy(parity.weight(name, spec.shape))
        for name, spec in tensors(sizes()).items()
    }


def write_openpi(
    folder: Path,
    *,
    horizon: int = 10,
    change: Change = lambda found: found,
    robots: tuple[str, ...] = ("physical-intelligence/libero",),
) -> Path:
    """A folder as openpi's converter leaves it: one copy of the tied table, an assets folder."""
    folder.mkdir(parents=True)
    save_file(change(seeded_tensors()), folder / "model.safetensors")
    config = {
        "action_dim": 32,
        "action_horizon": horizon,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "precision": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    for robot in robots:
        (folder / "assets" / robot).mkdir(parents=True)
        write_norm_stats(folder / "assets" / robot / "norm_stats.json")
    shutil.copy(TINY_TOKENIZER, folder / "paligemma_tokenizer.model")
    return folder


def write_norm_stats(
    path: Path,
    *,
    width: int = parity.STATS_DIM,
    keep: tuple[str, ...] = ("mean", "std", "q01", "q99"),
    scale: float = 1.0,
) -> Path:
    """openpi's statistics file: those named, times ``scale``, padded with zeros to ``width``."""
    parts = {"state": "state", "actions": "action"}
    padding = [0.0] * (width - parity.STATS_DIM)
    content = {
        ours: {
            name: [value * scale for value in parity.statistics(theirs)[name]] + padding
            for name in keep
        }
        for ours, theirs in parts.items()
    }
    path.write_text(json.dumps({"norm_stats": content}))
    return path


def write_lerobot(
    folder: Path,
    *,
    horizon: int = 10,
    steps: int = 10,
    dtype: str = "float32",
    mode: str = "QUANTILES",
    tables: str = "both",
    relative: bool = False,
    cameras: tuple[str, ...] = ("image", "image2"),
    change: Change = lambda found: found,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A folder as LeRobot's save_pretrained leaves it.

    Args:
        folder: made here.
        horizon, steps, dtype: of its configuration.
        mode: normalisation of state and actions.
        tables: the embedding table under "both" names, the "head" only, or the "lookup" only.
        relative: actions relative to the state, the gripper excluded.
        cameras: its names of them.
        change: applied to the tensors before they are written, under LeRobot's names.
        config: further values of config.json.
    """
    folder.mkdir(parents=True)
    found = seeded_tensors()
    if tables != "head":
        found[LOOKUP] = found[HEAD].clone()
    if tables == "lookup":
        del found[HEAD]
    named = {f"model.{name}": tensor for name, tensor in found.items()}
    save_file(change(named), folder / "model.safetensors")
    views = {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 256, 256]} for name in cameras
    }
    state = {"observation.state": {"type": "STATE", "shape": [STATE_DIM]}}
    action = {"action": {"type": "ACTION", "shape": [ACTION_DIM]}}
    content = {
        "type": "pi05",
        "input_features": views | state,
        "output_features": action,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "dtype": dtype,
        "chunk_size": horizon,
        "n_action_steps": horizon,
        "num_inference_steps": steps,
        "min_period": 0.004,
        "max_period": 4.0,
        "image_resolution": [parity.SIZES["image_size"]] * 2,
        "tokenizer_max_length": 200,
        **(config or {}),
    }
    (folder / "config.json").write_text(json.dumps(content))
    write_processors(folder, views | state | action, mode, relative)
    shutil.copy(TINY_TOKENIZER, folder / "tokenizer.model")
    return folder


def write_processors(folder: Path, features: Any, mode: str, relative: bool) -> None:
    """LeRobot's processor files with their statistics."""
    stats = {
        f"{feature}.{name}": np.array(values, np.float32)
        for feature, part in (("observation.state", "state"), ("action", "action"))
        for name, values in parity.statistics(part).items()
    }
    norm_map = {"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode}
    for name, steps in (
        (
            "policy_preprocessor",
            [
                {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
                {"registry_name": "to_batch_processor", "config": {}},
                {
                    "registry_name": "relative_actions_processor",
                    "config": {
                        "enabled": relative,
                        "exclude_joints": ["gripper"],
                        "action_names": list(parity.ACTION_NAMES),
                    },
                },
                {
                    "registry_name": "normalizer_processor",
                    "config": {"eps": 1e-8, "features": features, "norm_map": norm_map},
                },
                {"registry_name": "pi05_prepare_state_tokenizer_processor_step", "config": {}},
            ],
        ),
        (
            "policy_postprocessor",
            [
                {
                    "registry_name": "unnormalizer_processor",
                    "config": {"eps": 1e-8, "features": features, "norm_map": norm_map},
                },
                {"registry_name": "absolute_actions_processor", "config": {"enabled": relative}},
            ],
        ),
    ):
        for index, step in enumerate(steps):
            if "normalizer" in str(step["registry_name"]):
                state_file = f"{name}_step_{index}_{step['registry_name']}.safetensors"
                step["state_file"] = state_file
                save_file(
                    {key: torch.from_numpy(value) for key, value in stats.items()},
                    folder / state_file,
                )
        content = {"name": name, "steps": steps}
        (folder / f"{name}.json").write_text(json.dumps(content))
