"""The parameters of the policy node: one table, and the typed configuration read from it.

``TABLE`` is the only declaration. The node, the documentation (docs/parameters.md, printed by
``python -m flashrt_ros.parameters``) and the checks all come from it. Nothing here imports rclpy,
so that tools can read the table without ROS; ``declaration.py`` puts it on a node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flashrt_core.errors import OptionError
from flashrt_core.images import CODECS, ENCODINGS, ROTATIONS_DEG

JOINTS = "joints"  # name of the joint input beside the camera keys
NO_ACTION = "none"  # in place of names of actions
ACTION_KINDS = ("absolute", "delta", "velocity")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_GROUP = "camera.<key>."


@dataclass(frozen=True)
class Param:
    """One declared parameter. ``kind`` is bool, int, float, string, int[] or string[]."""

    name: str
    kind: str
    default: Any
    doc: str
    unit: str = ""
    bounds: tuple[float, float] | None = None
    choices: tuple[Any, ...] = ()
    # Read only from configure to cleanup; between, change it and configure again.
    read_only: bool = True

    def check(self, value: Any) -> Any:
        """Return ``value`` in the declared type; OptionError names the parameter and both types.

        A whole number is taken for a float, and an unset array (YAML ``[]``) is empty.
        """
        item = self.kind.removesuffix("[]")
        if self.kind.endswith("[]"):
            values = [] if value is None else value
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise self._error(value)
            cast = [self._cast(item, v, value) for v in values]
            for element in cast:
                self._check_range(element)
            return tuple(cast)
        single = self._cast(item, value, value)
        self._check_range(single)
        return single

    def limits(self) -> str:
        """Bounds or choices in words, "" where every value of the type is allowed."""
        if self.choices:
            return " | ".join(str(c) for c in self.choices)
        if self.bounds:
            return f"{_number(self.bounds[0])} to {_number(self.bounds[1])}"
        return ""

    def _cast(self, item: str, value: Any, whole: Any) -> Any:
        if item == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        types = {"bool": bool, "int": int, "string": str}
        wanted = types.get(item)
        if wanted is None or not isinstance(value, wanted):
            raise self._error(whole)
        if wanted is int and isinstance(value, bool):
            raise self._error(whole)
        return value

    def _check_range(self, value: Any) -> None:
        if self.choices and value not in self.choices:
            raise OptionError(f"parameter '{self.name}'", expected=self.limits(), got=_show(value))
        if isinstance(value, float) and not math.isfinite(value):
            raise OptionError(f"parameter '{self.name}'", expected="a finite number", got=value)
        if self.bounds and not self.bounds[0] <= value <= self.bounds[1]:
            unit = f" {self.unit}" if self.unit else ""
            raise OptionError(
                f"parameter '{self.name}'",
                expected=f"{self.limits()}{unit}",
                got=_number(value),
            )

    def _error(self, value: Any) -> OptionError:
        if self.kind.endswith("[]"):
            remedy = "write a list of that type: [a, b]"
        elif self.kind == "string":
            remedy = "quote it in YAML"
        else:
            remedy = f"write it like {_yaml(self.default)}, without quotes"
        return OptionError(
            f"parameter '{self.name}'", expected=self.kind, got=_show(value), remedy=remedy
        )


def _number(value: float) -> str:
    """With every digit that it has, and none behind the point of a whole one."""
    whole = isinstance(value, float) and abs(value) < 1e16 and value.is_integer()
    return str(int(value) if whole else value)


TABLE: tuple[Param, ...] = (
    Param("policy", "string", "pi05", "Policy to run, by registry name."),
    Param("preset", "string", "tiny", "Sizes of the policy: a preset that it declares."),
    Param("checkpoint", "string", "random:0", "Weights: a checkpoint folder of openpi or LeRobot"
          " (or its safetensors file alone), or `random:<seed>`."),
    Param("numerics", "string", "", "Whose roundings and conventions to follow (docs/numerics.md):"
          " a profile, single switches behind it; empty: as the checkpoint's origin says."),
    Param(
        "device", "string", "cpu", "Device that runs the stages; configure fails where it is"
        " missing.", choices=("cpu", "cuda"),
    ),
    Param("precision", "string", "fp32", "Precision plan of the stages: `fp32`, `bf16`, `fp8`, or a"
          " YAML file (docs/numerics.md)."),
    Param("calibration", "string", "", "Scales of an `fp8` plan: a file of `flashrt calibrate`;"
          " empty: where that command puts it."),
    Param("prompt", "string", "", "Instruction at configure; ~/set_prompt changes it. Empty: there"
          " is none, and no decision, until ~/set_prompt gives one."),
    Param(
        "rate_hz", "float", 10.0, "Decisions per second while active; 0 decides only on ~/decide.",
        unit="Hz", bounds=(0.0, 1000.0),
    ),
    Param(
        "seed", "int", 0, "Seed of the decision noise. Decision i of a session always draws the"
        " same noise for the same seed.", bounds=(0, 2**63 - 1),
    ),
    Param(
        "max_sessions", "int", 4, "Sessions that may exist at once, `main` included.",
        bounds=(1, 64),
    ),
    Param("capsule_slots", "int", 4, "Capsules that fit at once; allocated at configure.",
          bounds=(0, 1024)),
    Param("horizon", "int", 0, "Actions in a chunk; 0 takes the policy's own.", bounds=(0, 4096)),
    Param("steps", "int", 0, "Flow-matching steps; 0 takes the policy's own.", bounds=(0, 1024)),
    Param(
        "prompt_buckets", "int[]", (), "Prompt lengths to capture, in tokens; empty takes the"
        " policy's own.", unit="tokens", bounds=(1, 65536),
    ),
    Param("threads", "int", 0, "CPU threads of the device; 0 leaves the library's default.",
          bounds=(0, 1024)),
    Param(
        "camera_bytes", "int", 0, "Room for a raw image: images of so many bytes or fewer go to the"
        " device as they come and are decoded and resized there, with the same result; larger ones"
        " the host resizes. 0: the host does it always, which is faster on `cpu`.",
        unit="bytes", bounds=(0, 1 << 28),
    ),
    Param("norm_stats", "string", "", "Normalisation statistics (openpi's norm_stats.json); empty:"
          " those of the checkpoint."),
    Param("tokenizer", "string", "", "Text encoding (SentencePiece model file); empty: the one in"
          " the checkpoint's folder, for random weights a small one that ships."),
    Param("state_in_prompt", "bool", True, "The policy reads the robot's state from its prompt;"
          " false for a checkpoint that was trained without it."),
    Param("cameras", "string[]", (), "Keys of the cameras; each names a group `camera.<key>`."),
    Param(_GROUP + "topic", "string", "", "Image topic. Must be set."),
    Param(_GROUP + "slot", "string", "", "View of the policy that this camera feeds; empty: the"
          " view named like the key."),
    Param(_GROUP + "encoding", "string", "", "Encoding that must arrive, others are refused;"
          " empty takes every supported one. Also states the channel order of 8UC3 and 8UC4. For a"
          " compressed topic: `jpeg` or `png`."),
    Param(_GROUP + "compressed", "bool", False, "The topic carries sensor_msgs/CompressedImage."),
    Param(_GROUP + "rotation_deg", "int", 0, "Clockwise turn that makes the picture upright.",
          unit="deg", choices=ROTATIONS_DEG),
    Param(_GROUP + "max_age_s", "float", 0.5, "Oldest image that a decision may use.", unit="s",
          bounds=(0.001, 86400.0)),
    Param("joints.topic", "string", "joint_states", "sensor_msgs/JointState topic."),
    Param("joints.names", "string[]", (), "Joints in the order of the policy's state. Messages are"
          " reordered by name and further joints ignored; empty: the policy gets no joint state."),
    Param("joints.max_age_s", "float", 0.2, "Oldest joint state that a decision may use.",
          unit="s", bounds=(0.001, 86400.0)),
    Param("action.names", "string[]", (), "Name of each action; empty takes `joints.names`."),
    Param("action.relative", "string[]", (), "Actions that the network gives relative to the"
          " observed state of the same index: it is added to them. Empty: as the checkpoint says;"
          " [none]: no action, whatever it says."),
    Param("action.kind", "string", "absolute", "What an action means: a set point, a change of the"
          " observed state, or a velocity.", choices=ACTION_KINDS),
    Param("action.dt_s", "float", 0.02, "Time from one action of a chunk to the next.", unit="s",
          bounds=(0.0001, 60.0)),
)  # fmt: skip


@dataclass(frozen=True)
class CameraConfig:
    """One camera: where its images come from, and the view that they feed."""

    key: str
    topic: str
    slot: str
    encoding: str
    compressed: bool
    rotation_deg: int
    max_age_s: float


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
    prompt: str
    rate_hz: float
    seed: int
    max_sessions: int
    capsule_slots: int
    horizon: int
    steps: int
    prompt_buckets: tuple[int, ...]
    threads: int
    camera_bytes: int
    norm_stats: str
    tokenizer: str
    state_in_prompt: bool
    cameras: tuple[CameraConfig, ...]
    joints_topic: str
    joints_names: tuple[str, ...]
    joints_max_age_s: float
    action_names: tuple[str, ...]
    action_relative: tuple[str, ...]
    action_kind: str
    action_dt_s: float


def expand(keys: Sequence[str]) -> dict[str, Param]:
    """The table with one camera group for each key, by full parameter name."""
    params: dict[str, Param] = {}
    for param in TABLE:
        if param.name.startswith(_GROUP):
            for key in keys:
                name = param.name.replace("<key>", key)
                params[name] = replace(param, name=name)
        else:
            params[param.name] = param
    return params


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
    plain = {name.replace(".", "_"): value for name, value in v.items() if _is_plain(name)}
    return NodeConfig(**{**plain, "cameras": cameras, "action_names": action_names})


def render_markdown() -> str:
    """The table as docs/parameters.md."""
    lines = [
        "# Parameters of the policy node",
        "",
        "Generated from `flashrt_ros/parameters.py`: `python -m flashrt_ros.parameters >"
        " docs/parameters.md`.",
        "",
        "Parameters can be set in a file (key `/**:`), on the command line (`--ros-args -p"
        " rate_hz:=5.0`) or, while the node is unconfigured, with `ros2 param set`. From configure"
        " to cleanup they are read-only. A value of the wrong type or out of range makes configure"
        " fail with one line; an unknown name is reported in the log and in diagnostics.",
        "",
        "Of several sources on the command line (launch gives some files, too) the last counts,"
        " whatever the YAML types are: rcl alone would let a file's `rate_hz: 5` win over"
        " `-p rate_hz:=20.0`. A file or `-p` that sets nothing on this node is reported.",
        "",
        "Sensor subscriptions take the usual `qos_overrides.<topic>.subscription.*` (history,"
        " depth, reliability) beside these.",
        "",
        "| name | type | default | unit | range | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for p in TABLE:
        limits = p.limits().replace("|", r"\|")
        cells = (f"`{p.name}`", p.kind, f"`{_yaml(p.default)}`", p.unit, limits, p.doc)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _camera(key: str, v: Mapping[str, Any]) -> CameraConfig:
    prefix = f"camera.{key}."
    camera = CameraConfig(
        key=key,
        topic=v[prefix + "topic"],
        slot=v[prefix + "slot"] or key,
        encoding=v[prefix + "encoding"],
        compressed=v[prefix + "compressed"],
        rotation_deg=v[prefix + "rotation_deg"],
        max_age_s=v[prefix + "max_age_s"],
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
    return not name.startswith("camera.") and name not in ("cameras", "action.names")


def _check_unique(name: str, values: Sequence[str]) -> None:
    for value in values:
        if not value or values.count(value) > 1:
            raise OptionError(
                f"parameter '{name}'", expected="names that are not empty and not repeated",
                got=f"'{value}'" + (" more than once" if value else ""),
            )  # fmt: skip


def _show(value: Any) -> str:
    kinds = {bool: "bool", int: "int", float: "float", str: "string", type(None): "unset"}
    if isinstance(value, str):
        return f"'{value}' (string)"
    if type(value) in kinds:
        return f"{_yaml(value)} ({kinds[type(value)]})"
    return f"{_yaml(tuple(value))} (array)" if isinstance(value, Iterable) else repr(value)


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_yaml(v) for v in value) + "]"
    if isinstance(value, str):
        return value or '""'
    return str(value)


if __name__ == "__main__":
    print(render_markdown(), end="")
