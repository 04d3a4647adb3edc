"""Parameters of the execution: their rows, and the typed configuration read from them.

The rows are plain data, so that this module stands below the table that takes them in.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_core.errors import OptionError
from flashrt_core.guidance import DECAYS, EXPONENTIAL
from flashrt_ros.execution.chunk import INTERPOLATIONS, LINEAR
from flashrt_ros.execution.strategies import (
    REAL_TIME_CHUNKING,
    REPLACE,
    STRATEGIES,
    TEMPORAL_ENSEMBLE,
)

# What the stamp of a trajectory is.
NOW_STAMP, ZERO_STAMP = "now", "zero"
CLAMP, STOP_ON_VIOLATION = "clamp", "stop"
HOLD, STOP, STOP_TRAJECTORY = "hold", "stop", "stop_trajectory"
STALE, FAILED = "stale", "failed"
DELTA, VELOCITY = "delta", "velocity"
DEFAULT_GAP_S = 5.0


def _row(name: str, kind: str, default: Any, doc: str, **more: Any) -> dict[str, Any]:
    """Fields of a Param."""
    return {"name": name, "kind": kind, "default": default, "doc": doc, **more}


ROWS: tuple[dict[str, Any], ...] = (
    _row("output.trajectory.topic", "string", "", "Topic on which each chunk"
         " also goes out as a trajectory_msgs/JointTrajectory, for a joint_trajectory_controller;"
         " empty: it does not."),
    _row("output.trajectory.stamp", "string", NOW_STAMP, "Header stamp of a"
         " trajectory: when it is sent, or zero: it starts when it arrives, for a controller whose"
         " clock is another.", choices=(NOW_STAMP, ZERO_STAMP)),
    _row("output.commands.topic", "string", "", "Topic on which the action"
         " that is due goes out at `output.rate_hz` as a std_msgs/Float64MultiArray, in the order"
         " of `action.names`, for a forward_command_controller; empty: it does not."),
    _row("output.rate_hz", "float", 100.0, "Control rate: of commands, and of"
         " the checks behind the safe action.", unit="Hz", bounds=(1.0, 1000.0)),
    _row("execution.strategy", "string", REPLACE, "What is due where chunks"
         " overlap: what the newest says, or the weighted mean of all; or what the newest says,"
         " which continues the one before by how it is decided (`real_time_chunking`, of `pi05` and"
         " `groot_n17`).", choices=STRATEGIES),
    _row("execution.ensemble_decay", "float", 0.01, "Decay of the weights of"
         " `temporal_ensemble` from the oldest chunk to the newest; below 0 the newest weighs"
         " most.", bounds=(-10.0, 10.0)),
    _row("execution.rtc.decay", "string", EXPONENTIAL, "Of `real_time_chunking`: how the weight of"
         " the chunk before falls, from the rows that are executed until the new chunk is there to"
         " the last that it reaches; `ones`: it does not, `zeros`: to nothing at once.",
         choices=DECAYS),
    _row("execution.interpolation", "string", LINEAR, "Commands between two"
         " rows of a chunk: the row that is due, or on the straight line to the next.",
         choices=INTERPOLATIONS),
    _row("execution.replan_rows", "int", 0, "Begin the next decision so that"
         " its chunk is there when this row of the current one is due; `rate_hz` then paces only"
         " the decisions after a failed one. 0: `rate_hz` paces all.", bounds=(0, 4096)),
    _row("execution.delay_s", "float", 0.0, "Time that a decision takes, for"
         " `execution.replan_rows` and `real_time_chunking`; 0: measured.", unit="s",
         bounds=(0.0, 60.0)),
    _row("execution.delay_quantile", "float", 0.95, "Quantile of the last 64"
         " measured delays that is reckoned with.", bounds=(0.01, 1.0)),
    _row("execution.gap_s", "float", DEFAULT_GAP_S, "Of a policy that decides where a chunk ends:"
         " how long after that the next chunk may come. One that is later counts as"
         " `deadline_missed`, and has the safe action taken.", unit="s", bounds=(0.001, 3600.0)),
    _row("limits.lower", "float[]", (), "Smallest value of each action that"
         " an output may send, in the order of `action.names`; empty: none. In a file, give every"
         " number a decimal point.",
         bounds=(-1e9, 1e9)),
    _row("limits.upper", "float[]", (), "Largest value of each action;"
         " empty: none.", bounds=(-1e9, 1e9)),
    _row("limits.max_step", "float[]", (), "Largest change of each action in"
         " one control period (1 / `output.rate_hz`), between points of a trajectory in proportion;"
         " empty: none.", bounds=(1e-9, 1e9)),
    _row("limits.on_violation", "string", CLAMP, "What a violated limit does:"
         " the value is clamped, or the safe action is taken until the next activation.",
         choices=(CLAMP, STOP_ON_VIOLATION)),
    _row("safe.action", "string", HOLD, "Safe action: hold the last commanded"
         " position, stop publishing, or send a trajectory of one point: the measured position, at"
         " rest.", choices=(HOLD, STOP, STOP_TRAJECTORY)),
    _row("safe.causes", "string[]", (STALE, FAILED), "What takes it at once,"
         " beside a schedule that ran out: an input without a usable sample, a decision that"
         " failed. Without these the rest of the chunk is executed first.",
         choices=(STALE, FAILED)),
    _row("safe.controller_timeout_s", "float", 0.0, "An output that nobody"
         " has subscribed to, or a controller's state that is silent, for so long takes the safe"
         " action; 0: neither is looked at.", unit="s", bounds=(0.0, 3600.0)),
    _row("safe.controller_state.topic", "string", "", "Topic whose messages are the sign of life of"
         " the controller; empty: none."),
    _row("safe.controller_state.type", "string",
         "control_msgs/msg/JointTrajectoryControllerState", "Type of that topic."),
    _row("safe.stop_within_s", "float", 0.1, "Time to the point of a trajectory"
         " that stops the robot.", unit="s", bounds=(0.001, 60.0)),
)  # fmt: skip
NAMES = frozenset(row["name"] for row in ROWS)
_TOPICS = ("output.trajectory.topic", "output.commands.topic")
# They change what the outputs send; without one, whoever sets them is mistaken.
_DEFAULTS = {row["name"]: row["default"] for row in ROWS}
# What only one strategy reads.
_OF_STRATEGIES = {
    "execution.ensemble_decay": TEMPORAL_ENSEMBLE,
    "execution.rtc.decay": REAL_TIME_CHUNKING,
}
_OF_ALL = (*_TOPICS, "execution.gap_s")
_OF_OUTPUTS = {row["name"]: row["default"] for row in ROWS if row["name"] not in _OF_ALL}


@dataclass(frozen=True)
class ExecutionConfig:
    """Outputs, limits and the safe action, checked. "" and 0 switch off; see ROWS."""

    names: tuple[str, ...]  # of the actions
    velocity: bool  # actions are velocities, not positions
    measured: bool  # every action is a joint whose position comes in
    trajectory_topic: str
    trajectory_stamp: str
    commands_topic: str
    rate_hz: float
    strategy: str
    ensemble_decay: float
    rtc_decay: str
    interpolation: str
    replan_rows: int
    delay_s: float
    delay_quantile: float
    gap_s: float
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    max_step: tuple[float, ...]
    on_violation: str
    safe_action: str
    safe_causes: tuple[str, ...]
    controller_timeout_s: float
    controller_state_topic: str
    controller_state_type: str
    stop_within_s: float

    @property
    def enabled(self) -> bool:
        """Whether anything but the chunk topic is asked for."""
        return bool(self.trajectory_topic or self.commands_topic)

    @property
    def limited(self) -> bool:
        """Whether any limit holds."""
        return bool(self.lower or self.upper or self.max_step)

    @property
    def period_ns(self) -> int:
        """One control period."""
        return round(1e9 / self.rate_hz)


def read(
    v: Mapping[str, Any], names: Sequence[str], joints: Sequence[str], kind: str
) -> ExecutionConfig:
    """The configuration of the execution.

    Args:
        v: checked values by full name, those of ROWS and ``rate_hz`` among them.
        names: of the actions.
        joints: names of the joints whose positions come in.
        kind: of the actions.

    Raises:
        OptionError: values that contradict each other, or the kind of the actions.
    """
    config = ExecutionConfig(
        names=tuple(names),
        velocity=kind == VELOCITY,
        measured=kind != VELOCITY and set(names) <= set(joints),
        trajectory_topic=v["output.trajectory.topic"],
        trajectory_stamp=v["output.trajectory.stamp"],
        commands_topic=v["output.commands.topic"],
        rate_hz=v["output.rate_hz"],
        **{_field(name): v[name] for name in sorted(NAMES) if not name.startswith("output.")},
    )
    _check_arrays(config)
    if not config.enabled:
        for name, default in _OF_OUTPUTS.items():
            given = tuple(v[name]) if isinstance(default, tuple) else v[name]
            if given != default:
                raise OptionError(
                    f"parameter '{name}'", expected=f"{_words(default)}, or an output that it"
                    " applies to", got=list(given) if isinstance(given, tuple) else given,
                    remedy="set output.trajectory.topic or output.commands.topic; the chunk topic"
                    " is never limited or paced by it",
                )  # fmt: skip
        return config
    _check_kind(config, kind)
    _check_step(config, joints)
    _check_safe_action(config, joints)
    if config.trajectory_topic == config.commands_topic:
        raise OptionError(
            "parameter 'output.commands.topic'", expected="another topic than that of trajectories",
            got=f"'{config.commands_topic}'",
        )  # fmt: skip
    if config.controller_state_topic and not config.controller_timeout_s:
        raise OptionError(
            "parameter 'safe.controller_timeout_s'", expected="more than 0, with"
            " safe.controller_state.topic", got=0, remedy="say how long it may be silent",
        )  # fmt: skip
    _check_pace(config, v)
    return config


def _check_pace(config: ExecutionConfig, v: Mapping[str, Any]) -> None:
    if config.strategy == REAL_TIME_CHUNKING and not v["rate_hz"]:
        raise OptionError(
            "parameter 'execution.strategy'", expected=f"another than {REAL_TIME_CHUNKING}, as"
            " rate_hz is 0", got=REAL_TIME_CHUNKING,
            remedy="set rate_hz: decisions of ~/decide continue no chunk",
        )  # fmt: skip
    for name, strategy in _OF_STRATEGIES.items():
        if v[name] != _DEFAULTS[name] and config.strategy != strategy:
            raise OptionError(
                f"parameter '{name}'", expected=f"none, without execution.strategy {strategy}",
                got=v[name], remedy="take it out, or set the strategy",
            )  # fmt: skip
    if config.replan_rows and not v["rate_hz"]:
        raise OptionError(
            "parameter 'execution.replan_rows'", expected="0, as rate_hz is 0",
            got=config.replan_rows, remedy="set rate_hz: it paces the decisions after a failed one",
        )  # fmt: skip


def _words(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    return str(default) if default else "none"


def _field(name: str) -> str:
    key = name.partition(".")[2].replace(".", "_")
    return f"safe_{key}" if name in ("safe.action", "safe.causes") else key


def _check_arrays(config: ExecutionConfig) -> None:
    for name in ("lower", "upper", "max_step"):
        values = getattr(config, name)
        if values and len(values) != len(config.names):
            raise OptionError(
                f"parameter 'limits.{name}'",
                expected=f"{len(config.names)} values, one of each action",
                got=len(values),
            )
    for joint, low, high in zip(config.names, config.lower, config.upper, strict=False):
        if low >= high:
            raise OptionError(
                "parameter 'limits.upper'", expected=f"more than {low:g} of limits.lower"
                f" for '{joint}'", got=f"{high:g}",
            )  # fmt: skip


def _check_kind(config: ExecutionConfig, kind: str) -> None:
    output = "output.trajectory.topic" if config.trajectory_topic else "output.commands.topic"
    if kind == DELTA:
        raise OptionError(
            f"parameter '{output}'", expected="none, as action.kind is delta", got="one",
            remedy="list the actions in action.relative: the observed state is then added to them,"
            " and action.kind is absolute",
        )  # fmt: skip
    if kind == VELOCITY and config.trajectory_topic:
        raise OptionError(
            "parameter 'output.trajectory.topic'", expected="none, as action.kind is velocity and a"
            " trajectory is one of positions", got=f"'{config.trajectory_topic}'",
            remedy="set output.commands.topic instead",
        )  # fmt: skip


def _check_step(config: ExecutionConfig, joints: Sequence[str]) -> None:
    missing = [name for name in config.names if name not in joints]
    if not config.max_step or config.velocity or not missing:
        return
    near = difflib.get_close_matches(missing[0], joints, n=1)
    raise OptionError(
        "parameter 'limits.max_step'", expected="joints' names in action.names, as the first step"
        " counts from the measured position", got=", ".join(f"'{name}'" for name in missing),
        remedy=f"did you mean '{near[0]}'?" if near else "add them to joints.names",
    )  # fmt: skip


def _check_safe_action(config: ExecutionConfig, joints: Sequence[str]) -> None:
    if config.velocity and config.safe_action == STOP:
        raise OptionError(
            "parameter 'safe.action'", expected=f"{HOLD}, as action.kind is velocity and the robot"
            " goes on with the last one", got=STOP, remedy=f"set it to {HOLD}, which sends zeros",
        )  # fmt: skip
    if config.safe_action != STOP_TRAJECTORY:
        return
    if not config.trajectory_topic:
        raise OptionError(
            "parameter 'safe.action'", expected=f"{HOLD} or {STOP}, without trajectories",
            got=STOP_TRAJECTORY, remedy="set output.trajectory.topic",
        )  # fmt: skip
    if not config.measured:
        missing = sorted(set(config.names) - set(joints))
        raise OptionError(
            "parameter 'safe.action'", expected=f"{HOLD} or {STOP}, as no position of"
            f" {', '.join(missing)} comes in", got=STOP_TRAJECTORY,
            remedy="add them to joints.names",
        )  # fmt: skip
