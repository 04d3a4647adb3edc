"""What a π0.5 checkpoint folder says beside its weights, for openpi's and for LeRobot's folders.

openpi: ``model.safetensors``, ``assets/<id>/norm_stats.json`` and, where the converter wrote it,
``config.json`` with the horizon. LeRobot: ``config.json`` (type pi05), ``model.safetensors``,
``policy_preprocessor.json`` and ``policy_postprocessor.json`` with their statistics files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ...checkpoint import FILE_NAME, SafetensorsFile, file_of
from ...errors import WeightsError
from ..base import Deployment
from .config import SLOTS
from .normalisation import Statistics, from_arrays, read_norm_stats

_MODES = {
    "QUANTILES": "quantiles",
    "MIN_MAX": "min_max",
    "QUANTILE10": "quantile10",
    "MEAN_STD": "mean_std",
}
#: Values of LeRobot's configuration that change the network into one that is not built here.
_FIXED: Mapping[str, object] = {
    "paligemma_variant": "gemma_2b",
    "action_expert_variant": "gemma_300m",
    "min_period": 4e-3,
    "max_period": 4.0,
    "use_visual_memory": False,
    "use_proprioceptive_memory": False,
    "use_peft": False,
}
_TOKENIZERS = ("paligemma_tokenizer.model", "tokenizer.model")


@dataclass(frozen=True)
class Details:
    """π0.5's part of a deployment.

    Attributes:
        state, actions: statistics; None means the network's range is the robot's unit.
        relative: for each action dimension whether the network gives it relative to the state.
        state_dim, action_dim: what the checkpoint was trained with; None where it does not say.
        tokenizer: a SentencePiece model in the folder.
        trained: weights of a file, not random ones: they know their own tokenizer.
    """

    state: Statistics | None = None
    actions: Statistics | None = None
    relative: tuple[bool, ...] = ()
    state_dim: int | None = None
    action_dim: int | None = None
    tokenizer: Path | None = None
    trained: bool = False


def read_deployment(path: Path | None, norm_stats: Path | None = None) -> Deployment:
    """Reads everything but the weights.

    Args:
        path: a checkpoint folder; or a safetensors file, whose weights are then taken alone, with
            no statistics; None for random weights.
        norm_stats: an openpi ``norm_stats.json`` that replaces the folder's statistics.

    Raises:
        WeightsError: no weights there, a file that contradicts itself, or a network that is not
            supported.
        OptionError: statistics that cannot be used.
    """
    if path is None:
        details = Details()
        if norm_stats is not None:
            state, actions = (read_norm_stats(norm_stats, part) for part in ("state", "actions"))
            details = Details(state, actions)
        return Deployment("random", {"numerics": "exact"}, details=details)
    file = file_of(path)
    folder = None if path.is_file() else path
    config = {} if folder is None else _read_json(folder / "config.json", required=False)
    if config.get("type", "pi05") != "pi05":
        raise WeightsError(
            f"checkpoint {str(path)!r}", expected="LeRobot's policy type pi05", got=config["type"]
        )
    if "type" in config or (folder is None and _has_lerobot_names(file)):
        return _lerobot(folder, config, norm_stats)
    return _openpi(folder, config, norm_stats)


def _has_lerobot_names(file: Path) -> bool:
    return all(name.startswith("model.") for name in SafetensorsFile(file).entries)


def _openpi(folder: Path | None, config: Mapping[str, Any], norm_stats: Path | None) -> Deployment:
    overrides: dict[str, Any] = {"numerics": "openpi"}
    if "action_horizon" in config:
        overrides["horizon"] = _whole(config, "action_horizon", folder)
    details = Details(trained=True)
    if folder is not None:
        stats = norm_stats or _only_norm_stats(folder)
        details = Details(
            state=read_norm_stats(stats, "state"),
            actions=read_norm_stats(stats, "actions"),
            tokenizer=_tokenizer(folder),
            trained=True,
        )
    return Deployment("openpi", overrides, cameras=SLOTS, details=details)


def _only_norm_stats(folder: Path) -> Path:
    found = sorted((folder / "assets").rglob("norm_stats.json"))
    if len(found) == 1:
        return found[0]
    names = [str(path.parent.relative_to(folder / "assets")) for path in found]
    raise WeightsError(
        f"checkpoint {str(folder)!r}",
        expected="statistics of one robot: assets/<id>/norm_stats.json",
        got=f"those of {', '.join(names)}" if names else "none",
        remedy="set norm_stats to the file to use",
    )


def _tokenizer(folder: Path) -> Path | None:
    return next((folder / name for name in _TOKENIZERS if (folder / name).is_file()), None)


def _lerobot(folder: Path | None, config: Mapping[str, Any], norm_stats: Path | None) -> Deployment:
    for name, expected in _FIXED.items():
        if config.get(name, expected) != expected:
            raise WeightsError(
                f"{name} of the LeRobot checkpoint {str(folder)!r}",
                expected=expected,
                got=config[name],
                remedy="this variant is not supported",
            )
    rounded = config.get("dtype", "float32") == "bfloat16"
    overrides: dict[str, Any] = {"numerics": "lerobot_bf16" if rounded else "lerobot"}
    for ours, theirs in (
        ("horizon", "chunk_size"),
        ("steps", "num_inference_steps"),
        ("trained_tokens", "tokenizer_max_length"),
    ):
        if theirs in config:
            overrides[ours] = _whole(config, theirs, folder)
    if folder is None:
        return Deployment("lerobot", overrides, cameras=SLOTS, details=Details(trained=True))
    try:
        overrides["image_size"] = int(config.get("image_resolution", [224])[0])
        features = {**config.get("input_features", {}), **config.get("output_features", {})}
        shapes = {
            name: (str(feature["type"]), int(feature["shape"][0]))
            for name, feature in features.items()
        }
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise WeightsError(
            f"config.json of {str(folder)!r}", expected="LeRobot's layout", got=repr(error)
        ) from error
    cameras = tuple(
        name.removeprefix("observation.images.")
        for name, (kind, _) in shapes.items()
        if kind == "VISUAL" and ".empty_camera_" not in name
    )
    if len(cameras) > len(SLOTS):
        raise WeightsError(
            f"checkpoint {str(folder)!r}", expected=f"at most {len(SLOTS)} cameras", got=cameras
        )
    return Deployment(
        "lerobot", overrides, cameras=cameras, details=_lerobot_details(folder, shapes, norm_stats)
    )


def _lerobot_details(
    folder: Path, shapes: Mapping[str, tuple[str, int]], norm_stats: Path | None
) -> Details:
    widths = {name: size for name, (kind, size) in shapes.items() if kind != "VISUAL"}
    before = _steps(folder / "policy_preprocessor.json", required=norm_stats is None)
    after = _steps(folder / "policy_postprocessor.json", required=norm_stats is None)
    state: Statistics | None
    actions: Statistics | None
    if norm_stats is not None:
        state, actions = (read_norm_stats(norm_stats, part) for part in ("state", "actions"))
    else:
        where = "observation.state"
        state = _feature_statistics(folder, before, "normalizer_processor", where)
        actions = _feature_statistics(folder, after, "unnormalizer_processor", "action")

    return Details(
        state=state,
        actions=actions,
        relative=_relative(before, widths.get("action")),
        state_dim=widths.get("observation.state"),
        action_dim=widths.get("action"),
        tokenizer=_tokenizer(folder),
        trained=True,
    )


def _relative(steps: Mapping[str, Mapping[str, Any]], dims: int | None) -> tuple[bool, ...]:
    """Whether a dimension is relative to the state: all whose name holds no excluded one."""
    config = steps.get("relative_actions_processor", {}).get("config", {})
    if not config.get("enabled", False):
        return ()
    names = [str(name).lower() for name in config.get("action_names") or []]
    excluded = [str(name).lower() for name in config.get("exclude_joints") or [] if name]
    count = dims if dims is not None else len(names)
    return tuple(
        not (index < len(names) and any(part in names[index] for part in excluded))
        for index in range(count)
    )


def _feature_statistics(
    folder: Path, steps: Mapping[str, Mapping[str, Any]], kind: str, feature: str
) -> Statistics | None:
    """Statistics of one feature as a (un)normaliser step holds them; None for the identity."""
    where = f"{kind} of {str(folder)!r}, {feature}"
    if kind not in steps:
        raise WeightsError(where, expected="such a step", got=f"steps {sorted(steps)}")
    config = steps[kind].get("config", {})
    role = "ACTION" if feature == "action" else "STATE"
    mode = str(config.get("norm_map", {}).get(role, "IDENTITY")).upper()
    if mode == "IDENTITY":
        return None
    if mode not in _MODES:
        raise WeightsError(where, expected=f"a mode of {sorted(_MODES)}", got=mode)
    name = steps[kind].get("state_file")
    path = folder / str(name)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsError(
            where, expected="a readable statistics file", got=f"{str(path)!r}: {error}"
        ) from error
    own = {
        key.removeprefix(f"{feature}."): np.asarray(value)
        for key, value in tensors.items()
        if key.startswith(f"{feature}.")
    }
    if not own:
        return None  # LeRobot leaves a feature without statistics as it is
    return from_arrays(where, _MODES[mode], own, guarded=True, eps=float(config.get("eps", 1e-8)))


def _steps(path: Path, *, required: bool) -> dict[str, Mapping[str, Any]]:
    content = _read_json(path, required=required)
    steps = content.get("steps", [])
    try:
        return {str(step.get("registry_name", step.get("class"))): step for step in steps}
    except AttributeError as error:
        raise WeightsError(str(path), expected="a list of steps", got=repr(steps)) from error


def _whole(config: Mapping[str, Any], name: str, folder: Path | None) -> int:
    value = config[name]
    if type(value) is not int:
        raise WeightsError(
            f"{name} in config.json of {str(folder)!r}", expected="a whole number", got=repr(value)
        )
    return value


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise WeightsError(
            f"checkpoint {str(path.parent)!r}",
            expected=f"{path.name} beside {FILE_NAME}",
            got="none",
            remedy="copy the whole folder, or set norm_stats to a file with the statistics",
        ) from error
    except (OSError, ValueError) as error:
        raise WeightsError(str(path), expected="JSON", got=str(error)) from error
    if not isinstance(content, dict):
        raise WeightsError(str(path), expected="a JSON object", got=type(content).__name__)
    return content
