"""What a checkpoint knows of one embodiment: its slot, cameras, and what its numbers mean.

A robot's state and actions are groups that follow each other. Source: Isaac-GR00T's state and
action processor, and LeRobot's steps of the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import WeightsError
from ...fingerprint import sha256_of
from ..json_fields import OBJECT, OBJECTS, TEXTS, field_of, shown
from ..normalisation import check_order, check_size

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ranges:
    """The range that becomes [-1, 1], a number; in float32, as the official code computes.

    Attributes:
        low, high: [dims] float32, or [rows, dims] where every row of a chunk has its own.
        clip: whether a state outside is cut to it; actions always are.
        gripper: column of the actions that means 0 for open and 1 for closed and goes out as the
            sign of the opposite, as LIBERO's robots want; None for none.
        source: where they come from, for messages.
    """

    low: Array
    high: Array
    clip: bool = True
    gripper: int | None = None
    source: str = ""

    @property
    def dims(self) -> int:
        """Numbers that they cover."""
        return int(self.low.shape[-1])

    @property
    def identity(self) -> str:
        """The arithmetic in words and a digest of the numbers; equal for equal effect."""
        digest = sha256_of([self.low.tolist(), self.high.tolist()])[:16]
        gripper = "" if self.gripper is None else f", sign of {self.gripper}"
        return f"{self.dims} numbers, range{', clipped' if self.clip else ''}{gripper}, {digest}"

    def take(self, dims: int) -> Ranges:
        """Those of the first ``dims`` numbers."""
        gripper = self.gripper if self.gripper is not None and self.gripper < dims else None
        low, high = self.low[..., :dims], self.high[..., :dims]
        return Ranges(low, high, self.clip, gripper, self.source)

    def normalise(self, values: Array) -> Array:
        """Robot units [dims] -> the network's range; 0 where the range is a point."""
        x = values.astype(np.float32)
        span = self.high - self.low
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(span != 0, 2 * (x - self.low) / span - 1, np.float32(0))
        return np.clip(found, -1.0, 1.0) if self.clip else found

    def restore(self, values: Array) -> Array:
        """Network's range [rows, dims] -> robot units."""
        low, high = self._rows(len(values))
        inside = np.clip(values.astype(np.float32), -1.0, 1.0)
        found: Array = (inside + np.float32(1)) * np.float32(0.5) * (high - low) + low
        if self.gripper is not None:
            found[:, self.gripper] = -np.sign(2.0 * found[:, self.gripper] - 1.0)
        return found

    def invert(self, values: Array) -> Array:
        """Robot units [rows, dims] -> what :meth:`restore` makes them of, float64.

        Not finite where the range is a point.
        """
        low, high = (each.astype(np.float64) for each in self._rows(len(values)))
        x = values.astype(np.float64)
        if self.gripper is not None:
            x[:, self.gripper] = (1.0 - np.sign(x[:, self.gripper])) / 2.0
        with np.errstate(divide="ignore", invalid="ignore"):
            return 2.0 * (x - low) / (high - low) - 1.0

    def _rows(self, count: int) -> tuple[Array, Array]:
        if self.low.ndim == 1:
            return self.low, self.high
        # Behind the last row of the statistics nothing was trained; its range goes on.
        index = np.minimum(np.arange(count), len(self.low) - 1)
        return self.low[index], self.high[index]


@dataclass(frozen=True)
class Embodiment:
    """One robot that a checkpoint was trained with.

    Attributes:
        name: its tag.
        slot: of the network's projections.
        state, actions: ranges; None where the network's range is the robot's unit.
        relative: for each action whether the network gives it relative to the state.
        bases: of the relative ones, in their order: which number of the state.
        rows: of a chunk that were trained; None: all.
        cameras: its own names of the cameras.
    """

    name: str
    slot: int
    state: Ranges | None = None
    actions: Ranges | None = None
    relative: tuple[bool, ...] = ()
    bases: tuple[int, ...] = ()
    rows: int | None = None
    cameras: tuple[str, ...] = ()


def read_embodiment(
    name: str,
    modality: Mapping[str, Any],
    stats: Mapping[str, Any],
    slot: Any,
    *,
    percentiles: bool,
    relative: bool,
    clip: bool,
    gripper: bool | None = None,
) -> Embodiment:
    """One embodiment of a processor's configuration.

    Args:
        name: its tag.
        modality: groups and cameras, as ``modality_configs`` has them.
        stats: statistics of the groups.
        slot: of the network's projections; refused unless it is a whole number.
        percentiles: q01 and q99 are the range, else the extremes.
        relative: actions may be relative to the state.
        clip: states outside of the range are cut to it.
        gripper: whether LIBERO's sign is applied; None: as the tag says.

    Raises:
        WeightsError: what is no such configuration, or means something that is not built here.
    """
    if type(slot) is not int or slot < 0:
        raise WeightsError(
            f"slot of embodiment {name!r}", expected="a whole number", got=shown(slot)
        )
    where = f"embodiment {name!r}"
    state, action = (field_of(modality, part, OBJECT, where) for part in ("state", "action"))
    state_groups, action_groups = (
        field_of(part, "modality_keys", TEXTS, where) for part in (state, action)
    )
    names = ("q01", "q99") if percentiles else ("min", "max")
    spans = _Spans(stats, where)
    states = [spans.read("state", group, names) for group in state_groups]
    ends = np.cumsum([0, *(low.size for low, _ in states)]).tolist()
    offsets = dict(zip(state_groups, ends, strict=False))
    parts, mask, bases = _actions(spans, action, names, offsets, relative=relative)
    place = _gripper(name, action_groups, parts) if gripper in (None, True) else None
    return Embodiment(
        name,
        slot,
        state=_joined(states, clip, where),
        actions=_joined(parts, clip, where, place),
        relative=tuple(mask) if any(mask) else (),
        bases=tuple(bases),
        rows=len(action.get("delta_indices") or []) or None,
        cameras=_cameras(field_of(modality, "video", OBJECT, where, {}), where),
    )


def _actions(
    spans: _Spans,
    action: Mapping[str, Any],
    names: tuple[str, str],
    offsets: Mapping[str, int],
    *,
    relative: bool,
) -> tuple[list[tuple[Array, Array]], list[bool], list[int]]:
    """Ranges of the groups; for each number whether it is relative; what the relative ones add to.

    Where an action is relative its range is that of the extremes, whatever the others' is.
    """
    groups = field_of(action, "modality_keys", TEXTS, spans.where)
    configs = field_of(action, "action_configs", OBJECTS, spans.where, [{}] * len(groups))
    if len(configs) != len(groups):
        raise WeightsError(
            f"action_configs of {spans.where}",
            expected=f"{len(groups)}, one a group",
            got=len(configs),
        )
    parts, mask, bases = [], [], []
    for group, config in zip(groups, configs, strict=True):
        moved = relative and _word(config.get("rep")) == "relative"
        part = ("relative_action", group, ("min", "max")) if moved else ("action", group, names)
        parts.append(spans.read(*part))
        width = parts[-1][0].shape[-1]
        mask += [moved] * width
        bases += _bases(config, group, width, offsets, spans.where) if moved else []
    return parts, mask, bases


def _cameras(video: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Names of the cameras; WeightsError where the network sees more than one frame of them."""
    if len(video.get("delta_indices") or [0]) != 1:
        raise WeightsError(f"video of {where}", expected="one frame a camera", got=shown(video))
    return tuple(field_of(video, "modality_keys", TEXTS, where, []))


class _Spans:
    """Statistics of groups."""

    def __init__(self, stats: Mapping[str, Any], where: str) -> None:
        self._stats, self.where = stats, where

    def read(self, part: str, group: str, names: Sequence[str]) -> tuple[Array, Array]:
        """[dims] or [rows, dims] of the two statistics of a group."""
        place = f"statistics of {self.where}, {part}.{group}"
        owner = field_of(self._stats, part, OBJECT, place, {})
        own = field_of(owner, group, OBJECT, place)
        found = [_numbers(own, name, f"{name} in {place!r}") for name in names]
        return span_of(found[0], found[1], f"{place}.{names[0]}", f"{place}.{names[1]}")


def span_of(low: Array, high: Array, first: str, second: str) -> tuple[Array, Array]:
    """Both ends of a range as float32; WeightsError where no data can have them.

    Args:
        low, high: numbers of any type.
        first, second: what they are, for messages.
    """
    if low.shape != high.shape:
        raise WeightsError(
            second,
            expected=f"numbers of the shape of {first}, {list(low.shape)}",
            got=list(high.shape),
        )
    low, high = low.astype(np.float64), high.astype(np.float64)
    check_size(first, low, WeightsError)
    check_size(second, high, WeightsError)
    check_order(second, low, high, first.rpartition(".")[2], WeightsError)
    return low.astype(np.float32), high.astype(np.float32)


def _numbers(owner: Mapping[str, Any], name: str, where: str) -> Array:
    """[dims] or [rows, dims] of a group's statistics."""
    if name not in owner:
        raise WeightsError(where, expected="numbers", got="no such key")
    try:
        values = np.asarray(owner[name])
    except (TypeError, ValueError) as error:
        raise WeightsError(
            where, expected="numbers", got=f"{type(error).__name__}: {error}"
        ) from error
    if values.ndim not in (1, 2) or not values.size or values.dtype.kind not in "fiu":
        raise WeightsError(
            where,
            expected="numbers, or a list of them a row",
            got=f"{list(values.shape)} {values.dtype}",
        )
    return values


def _bases(
    config: Mapping[str, Any], group: str, width: int, offsets: Mapping[str, Any], where: str
) -> list[int]:
    """Places in the state that a relative group adds to."""
    if _word(config.get("type")) != "non_eef":
        raise WeightsError(
            f"action group {group!r} of {where}",
            expected="joints, where it is relative to the state",
            got=shown(config.get("type")),
            remedy="relative poses of a hand are not supported",
        )
    key = config.get("state_key") or group
    if key not in offsets:
        raise WeightsError(
            f"action group {group!r} of {where}", expected=f"a state of {sorted(offsets)}", got=key
        )
    return [int(offsets[key]) + index for index in range(width)]


def _joined(
    parts: Sequence[tuple[Array, Array]], clip: bool, where: str, gripper: int | None = None
) -> Ranges:
    rows = {len(low) for low, _ in parts if low.ndim == 2}
    if len(rows) > 1:
        raise WeightsError(f"statistics of {where}", expected="one count of rows", got=sorted(rows))

    def wide(values: Array) -> Array:
        if not rows or values.ndim == 2:
            return values
        return np.broadcast_to(values, (max(rows), values.size))

    low, high = (np.concatenate([wide(part[side]) for part in parts], axis=-1) for side in (0, 1))
    return Ranges(low, high, clip, gripper, source=f"the checkpoint's statistics of {where}")


def _gripper(name: str, groups: Sequence[str], parts: Sequence[tuple[Array, Array]]) -> int | None:
    """Column of LIBERO's gripper; None for other robots."""
    if name != "libero_sim" or "gripper" not in groups:
        return None
    at = groups.index("gripper")
    return int(sum(low.shape[-1] for low, _ in parts[:at]))


def _word(value: Any) -> str:
    return str(value).lower().rpartition(".")[2]
