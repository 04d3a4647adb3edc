"""What LeRobot's folder of a GR00T N1.7 policy says: sizes, and the steps of its processors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...checkpoint import read_arrays
from ...errors import WeightsError
from ..json_fields import COUNT, FLAG, OBJECT, OBJECTS, TEXT, field_of, read_object, shown
from .embodiment import Embodiment, Ranges, read_embodiment, span_of
from .images import Shown, read_shown

FILES = ("policy_preprocessor.json", "policy_postprocessor.json")
_PACK, _ENCODE = "groot_n1_7_pack_inputs_v1", "groot_n1_7_vlm_encode_v1"
_DECODE, _UNPACK = "groot_n1_7_action_decode_v1", "groot_action_unpack_unnormalize_v2"
#: Steps that change no number of the robot.
_KNOWN = ("rename_observations_processor", "to_batch_processor", "device_processor")


def read_lerobot(
    folder: Path, config: Mapping[str, Any]
) -> tuple[dict[str, Any], Embodiment, bool, Shown]:
    """Overrides of the configuration, the embodiment, whether instructions are cleaned, and
    what is shown of a picture.

    Args:
        folder: of the policy.
        config: of its ``config.json``.

    Raises:
        WeightsError: files that are missing or contradict themselves, or mean something that is
            not built here.
    """
    where = folder / "config.json"
    before, after = (_steps(folder / name) for name in FILES)
    pack, encode = (_config_of(before, step, folder / FILES[0]) for step in (_PACK, _ENCODE))
    overrides: dict[str, Any] = {"numerics": "lerobot"}
    if config.get("num_inference_timesteps") is not None:
        overrides["steps"] = field_of(config, "num_inference_timesteps", COUNT, where)
    if field_of(encode, "use_albumentations", FLAG, FILES[0], False):
        overrides["numerics"] = "lerobot,image_resize=area"
    if config.get("use_bf16") or config.get("model_dtype") == "bfloat16":
        overrides["numerics"] = overrides["numerics"].replace("lerobot", "lerobot_bf16", 1)
    pictures = read_shown(encode, folder / FILES[0])
    overrides["image_size"] = pictures.size
    tag = field_of(pack, "embodiment_tag", TEXT, FILES[0])
    mapping = field_of(pack, "embodiment_mapping", OBJECT, FILES[0])
    cameras = tuple(
        name.removeprefix("observation.images.")
        for name, feature in field_of(config, "input_features", OBJECT, where, {}).items()
        if field_of(feature, "type", TEXT, f"{where}, {name}") == "VISUAL"
    )
    steps = _Steps(folder, before, after)
    embodiment = (
        steps.grouped(tag, mapping.get(tag, 0), pack)
        if _DECODE in after
        else steps.flat(tag, mapping.get(tag, 0), pack, cameras)
    )
    formal = field_of(pack, "formalize_language", FLAG, FILES[0], True)
    return overrides, embodiment, formal, pictures


class _Steps:
    """The steps of a folder's two processors."""

    def __init__(self, folder: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self._folder, self._before, self._after = folder, before, after

    def grouped(self, tag: str, slot: Any, pack: Mapping[str, Any]) -> Embodiment:
        """Of a policy that took over the groups of NVIDIA's checkpoint."""
        decode = _config_of(self._after, _DECODE, self._folder / FILES[1])
        place = f"{self._folder / FILES[1]}, {_DECODE}"
        return read_embodiment(
            tag,
            field_of(decode, "modality_config", OBJECT, place),
            field_of(decode, "raw_stats", OBJECT, place),
            slot,
            percentiles=field_of(decode, "use_percentiles", FLAG, place, False),
            relative=field_of(decode, "use_relative_action", FLAG, place, False),
            clip=field_of(pack, "clip_outliers", FLAG, FILES[0], True),
            gripper=decode.get("action_decode_transform") == "libero",
        )

    def flat(
        self, tag: str, slot: Any, pack: Mapping[str, Any], cameras: tuple[str, ...]
    ) -> Embodiment:
        """Of a policy with statistics of its data set, number by number."""
        unpack = _config_of(self._after, _UNPACK, self._folder / FILES[1])
        stats = {
            file: self._arrays(step, steps, file)
            for file, steps, step in (
                (FILES[0], self._before, _PACK),
                (FILES[1], self._after, _UNPACK),
            )
        }
        clip = field_of(pack, "clip_outliers", FLAG, FILES[0], True)
        state = _ranges(stats[FILES[0]], "observation.state", clip, None, self._folder / FILES[0])
        dims = unpack.get("env_action_dim") or None
        sign = field_of(unpack, "libero_gripper_action", FLAG, FILES[1], False)
        gripper = int(dims) - 1 if sign and dims and int(dims) >= 7 else None
        actions = _ranges(stats[FILES[1]], "action", True, gripper, self._folder / FILES[1])
        return Embodiment(tag, int(slot), state, actions, cameras=cameras)

    def _arrays(self, step: str, steps: Mapping[str, Any], file: str) -> dict[str, Any]:
        name = field_of(steps[step], "state_file", TEXT, self._folder / file)
        return read_arrays(self._folder / name)


def _ranges(
    arrays: Mapping[str, Any], feature: str, clip: bool, gripper: int | None, where: Path
) -> Ranges:
    found = []
    for name in ("min", "max"):
        values = arrays.get(f"{feature}.{name}")
        if values is None or values.ndim != 1 or values.dtype.kind not in "fiu":
            raise WeightsError(
                f"{feature}.{name} of {str(where)!r}",
                expected="numbers in the statistics of its step",
                got="none" if values is None else f"{list(values.shape)} {values.dtype}",
            )
        found.append(values)
    source = f"statistics of {str(where)!r}"
    where_low, where_high = (f"{source}, {feature}.{name}" for name in ("min", "max"))
    low, high = span_of(found[0], found[1], where_low, where_high)
    return Ranges(low, high, clip, gripper, source=source)


def _steps(path: Path) -> dict[str, Mapping[str, Any]]:
    """Name -> step of a processor file; WeightsError on one whose effect is not known."""
    known = (*_KNOWN, _PACK, _ENCODE, _DECODE, _UNPACK)
    found: dict[str, Mapping[str, Any]] = {}
    for step in field_of(read_object(path), "steps", OBJECTS, path):
        name = field_of(step, "registry_name" if "registry_name" in step else "class", TEXT, path)
        if name not in known or name in found:
            raise WeightsError(
                f"steps in {str(path)!r}", expected=f"some of {known}, each once", got=shown(name)
            )
        found[name] = step
    return found


def _config_of(steps: Mapping[str, Mapping[str, Any]], name: str, where: Path) -> Any:
    if name not in steps:
        raise WeightsError(f"{str(where)!r}", expected=f"the step {name}", got=sorted(steps))
    return field_of(steps[name], "config", OBJECT, where)
