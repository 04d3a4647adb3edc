"""What a LingBot-VA checkpoint folder says beside its weights, official or LeRobot's.

Official: the folders ``transformer``, ``vae``, ``text_encoder`` and ``tokenizer``; cameras, steps
and statistics are in the program that runs it, so they are options here. LeRobot: ``config.json``
(type lingbot_va), ``model.safetensors`` and the processors' files; the three other folders lie
beside them, or where its ``wan_pretrained_path`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checkpoint import FILE_NAME, tensor_shapes
from ...errors import WeightsError
from ...tensors import WeightsPart
from ..base import Deployment
from ..json_fields import (
    COUNT,
    COUNTS,
    OBJECT,
    PLACES,
    TEXT,
    TEXTS,
    field_of,
    read_object,
    shown,
)
from ..lerobot_processors import FILES, feature_statistics, read_steps
from ..normalisation import Statistics, read_norm_stats
from .config import PRESETS
from .weights import NET, VAE, tensors

_DIFFUSERS = "diffusion_pytorch_model.safetensors"
#: Ours -> LeRobot's.
_SIZES: Mapping[str, str] = {
    "height": "height",
    "width": "width",
    "frames": "frame_chunk_size",
    "frame_rows": "action_per_frame",
    "window": "attn_window",
    "steps": "num_inference_steps",
    "action_steps": "action_num_inference_steps",
    "prompt_rows": "max_sequence_length",
}
_NUMBERS: Mapping[str, str] = {
    "guidance": "guidance_scale",
    "shift": "snr_shift",
    "action_shift": "action_snr_shift",
}
#: Values of LeRobot's configuration that change the network into one that is not built here.
_FIXED: Mapping[str, object] = {
    "video_exec_step": -1,
    "action_guidance_scale": 1.0,
    "image_hflip": False,
    "patch_size": [1, 2, 2],
    "cross_attn_norm": True,
}


@dataclass(frozen=True)
class Details:
    """LingBot-VA's part of a deployment.

    Attributes:
        actions: statistics; None means the network's range is the robot's unit.
        tokenizer: a SentencePiece model in the folder.
        text_encoder: the file of the text encoder's weights.
        trained: weights of a file, not random ones: they know their own text encoder.
    """

    actions: Statistics | None = None
    tokenizer: Path | None = None
    text_encoder: Path | None = None
    trained: bool = False


def read_deployment(path: Path | None, norm_stats: Path | None = None) -> Deployment:
    """Reads everything but the weights.

    Args:
        path: a checkpoint folder; None for random weights.
        norm_stats: a ``norm_stats.json`` with quantiles of ``actions``; an official folder has none
            of its own.

    Raises:
        WeightsError: no weights there, a file that contradicts itself, or a network that is not
            supported.
        OptionError: statistics that cannot be used.
    """
    actions = None if norm_stats is None else read_norm_stats(norm_stats, "actions")
    if path is None:
        return Deployment("random", details=Details(actions))
    config = read_object(path / "config.json", required=False)
    if "type" in config:
        found, net = _lerobot(path, config, norm_stats), path / FILE_NAME
        inside = NET
    else:
        net, inside = _weights(path / "transformer"), ""
        found = Deployment("official", details=_beside(path, actions), parts=())
    vae = _folder_of(path, config) / "vae"
    parts = (
        WeightsPart(NET, net, inside),
        WeightsPart(VAE, _weights(vae), "", ("decoder.", "post_quant_conv.")),
    )
    shapes = {f"{NET}{n.removeprefix(inside)}": s for n, s in tensor_shapes(net).items()}
    return replace(found, parts=parts, preset=_preset_of(shapes))


def _weights(folder: Path) -> Path:
    for name in (_DIFFUSERS, f"{_DIFFUSERS}.index.json", FILE_NAME, f"{FILE_NAME}.index.json"):
        if (folder / name).is_file():
            return folder / name
    raise WeightsError(
        f"checkpoint {str(folder.parent)!r}",
        expected=f"the folder {folder.name} with {_DIFFUSERS}",
        got="no such file" if folder.is_dir() else "no such folder",
        remedy="copy the whole folder of robbyant/lingbot-va-base",
    )


def _folder_of(path: Path, config: Mapping[str, Any]) -> Path:
    """Where the networks lie that LeRobot does not save."""
    if "type" not in config or (path / "vae").is_dir():
        return path
    told = field_of(config, "wan_pretrained_path", TEXT, path / "config.json", "")
    return Path(told) if told and Path(told).is_dir() else path


def _beside(folder: Path, actions: Statistics | None) -> Details:
    tokenizer = folder / "tokenizer" / "spiece.model"
    names = (FILE_NAME, f"{FILE_NAME}.index.json")
    encoders = [folder / "text_encoder" / name for name in names]
    return Details(
        actions,
        tokenizer if tokenizer.is_file() else None,
        next((file for file in encoders if file.is_file()), None),
        trained=True,
    )


def _preset_of(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The preset whose transformer has these tensors."""
    for name, config in PRESETS.items():
        own = {n: spec.shape for n, spec in tensors(config).items() if n.startswith(NET)}
        if all(shapes.get(n) == shape for n, shape in own.items()):
            return name
    return None


def _lerobot(folder: Path, config: Mapping[str, Any], norm_stats: Path | None) -> Deployment:
    where = folder / "config.json"
    if (kind := field_of(config, "type", TEXT, where)) != "lingbot_va":
        raise WeightsError(
            f"checkpoint {str(folder)!r}", expected="LeRobot's policy type lingbot_va", got=kind
        )
    for name, expected in _FIXED.items():
        if (value := config.get(name, expected)) != expected:
            raise WeightsError(
                f"{name} of the checkpoint {str(folder)!r}",
                expected=expected,
                got=shown(value),
                remedy="this variant is not supported",
            )
    overrides: dict[str, Any] = {
        ours: field_of(config, theirs, COUNT, where)
        for ours, theirs in _SIZES.items()
        if theirs in config
    }
    overrides |= {o: config[theirs] for o, theirs in _NUMBERS.items() if theirs in config}
    layout = config.get("camera_layout", "width_concat")
    if layout not in ("width_concat", "robotwin_tshape"):
        raise WeightsError(
            f"camera_layout in {str(where)!r}",
            expected="width_concat or robotwin_tshape",
            got=shown(layout),
        )
    overrides["tee"] = int(layout == "robotwin_tshape")
    if "used_action_channel_ids" in config:
        channels = field_of(config, "used_action_channel_ids", PLACES, where)
        overrides["channels"] = tuple(channels)
    cameras = field_of(config, "obs_cam_keys", TEXTS, where, [])
    stats = feature_statistics(
        folder / FILES[1],
        read_steps(folder / FILES[1]),
        "unnormalizer_processor",
        "action",
        norm_stats,
    )
    features = field_of(config, "output_features", OBJECT, where, {})
    action = field_of(features, "action", OBJECT, f"{where}, output_features", {})
    shape = field_of(action, "shape", COUNTS, f"{where}, output_features.action", [])
    if len(shape) > 1:
        raise WeightsError(
            f"shape in '{where}, output_features.action'", expected="one number", got=shape
        )
    return Deployment(
        "lerobot",
        overrides,
        cameras=tuple(name.removeprefix("observation.images.") for name in cameras),
        action_dim=shape[0] if shape else len(overrides.get("channels", ())) or None,
        details=_beside(_folder_of(folder, config), stats),
    )
