"""The typed configuration read from the table, and what its values must say together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_core.errors import OptionError
from flashrt_core.images import CODECS, ENCODINGS
from flashrt_ros.execution import parameters as execution

from .table import COMPRESSED, HOLD, STOP, WAIT, expand

JOINTS = "joints"  # name of the joint input beside the camera keys
NO_ACTION = "none"  # in place of names of actions
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class CameraConfig:
    """One camera: where its images come from, and the view that they feed."""

    key: str
    topic: str  # that is subscribed to: of the transport
    slot: str
    encoding: str
    transport: str
    rotation_deg: int
    max_age_s: float
    on_missing: str = WAIT

    @property
    def compressed(self) -> bool:
        """Whether sensor_msgs/CompressedImage arrive."""
        return self.transport == COMPRESSED


@dataclass(frozen=True)
class NodeConfig:
    """Everything that configure needs, typed and checked. Zero or "" means "the policy's own"."""

    policy: str
    preset: str
    checkpoint: str
    numerics: str
    device: str
    precision: str
    calibration: str
    autostart: bool
    prompt: str
    rate_hz: float
    seed: int
    max_sessions: int
    working_sets: int
    capsule_slots: int
    horizon: int
    steps: int
    prompt_buckets: tuple[int, ...]
    threads: int
    camera_bytes: int
    norm_stats: str
    tokenizer: str
    state_in_prompt: bool
    embodiment: int
    settings: tuple[str, ...]
    cameras: tuple[CameraConfig, ...]
    joints_topic: str
    joints_names: tuple[str, ...]
    joints_max_age_s: float
    joints_on_missing: str
    sync_max_skew_s: float
    sync_fresh_images_s: float
    action_names: tuple[str, ...]
    action_relative: tuple[str, ...]
    action_kind: str
    action_dt_s: float
    execution: execution.ExecutionConfig


def transport_topic(topic: str, transport: str) -> str:
    """The topic of an image_transport for the base topic, or for its own name; "" of ""."""
    suffix = f"/{COMPRESSED}"
    if transport != COMPRESSED or not topic or topic.endswith(suffix):
        return topic
    return topic + suffix


def camera_keys(value: Any) -> tuple[str, ...]:
    """Check the value of ``cameras``; OptionError for an empty, repeated or unusable key."""
    keys: tuple[str, ...] = expand(())["cameras"].check(value)
    _check_unique("cameras", keys)
    for key in keys:
        if key == JOINTS or not _KEY.fullmatch(key):
            raise OptionError(
                "parameter 'cameras'",
                expected=f"keys of letters, digits and _, not '{JOINTS}'",
                got=f"'{key}'",
            )
    return keys


def build_config(values: Mapping[str, Any]) -> NodeConfig:
    """Check every value and what they say together.

    Args:
        values: raw parameter values by full name; a missing name takes its default.

    Raises:
        OptionError: mistyped, out of range, contradictory, or a required one is unset.
    """
    keys = camera_keys(values.get("cameras", ()))
    v = {name: p.check(values.get(name, p.default)) for name, p in expand(keys).items()}
    if not keys:
        raise OptionError(
            "parameter 'cameras'", expected="at least one camera key", got="none",
            remedy="name the cameras; if a file does, its top key must be /**",
        )  # fmt: skip
    for name in ("joints.names", "action.names", "action.relative"):
        _check_unique(name, v[name])
    cameras = tuple(_camera(key, v) for key in keys)
    _check_unique("camera.<key>.slot", [camera.slot for camera in cameras])
    if len(cameras) == 1 and cameras[0].on_missing == HOLD:
        raise OptionError(
            f"parameter 'camera.{keys[0]}.on_missing'", expected=f"{WAIT} or {STOP}: it is the only"
            " camera", got=HOLD,
        )  # fmt: skip
    action_names = v["action.names"] or v["joints.names"]
    if not action_names:
        raise OptionError(
            "parameter 'action.names'", expected="a name for each action", got="none",
            remedy="set it, or joints.names",
        )  # fmt: skip
    for name in v["action.relative"] if v["action.relative"] != (NO_ACTION,) else ():
        if name not in action_names:
            raise OptionError(
                "parameter 'action.relative'", expected=f"names of {list(action_names)}", got=name
            )
    if v["joints.names"] and not v["joints.topic"]:
        raise OptionError(
            "parameter 'joints.topic'", expected="a topic", got="''",
            remedy="set it, or empty joints.names",
        )  # fmt: skip
    fresh_s, rate_hz = v["sync.fresh_images_s"], v["rate_hz"]
    if fresh_s * rate_hz >= 1.0:
        raise OptionError(
            "parameter 'sync.fresh_images_s'",
            expected=f"less than the period of rate_hz, {1 / rate_hz:g} s", got=fresh_s,
        )  # fmt: skip
    plain = {name.replace(".", "_"): value for name, value in v.items() if _is_plain(name)}
    outputs = execution.read(v, action_names, v["joints.names"], v["action.kind"])
    return NodeConfig(
        **{**plain, "cameras": cameras, "action_names": action_names, "execution": outputs}
    )


def _camera(key: str, v: Mapping[str, Any]) -> CameraConfig:
    prefix = f"camera.{key}."
    camera = CameraConfig(
        key=key,
        topic=transport_topic(v[prefix + "topic"], v[prefix + "transport"]),
        slot=v[prefix + "slot"] or key,
        encoding=v[prefix + "encoding"],
        transport=v[prefix + "transport"],
        rotation_deg=v[prefix + "rotation_deg"],
        max_age_s=v[prefix + "max_age_s"],
        on_missing=v[prefix + "on_missing"],
    )
    if not camera.topic:
        raise OptionError(
            f"parameter '{prefix}topic'", expected="a topic", got="''",
            remedy=f"set it, or take '{key}' out of cameras",
        )  # fmt: skip
    allowed = CODECS if camera.compressed else ENCODINGS
    if camera.encoding and camera.encoding not in allowed:
        raise OptionError(
            f"parameter '{prefix}encoding'",
            expected=f"'' or one of {', '.join(allowed)}",
            got=f"'{camera.encoding}'",
        )
    return camera


def _is_plain(name: str) -> bool:
    elsewhere = ("cameras", "action.names", *execution.NAMES)
    return not name.startswith("camera.") and name not in elsewhere


def _check_unique(name: str, values: Sequence[str]) -> None:
    for value in values:
        if not value or values.count(value) > 1:
            raise OptionError(
                f"parameter '{name}'", expected="names that are not empty and not repeated",
                got=f"'{value}'" + (" more than once" if value else ""),
            )  # fmt: skip
