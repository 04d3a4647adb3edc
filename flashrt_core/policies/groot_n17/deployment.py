"""What a GR00T N1.7 checkpoint folder says beside its weights, for NVIDIA's and LeRobot's folders.

NVIDIA's: ``config.json``, weights, ``processor_config.json``, ``statistics.json`` and
``embodiment_id.json``, for several embodiments. LeRobot's: ``config.json`` (type groot),
``model.safetensors``, ``policy_preprocessor.json`` and ``policy_postprocessor.json``, for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...checkpoint import file_of, tensor_shapes
from ...errors import OptionError, WeightsError
from ...files import read_json
from ..base import Deployment
from ..checkpoint_folder import preset_of, require_fixed, require_network
from ..json_fields import COUNT, FLAG, OBJECT, TEXT, field_of, read_object, shown
from .config import PRESETS
from .embodiment import Embodiment, read_embodiment
from .images import Shown, read_shown
from .lerobot import read_lerobot
from .weights import ROOT, tensors

#: Values of the official configuration that change the network into one that is not built here.
_FIXED: Mapping[str, object] = {
    "use_alternate_vl_dit": True,
    "attend_text_every_n_blocks": 2,
    "add_pos_embed": True,
    "use_vlln": True,
    "reproject_vision": False,
    "state_history_length": 1,
    "exclude_state": False,
    "apply_sincos_state_encoding": False,
    "use_mean_std": False,
}
_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Details:
    """GR00T's part of a deployment.

    Attributes:
        embodiments: what is known of them, by name; empty where the network's range is the
            robot's unit.
        formal: whether instructions are cleaned.
        shown: what of a picture; None: as the configuration has it.
        tokenizer: a ``tokenizer.json`` in the folder.
        trained: weights of a file, not random ones: they know their own tokenizer.
        silent: slots of robots by name, of which there are no statistics.
    """

    embodiments: Mapping[str, Embodiment] = field(default_factory=dict)
    formal: bool = True
    shown: Shown | None = None
    tokenizer: Path | None = None
    trained: bool = False
    silent: Mapping[str, int] = field(default_factory=dict)


def read_deployment(path: Path | None, norm_stats: Path | None = None) -> Deployment:
    """Reads everything but the weights.

    Args:
        path: a checkpoint folder; None for random weights.
        norm_stats: a ``statistics.json`` that replaces the folder's; random weights take none, as
            nothing says in which order its groups go.

    Raises:
        WeightsError: no weights there, no statistics for them, a file that contradicts itself, or
            a network that is not supported.
        OptionError: statistics that cannot be used.
    """
    if path is None:
        if norm_stats is not None:
            raise OptionError(
                "option 'norm_stats'",
                expected="a checkpoint beside it, whose processor says what its groups are",
                got=f"random weights and {str(norm_stats)!r}",
            )
        return Deployment("random", {"numerics": "exact"}, details=Details())
    file = file_of(path)
    shapes = tensor_shapes(file)
    remedy = "set checkpoint to a folder of NVIDIA's or of LeRobot, type groot"
    require_network(f"checkpoint {str(path)!r}", shapes, ROOT, "GR00T N1.7", remedy)
    if path.is_file():
        raise WeightsError(
            f"checkpoint {str(path)!r}",
            expected="its folder: the processor's files say what the numbers mean",
            got="weights alone",
        )
    config = read_object(path / "config.json")
    if "type" in config:
        if (kind := field_of(config, "type", TEXT, path / "config.json")) != "groot":
            raise WeightsError(
                f"checkpoint {str(path)!r}", expected="LeRobot's policy type groot", got=kind
            )
        found = _lerobot(path, config, norm_stats)
    else:
        found = _official(path, config, norm_stats)
    own = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    return replace(found, preset=preset_of(own, PRESETS, tensors))


def _official(folder: Path, config: Mapping[str, Any], norm_stats: Path | None) -> Deployment:
    where = folder / "config.json"
    require_fixed(config, _FIXED, f"the checkpoint {str(folder)!r}")
    overrides: dict[str, Any] = {"numerics": "official"}
    for ours, theirs in (("steps", "num_inference_timesteps"), ("horizon", "action_horizon")):
        if theirs in config:
            overrides[ours] = field_of(config, theirs, COUNT, where)
    place = folder / "processor_config.json"
    values = field_of(read_object(place), "processor_kwargs", OBJECT, place)
    modalities = field_of(values, "modality_configs", OBJECT, place)
    file = norm_stats or folder / "statistics.json"
    stats = _statistics(file, norm_stats is not None)
    _require_robot(modalities, stats, place, file, given=norm_stats is not None)
    slots = _slots(folder / "embodiment_id.json")
    known = {
        name: read_embodiment(
            name,
            field_of(modalities, name, OBJECT, place),
            field_of(stats, name, OBJECT, "statistics.json"),
            slots.get(name),
            percentiles=field_of(values, "use_percentiles", FLAG, place, False),
            relative=field_of(values, "use_relative_action", FLAG, place, False),
            clip=field_of(values, "clip_outliers", FLAG, place, True),
        )
        for name in modalities
        if name in stats
    }
    silent = {
        name: slots[name]
        for name in modalities
        if name not in stats and type(slots.get(name)) is int
    }
    if not field_of(values, "use_albumentations", FLAG, place, False):
        overrides["numerics"] = "official,image_resize=bicubic"
    pictures = read_shown(values, place)
    overrides["image_size"] = pictures.size
    details = Details(
        known,
        field_of(values, "formalize_language", FLAG, place, True),
        pictures,
        _tokenizer(folder),
        trained=True,
        silent=silent,
    )
    return deployed("official", overrides, details)


def _lerobot(folder: Path, config: Mapping[str, Any], norm_stats: Path | None) -> Deployment:
    if norm_stats is not None:
        raise OptionError(
            "option 'norm_stats'",
            expected="none: a LeRobot folder has its own",
            got=str(norm_stats),
        )
    overrides, embodiment, formal, pictures = read_lerobot(folder, config)
    details = Details({embodiment.name: embodiment}, formal, pictures, _tokenizer(folder), True)
    return deployed("lerobot", overrides, details)


def deployed(origin: str, overrides: Mapping[str, Any], details: Details) -> Deployment:
    """The deployment of a folder; where it knows one embodiment, or LIBERO's, that is in use."""
    known = details.embodiments
    name = "libero_sim" if "libero_sim" in known else next(iter(known), "")
    if len(known) != 1 and name != "libero_sim":
        return Deployment(origin, overrides, details=details)
    own = known[name]
    return Deployment(
        origin,
        {**overrides, "embodiment": own.slot},
        cameras=own.cameras,
        state_dim=own.state.dims if own.state else None,
        action_dim=own.actions.dims if own.actions else None,
        details=details,
    )


def _statistics(path: Path, given: bool) -> Mapping[str, Any]:
    error = OptionError if given else WeightsError
    content = read_json(path, f"statistics {str(path)!r}", error)
    if not isinstance(content, dict):
        raise error(f"statistics {str(path)!r}", expected="a JSON object", got=shown(content))
    return content


def _require_robot(
    modalities: Mapping[str, Any],
    stats: Mapping[str, Any],
    place: Path,
    file: Path,
    *,
    given: bool,
) -> None:
    """One robot at least must be described and have statistics: without, nothing has a unit."""
    if not modalities:
        raise WeightsError(
            f"modality_configs in {str(place)!r}",
            expected="a robot's groups at least",
            got="none",
            remedy="copy the folder of a checkpoint that was trained for a robot",
        )
    if not modalities.keys() & stats.keys():
        error = OptionError if given else WeightsError
        raise error(
            f"option 'norm_stats', {str(file)!r}" if given else f"statistics {str(file)!r}",
            expected=f"those of a robot that the checkpoint knows, one of {sorted(modalities)}",
            got=f"no statistics for {', '.join(sorted(modalities))}, but {sorted(stats)}",
            remedy="give the statistics.json that its training wrote"
            + (", or leave it out for the checkpoint's own" if given else ", or set norm_stats"),
        )


def _slots(path: Path) -> Mapping[str, Any]:
    """Robot -> slot of the network's projections."""
    if not path.is_file():
        raise WeightsError(
            f"checkpoint {str(path.parent)!r}",
            expected=f"{path.name}, which says what slot of the network a robot has",
            got="no such file",
            remedy="copy the whole folder",
        )
    return read_object(path)


def _tokenizer(folder: Path) -> Path | None:
    path = folder / _TOKENIZER
    return path if path.is_file() else None
