"""A trained policy as LeRobot lays it out: weights, configuration, processors, statistics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as array_bytes
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from flashrt_core.checkpoint import FILE_NAME
from flashrt_core.outputs import whole_file, write_text, writing
from flashrt_core.policies.lerobot_processors import FILES
from flashrt_core.policies.pi05.config import Pi05Config

from .demonstrations import EPS

Array = np.ndarray[Any, Any]
Step = Mapping[str, Any]
_NORM_MAP = {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"}


def save_policy(
    folder: Path,
    config: Pi05Config,
    weights: Mapping[str, Tensor],
    stats: Mapping[str, Array],
    *,
    views: Sequence[str],
    joint_names: Sequence[str],
    absolute: Sequence[str],
) -> None:
    """Writes everything that a deployment reads; each file is replaced as a whole.

    Args:
        folder: made where it is missing.
        config: sizes; a loader needs its preset's name.
        weights: by checkpoint name, stored in bfloat16.
        stats: quantiles, ``observation.state.q01`` and so on.
        views: cameras, in slot order.
        joint_names: of state and actions.
        absolute: parts of names of the joints whose actions are not relative to the state.

    Raises:
        OutputError: the file system refuses.
    """
    with writing("policy", folder):
        folder.mkdir(parents=True, exist_ok=True)
    side, size = config.image_size, len(joint_names)
    inputs: dict[str, Any] = {
        f"observation.images.{view}": {"type": "VISUAL", "shape": [3, side, side]} for view in views
    }
    inputs["observation.state"] = {"type": "STATE", "shape": [size]}
    outputs = {"action": {"type": "ACTION", "shape": [size]}}
    content = {
        "type": "pi05",
        "input_features": inputs,
        "output_features": outputs,
        "dtype": "float32",
        "chunk_size": config.horizon,
        "n_action_steps": config.horizon,
        "num_inference_steps": config.steps,
        "image_resolution": [side, side],
        "tokenizer_max_length": config.trained_tokens,
    }
    _write_json(folder / "config.json", content)
    normaliser: Step = {"eps": EPS, "features": inputs | outputs, "norm_map": _NORM_MAP}
    joints: Step = {"exclude_joints": list(absolute), "action_names": list(joint_names)}
    before: list[tuple[str, Step]] = [
        ("relative_actions_processor", {"enabled": True, **joints}),
        ("normalizer_processor", normaliser),
        ("pi05_prepare_state_tokenizer_processor_step", {}),
    ]
    after: list[tuple[str, Step]] = [
        ("unnormalizer_processor", normaliser),
        ("absolute_actions_processor", {"enabled": True}),
    ]
    for name, steps in zip(FILES, (before, after), strict=True):
        _write_processor(folder / name, steps, stats)
    _write_tokenizer(folder / "tokenizer.model")
    _write_weights(folder / FILE_NAME, weights)


def _write_tokenizer(path: Path) -> None:
    shipped = files("flashrt_core.policies.pi05").joinpath("tiny_tokenizer.model")
    with as_file(shipped) as source, whole_file("policy", path) as part:
        shutil.copyfile(source, part)


def _write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    stored = {
        f"model.{name}": value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in weights.items()
    }
    _write_bytes(path, tensor_bytes(stored, metadata={"format": "pt"}))


def _write_bytes(path: Path, content: bytes) -> None:
    """Whole or not at all: whoever loads the folder meanwhile reads the old file or the new one.

    The library's own writer would make files that nobody else may read.
    """
    with whole_file("policy", path) as part:
        part.write_bytes(content)


def _write_processor(
    path: Path, steps: Sequence[tuple[str, Step]], stats: Mapping[str, Array]
) -> None:
    described = []
    for index, (kind, config) in enumerate(steps):
        step: dict[str, Any] = {"registry_name": kind, "config": config}
        if "normalizer" in kind:
            step["state_file"] = f"{path.stem}_step_{index}_{kind}.safetensors"
            _write_bytes(path.parent / step["state_file"], array_bytes(dict(stats)))
        described.append(step)
    _write_json(path, {"name": path.stem, "steps": described})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(json.dumps(content, indent=2) + "\n", path, "policy")
