"""The node's parameters for a task: those of a file, or made of the task alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashrt_core.errors import OptionError
from flashrt_core.evaluation.rollout import SUBSTEP_S
from flashrt_core.evaluation.task import FoundTask, Task
from flashrt_core.load import LoadOptions
from flashrt_core.load_options import settings_of
from flashrt_core.policies import find_policy
from flashrt_ros.parameters import RAW, NodeConfig
from flashrt_ros.paths import share_directory
from flashrt_ros.replay.parameter_file import read_parameters

TRAJECTORY = "joint_trajectory_controller/joint_trajectory"
CONTROLLER_STATE = "joint_trajectory_controller/controller_state"
_AGE_S, _RETRY_HZ, _LOOK_HZ = 0.25, 10.0, 50.0


def parameters_for(
    found: FoundTask,
    plan: LoadOptions,
    *,
    strategy: str,
    replan_rows: int,
    file: Path | None = None,
) -> dict[str, Any]:
    """Parameters by full name.

    What the plan, the simulator and the run fix counts more than a file: where the weights are and
    how they run, the clock, the outputs, the strategy. Cameras, ages, limits and the safe action
    are the file's.

    Args:
        found, plan: what runs.
        strategy, replan_rows: ``execution.strategy`` and ``execution.replan_rows``.
        file: a parameter file; None: ``config/<policy>_<task>.yaml`` of this package, or none.

    Raises:
        OptionError: the file does not fit the task, or there is no such strategy.
    """
    if file is None:
        shipped = share_directory() / "config" / f"{plan.policy}_{found.task.name}.yaml"
        file = shipped if shipped.is_file() else None
    values = dict(read_parameters(file).values) if file is not None else _of_task(found.task)
    if file is not None:
        _check(file, read_parameters(file).config, found.task)
    values |= _of_plan(plan)
    back = find_policy(plan.policy).looks_back  # it decides where a chunk ends
    values |= {
        "use_sim_time": True,
        "rate_hz": _LOOK_HZ if back else float(values.get("rate_hz") or _RETRY_HZ),
        "action.dt_s": found.task.dt_s,
        "output.trajectory.topic": values.get("output.trajectory.topic") or TRAJECTORY,
        "output.rate_hz": 1.0 / SUBSTEP_S,
        "execution.strategy": strategy,
        "execution.replan_rows": 0 if back else replan_rows,
        "safe.controller_timeout_s": 1.0,
        "safe.controller_state.topic": CONTROLLER_STATE,
        "safe.controller_state.type": "sensor_msgs/msg/JointState",
        "prompt": found.task.instructions[0],
    }
    for key in values["cameras"]:
        values[f"camera.{key}.transport"] = RAW  # that the simulator sends
    return values


def _of_task(task: Task) -> dict[str, Any]:
    values: dict[str, Any] = {
        "cameras": list(task.views.values()),
        "joints.topic": "joint_states",
        "joints.names": list(task.joint_names),
        "joints.max_age_s": _AGE_S,
    }
    for slot, key in task.views.items():
        values |= {
            f"camera.{key}.topic": f"{key}_camera/image_raw",
            f"camera.{key}.slot": slot,
            f"camera.{key}.max_age_s": _AGE_S,
        }
    return values


def _of_plan(plan: LoadOptions) -> dict[str, Any]:
    """The parameters that say which plan is loaded; what a plan leaves open is left out."""
    given: dict[str, Any] = {
        "policy": plan.policy,
        "preset": plan.preset,
        "checkpoint": _place(plan.checkpoint),
        "device": plan.device,
        "precision": _place(plan.precision),
        "numerics": plan.numerics,
        "threads": plan.threads or 1,
        "camera_bytes": plan.camera_bytes,
    }
    for name in ("horizon", "steps"):
        given |= {name: value} if (value := getattr(plan, name)) is not None else {}
    for name in ("norm_stats", "tokenizer", "calibration"):
        given |= {name: _place(value)} if (value := getattr(plan, name)) is not None else {}
    if plan.prompt_buckets:
        given["prompt_buckets"] = list(plan.prompt_buckets)
    if plan.extra.get("state_in_prompt") is False:
        given["state_in_prompt"] = False
    if "embodiment" in plan.extra:
        given["embodiment"] = plan.extra["embodiment"]
    if settings := settings_of(plan.extra):
        given["settings"] = settings
    return given


def _place(value: str | Path) -> str:
    """A path from / on, as the node has a folder of its own; anything else as it is."""
    return str(Path(value).absolute()) if Path(value).exists() else str(value)


def _check(file: Path, config: NodeConfig, task: Task) -> None:
    slots = sorted(camera.slot for camera in config.cameras)
    joints = list(task.joint_names)
    for what, expected, got in (
        ("camera.<key>.slot", sorted(task.views), slots),
        ("joints.names", joints, list(config.joints_names)),
        ("action.names", joints, list(config.action_names)),
    ):
        if expected != got:
            raise OptionError(
                f"parameter '{what}' of {file}",
                expected=f"those of task '{task.name}', {expected}",
                got=got,
            )


def topics(config: NodeConfig, node: str = "policy") -> Mapping[str, Any]:
    """Fields of :class:`~.simulator.SimulatorOptions` that follow from the node's parameters."""
    return {
        "cameras": {camera.slot: camera.topic for camera in config.cameras},
        "joints": config.joints_topic,
        "trajectory": config.execution.trajectory_topic,
        "controller_state": config.execution.controller_state_topic,
        "prompt": f"{node}/prompt",
    }
