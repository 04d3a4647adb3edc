"""What a π0.5 checkpoint folder says beside its weights, for openpi's and for LeRobot's folders.

openpi: ``model.safetensors``, ``assets/<id>/norm_stats.json`` and, where the converter wrote it,
``config.json`` with the horizon. LeRobot: ``config.json`` (type pi05), ``model.safetensors``,
``policy_preprocessor.json`` and ``policy_postprocessor.json`` with their statistics files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checkpoint import file_of, tensor_shapes
from ...errors import OptionError, WeightsError
from ..base import Deployment
from ..checkpoint_folder import preset_of, require_fixed, require_network
from ..json_fields import COUNT, OBJECT, TEXT, field_of, read_object, shown
from ..lerobot_processors import FILES, feature_statistics, read_steps, relative_dims
from ..normalisation import Statistics, read_norm_stats
from .config import PRESETS, SLOTS
from .weights import ROOT, tensors

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
_WIDTH = 32  # of the network's state and actions; openpi pads statistics to it or leaves them
_TOKENIZERS = ("paligemma_tokenizer.model", "tokenizer.model")


@dataclass(frozen=True)
class Details:
    """π0.5's part of a deployment.

    Attributes:
        state, actions: statistics; None means the network's range is the robot's unit.
        relative: for each action dimension whether the network gives it relative to the state.
        tokenizer: a SentencePiece model in the folder.
        trained: weights of a file, not random ones: they know their own tokenizer.
    """

    state: Statistics | None = None
    actions: Statistics | None = None
    relative: tuple[bool, ...] = ()
    tokenizer: Path | None = None
    trained: bool = False


def read_deployment(path: Path | None, norm_stats: Path | None = None) -> Deployment:
    """Reads everything but the weights.

    Args:
        path: a checkpoint folder; or a safetensors file, whose weights are then taken alone and
            need ``norm_stats``; None for random weights.
        norm_stats: an openpi ``norm_stats.json`` that replaces the folder's statistics. A LeRobot
            folder keeps its normalisation mode and what it says of relative actions.

    Raises:
        WeightsError: no weights there, no statistics for them, a file that contradicts itself, or
            a network that is not supported.
        OptionError: statistics that cannot be used.
    """
    if path is None:
        details = Details()
        if norm_stats is not None:
            state, actions = (read_norm_stats(norm_stats, part) for part in ("state", "actions"))
            details = Details(state, actions)
        return Deployment("random", {"numerics": "exact"}, details=details)
    file = file_of(path)
    own = {name.removeprefix("model."): shape for name, shape in tensor_shapes(file).items()}
    return replace(_read_trained(path, file, norm_stats), preset=preset_of(own, PRESETS, tensors))


def _read_trained(path: Path, file: Path, norm_stats: Path | None) -> Deployment:
    lerobot = _has_lerobot_names(file) or any((file.parent / n).exists() for n in FILES)
    if path.is_file():
        _check_names(path, file)
        return _alone(file, lerobot, norm_stats)
    where = path / "config.json"
    config = read_object(where, required=False)
    if "type" in config:
        if (kind := field_of(config, "type", TEXT, where)) != "pi05":
            raise WeightsError(
                f"checkpoint {str(path)!r}", expected="LeRobot's policy type pi05", got=kind
            )
        return _lerobot(path, config, norm_stats)
    _check_names(path, file)
    if lerobot:
        raise WeightsError(
            f"config.json of the LeRobot checkpoint {str(path)!r}",
            expected="type pi05",
            got="no type" if where.exists() else "no such file",
            remedy="copy the whole folder",
        )
    return _openpi(path, config, norm_stats)


def check_views(deployment: Deployment, views: tuple[str, ...]) -> None:
    """OptionError when more views are in use than the checkpoint was trained with."""
    if deployment.cameras and len(views) > len(deployment.cameras):
        raise OptionError(
            "option 'views'",
            expected=f"at most {len(deployment.cameras)}, as the checkpoint was trained with",
            got=list(views),
        )


def _has_lerobot_names(file: Path) -> bool:
    names = tensor_shapes(file)
    return bool(names) and all(name.startswith("model.") for name in names)


def _check_names(path: Path, file: Path) -> None:
    remedy = "set checkpoint to a folder of openpi's PyTorch or of LeRobot, type pi05"
    what, names = f"checkpoint {str(path)!r}", list(tensor_shapes(file))
    require_network(what, names, ROOT, "π0.5", remedy)


def _alone(file: Path, lerobot: bool, norm_stats: Path | None) -> Deployment:
    """Weights without their folder; nothing says LeRobot's mode then: quantiles, its default."""
    beside = [name for name in FILES if (file.parent / name).exists()]
    if norm_stats is None or beside:
        raise WeightsError(
            f"checkpoint {str(file)!r}",
            expected="statistics of the robot",
            got=f"weights without {', '.join(beside)}" if beside else "weights alone",
            remedy="set checkpoint to the folder" if beside else "set norm_stats to their file",
        )
    origin = "lerobot" if lerobot else "openpi"
    return _openpi_deployment(origin, {"numerics": origin}, norm_stats, None)


def _openpi(folder: Path, config: Mapping[str, Any], norm_stats: Path | None) -> Deployment:
    overrides: dict[str, Any] = {"numerics": "openpi"}
    if "action_horizon" in config:
        where = folder / "config.json"
        overrides["horizon"] = field_of(config, "action_horizon", COUNT, where)
    stats = norm_stats or _only_norm_stats(folder)
    return _openpi_deployment("openpi", overrides, stats, _tokenizer(folder))


def _openpi_deployment(
    origin: str, overrides: Mapping[str, Any], stats: Path, tokenizer: Path | None
) -> Deployment:
    state, actions = (read_norm_stats(stats, part) for part in ("state", "actions"))
    return Deployment(
        origin,
        overrides,
        cameras=SLOTS,
        state_dim=_exact(state),
        action_dim=_exact(actions),
        details=Details(state, actions, tokenizer=tokenizer, trained=True),
    )


def _exact(stats: Statistics | None) -> int | None:
    """Dimensions of the robot that statistics were made of; None where they may be padded."""
    return None if stats is None or stats.dims == _WIDTH else stats.dims


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


def _lerobot(folder: Path, config: Mapping[str, Any], norm_stats: Path | None) -> Deployment:
    where = folder / "config.json"
    require_fixed(config, _FIXED, f"the LeRobot checkpoint {str(folder)!r}")
    dtype = field_of(config, "dtype", TEXT, where, "float32")
    if dtype not in ("float32", "bfloat16"):
        raise WeightsError(f"dtype in {str(where)!r}", expected="float32 or bfloat16", got=dtype)
    overrides: dict[str, Any] = {
        "numerics": "lerobot_bf16" if dtype == "bfloat16" else "lerobot",
        "image_size": _image_size(config, where),
    }
    for ours, theirs in (
        ("horizon", "chunk_size"),
        ("steps", "num_inference_steps"),
        ("trained_tokens", "tokenizer_max_length"),
    ):
        if theirs in config:
            overrides[ours] = field_of(config, theirs, COUNT, where)
    shapes = _shapes(config, where)
    cameras = tuple(
        name.removeprefix("observation.images.")
        for name, (kind, _) in shapes.items()
        if kind == "VISUAL" and ".empty_camera_" not in name
    )
    if len(cameras) > len(SLOTS):
        raise WeightsError(
            f"checkpoint {str(folder)!r}", expected=f"at most {len(SLOTS)} cameras", got=cameras
        )
    widths = {name: size for name, (kind, size) in shapes.items() if kind != "VISUAL"}
    return _lerobot_deployment(folder, overrides, cameras, widths, norm_stats)


def _image_size(config: Mapping[str, Any], where: Path) -> int:
    sides = config.get("image_resolution", [224, 224])
    fits = isinstance(sides, list) and len(sides) == 2 and all(COUNT.fits(side) for side in sides)
    if not fits or sides[0] != sides[1]:
        raise WeightsError(
            f"image_resolution in {str(where)!r}",
            expected="two equal whole numbers",
            got=shown(sides),
        )
    return int(sides[0])


def _shapes(config: Mapping[str, Any], where: Path) -> dict[str, tuple[str, int]]:
    """Feature -> its type and first size."""
    found = {}
    for group in ("input_features", "output_features"):
        features = field_of(config, group, OBJECT, where, {})
        for name in features:
            feature = field_of(features, name, OBJECT, f"{where}, {group}")
            place = f"{where}, {group}, {name}"
            shape = feature.get("shape")
            if not isinstance(shape, list) or not shape or not all(map(COUNT.fits, shape)):
                raise WeightsError(
                    f"shape in {place!r}", expected="a list of whole numbers", got=shown(shape)
                )
            found[name] = (field_of(feature, "type", TEXT, place), int(shape[0]))
    return found


def _lerobot_deployment(
    folder: Path,
    overrides: Mapping[str, Any],
    cameras: tuple[str, ...],
    widths: Mapping[str, int],
    norm_stats: Path | None,
) -> Deployment:
    before, after = (read_steps(folder / name) for name in FILES)
    state = feature_statistics(
        folder / FILES[0], before, "normalizer_processor", "observation.state", norm_stats
    )
    actions = feature_statistics(
        folder / FILES[1], after, "unnormalizer_processor", "action", norm_stats
    )
    if norm_stats is not None and state is None and actions is None:
        raise OptionError(
            "option 'norm_stats'",
            expected="none: the checkpoint's norm_map says IDENTITY for state and actions",
            got=str(norm_stats),
        )
    dims = {}
    for name, stats in (("observation.state", state), ("action", actions)):
        width, exact = widths.get(name), _exact(stats)
        if stats is not None and width not in (None, stats.dims) and (exact or not norm_stats):
            raise WeightsError(
                f"{stats.source}", expected=f"{width} numbers, as config.json says", got=stats.dims
            )
        dims[name] = exact if width is None else width
    relative = relative_dims(folder, before, after, dims["action"])
    return Deployment(
        "lerobot",
        overrides,
        cameras=cameras,
        state_dim=dims["observation.state"],
        action_dim=dims["action"],
        details=Details(state, actions, relative, _tokenizer(folder), trained=True),
    )
