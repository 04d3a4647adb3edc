"""What LeRobot's processor files say: statistics of state and actions, and relative actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import read_arrays
from ..errors import OptionError, WeightsError
from .json_fields import FLAG, NUMBERS, OBJECT, OBJECTS, TEXT, TEXTS, field_of, read_object, shown
from .normalisation import FIELDS, Statistics, from_arrays

#: Before the network, and after it.
FILES = ("policy_preprocessor.json", "policy_postprocessor.json")
_MODES = {
    "QUANTILES": "quantiles",
    "MIN_MAX": "min_max",
    "QUANTILE10": "quantile10",
    "MEAN_STD": "mean_std",
}
_READ = (
    "normalizer_processor",
    "unnormalizer_processor",
    "relative_actions_processor",
    "absolute_actions_processor",
)
#: In names of steps that may change units; such a step must be one that is read.
_SUSPECT = ("normaliz", "relative", "absolute", "delta")


def relative_dims(
    folder: Path,
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    dims: int | None,
) -> tuple[bool, ...]:
    """Whether a dimension is relative to the state: all whose name holds no excluded one."""
    where = f"{folder / FILES[0]}, relative_actions_processor"
    config = _config(before, "relative_actions_processor", where)
    absolute = f"{folder / FILES[1]}, absolute_actions_processor"
    restored = _config(after, "absolute_actions_processor", absolute)
    enabled = field_of(config, "enabled", FLAG, where, False)
    if field_of(restored, "enabled", FLAG, absolute, False) != enabled:
        raise WeightsError(
            f"enabled in {absolute!r}",
            expected=f"{enabled}, as relative_actions_processor in {FILES[0]}",
            got=not enabled,
        )
    names = field_of(config, "action_names", TEXTS, where, None, optional=True)
    excluded = field_of(config, "exclude_joints", TEXTS, where, None, optional=True)
    if not enabled:
        return ()
    excluded = [name.lower() for name in excluded or [] if name]
    count = len(names or ()) if dims is None else dims
    if not count or (names is not None and len(names) != count):
        raise WeightsError(
            f"action_names in {where!r}",
            expected=f"{count or 'the'} names of the action's dimensions",
            got=shown(names),
        )
    if names is None:
        return (True,) * count  # LeRobot excludes nothing where it knows no names
    return tuple(not any(part in name.lower() for part in excluded) for name in names)


def _config(steps: Mapping[str, Mapping[str, Any]], kind: str, where: str) -> Any:
    return field_of(steps[kind], "config", OBJECT, where) if kind in steps else {}


def feature_statistics(
    file: Path,
    steps: Mapping[str, Mapping[str, Any]],
    kind: str,
    feature: str,
    norm_stats: Path | None,
) -> Statistics | None:
    """Statistics of one feature as a (un)normaliser step holds them; None for the identity."""
    where = f"{file}, {kind}"
    if kind not in steps:
        raise WeightsError(repr(where), expected="such a step", got=f"steps {sorted(steps)}")
    config = _config(steps, kind, where)
    role, part = ("ACTION", "actions") if feature == "action" else ("STATE", "state")
    norm_map = field_of(config, "norm_map", OBJECT, where)
    mode = field_of(norm_map, role, TEXT, f"{where}, norm_map").upper()
    if mode == "IDENTITY":
        return None
    if mode not in _MODES:
        known = sorted([*_MODES, "IDENTITY"])
        raise WeightsError(f"norm_map.{role} in {where!r}", expected=f"one of {known}", got=mode)
    eps = config.get("eps", 1e-8)
    if not NUMBERS.fits([eps]) or not 1e-30 < eps < 1:
        raise WeightsError(
            f"eps in {where!r}", expected="a finite number above 0, small", got=shown(eps)
        )
    wanted = FIELDS[_MODES[mode]]
    if norm_stats is not None:
        source = f"norm_stats {str(norm_stats)!r}, {part}, for the checkpoint's mode {mode}"
        values = _given(norm_stats, part, source, wanted)
    else:
        path = file.parent / field_of(steps[kind], "state_file", TEXT, where)
        source = f"statistics {str(path)!r}, {feature}"
        values = _saved(path, feature)
        if missing := [name for name in wanted if name not in values]:
            raise WeightsError(
                source,
                expected=f"{feature}.{missing[0]}, as norm_map says {mode}",
                got=sorted(values) or "none",
                remedy="set norm_stats to a file with the statistics",
            )
    return from_arrays(source, _MODES[mode], values, guarded=True, eps=float(eps))


def _given(path: Path, part: str, source: str, wanted: tuple[str, str]) -> dict[str, Any]:
    """The arrays of one part of an openpi ``norm_stats.json``."""
    try:
        found = field_of(read_object(path, remedy=None), "norm_stats", OBJECT, path)
        own = field_of(found, part, OBJECT, source)
        return {name: np.asarray(field_of(own, name, NUMBERS, source)) for name in wanted}
    except WeightsError as error:  # of the option, not of the checkpoint
        raise OptionError(error.what, expected=error.expected, got=error.got) from error


def _saved(path: Path, feature: str) -> dict[str, Any]:
    """The arrays of one feature in a statistics file."""
    tensors = read_arrays(path)
    start = f"{feature}."
    return {
        key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)
    }


def read_steps(path: Path) -> dict[str, Mapping[str, Any]]:
    """Name -> step of a processor file; WeightsError on one whose effect on units is not known."""
    found: dict[str, Mapping[str, Any]] = {}
    for step in field_of(read_object(path), "steps", OBJECTS, path):
        name = field_of(step, "registry_name" if "registry_name" in step else "class", TEXT, path)
        if name not in _READ and any(word in name.lower() for word in _SUSPECT):
            raise WeightsError(f"steps in {str(path)!r}", expected=f"one of {_READ}", got=name)
        if name in _READ and name in found:
            raise WeightsError(f"steps in {str(path)!r}", expected=f"one {name}", got="several")
        found[name] = step
    return found
