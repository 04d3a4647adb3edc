"""What ``flashrt eval`` is asked for, and whether all of it can be run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ..contract import Contract
from ..errors import OptionError
from ..load import LoadOptions, calibrate_command, check_loadable
from ..load_options import checked
from ..scales import NoCalibrationError
from ..session import NOISE
from .rollout import too_many_rows
from .task import CALIBRATION_SEED, FoundTask
from .tiers import Starts

_POLICY_FOLDER = "policy"  # beside the task
_DEVICES = ("cpu", "cuda")
_SEEN = "seen.npz"  # of the commands that make a calibration


@dataclass(frozen=True)
class EvalOptions:
    """What to evaluate.

    Attributes:
        found: the task.
        plan: what to load; its ``precision`` names several plans, separated by commas, each perhaps
            with its device in front (``cuda:fp8``).
        starts: which episodes.
        reference: where torch computes the reference, or empty: without it.
        forks, fork_at: rollouts of one state, 0: none; from which decision on.
        resume: also save, run another episode and restore, once.
        observations: .npz file for what the baseline decided on.
    """

    found: FoundTask
    plan: LoadOptions
    starts: Starts = field(default_factory=Starts)
    reference: str = "cpu"
    forks: int = 0
    fork_at: int = 0
    resume: bool = False
    observations: Path | None = None

    @property
    def plans(self) -> list[LoadOptions]:
        """One for each precision plan, in order, each once; ``cuda:bf16`` names its device, too."""
        names = dict.fromkeys(part.strip() for part in str(self.plan.precision).split(","))
        return [self._plan(name) for name in names if name]

    def _plan(self, name: str) -> LoadOptions:
        device, mark, precision = name.partition(":")
        if mark and device in _DEVICES:
            return replace(self.plan, device=device, precision=precision)
        return replace(self.plan, precision=name)


def plan_for(
    found: FoundTask,
    options: LoadOptions,
    policy: str = "pi05",
    checkpoint: str = "",
    preset: str = "",
) -> LoadOptions:
    """The plan of a task's policy: what was asked for, else what its package says, else its folder
    ``policy``, else random weights.

    Args:
        found: the task.
        options: of the command; cameras and joints are the task's.
        policy: by registry name.
        checkpoint, preset: as they were given; empty: not at all.

    Raises:
        OptionError: the package's PLAN has an unknown name, or a value of another type.
    """
    known, what = {each.name for each in fields(LoadOptions)}, f"PLAN of task '{found.folder}'"
    if unknown := sorted(set(found.plan) - known):
        raise OptionError(what, expected=f"names of {sorted(known)}", got=unknown[0])
    try:
        checked(replace(LoadOptions(), **found.plan))
    except OptionError as error:
        raise error.reworded(f"{what}, {error.what}") from error
    own = found.folder / _POLICY_FOLDER
    named = found.plan.get("checkpoint") or (own if own.is_dir() else "random:0")
    weights = checkpoint or named
    sizes = preset or found.plan.get("preset", "tiny" if "random:" in str(weights) else "base")
    given = {name: value for name, value in found.plan.items() if _untouched(options, name)}
    joints = len(found.task.joint_names)
    given |= {
        "policy": policy,
        "checkpoint": weights,
        "preset": sizes,
        "views": tuple(found.task.views),
    }
    return replace(options, **given, state_dim=joints, action_dim=joints)


def _untouched(options: LoadOptions, name: str) -> bool:
    return bool(getattr(options, name) == getattr(LoadOptions(), name))


def check_plans(options: EvalOptions) -> None:
    """What of the task and of any plan would be found out late: names, devices, calibrations,
    cameras, rows, and what the machine lacks. FlashRTError.
    """
    options.found.task.check()
    plans = options.plans
    if not plans:
        raise OptionError("option '--precision'", expected="at least one plan", got="none")
    for plan in plans:
        contract = _contract(options, plan)
        rows = contract.input(NOISE).shape[0]
        if contract.history is None and rows < options.starts.replan_rows:
            raise too_many_rows(rows, options.starts.replan_rows)


def _contract(options: EvalOptions, plan: LoadOptions) -> Contract:
    try:
        return check_loadable(plan)
    except NoCalibrationError as error:
        raise error.reworded(remedy=_calibrating(options, plan)) from error


def _calibrating(options: EvalOptions, plan: LoadOptions) -> str:
    """The two commands that make the calibration of a plan, of episodes of the task."""
    own = plan_for(options.found, LoadOptions(), plan.policy)
    words = ["flashrt", "eval", options.found.place or str(options.found.folder)]
    for name in ("policy", "checkpoint", "preset"):
        value = getattr(plan, name)
        if value != (getattr(own, name) if name != "policy" else LoadOptions.policy):
            words += [f"--{name}", str(value)]
    words += ["--no-reference", "--first-seed", str(CALIBRATION_SEED), "--episodes", "20"]
    words += ["--observations", _SEEN]
    return f"make it: {shlex.join(words)} && {calibrate_command(plan, _SEEN)}"
