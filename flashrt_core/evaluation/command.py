"""``flashrt eval``: what was asked for, run and put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from ..bench.machine import command_line, commit, gpu_state, machine, versions
from ..errors import OptionError
from ..load import LoadOptions
from ..observations import write_observations
from . import report
from .branches import Forks, Resumption, fork_rollouts, resume_episode
from .pilot import EnginePilot, Pilot, ReferencePilot
from .rollout import Outcome, Seen
from .task import FoundTask
from .tiers import Starts, Tier, joint_errors, run_tier, summarise

#: Told of each episode that has ended, with its outcome where it has a single one.
Told = Callable[[Outcome | None], None]
#: Told what is run now, and of how many episodes; what is told of them.
Progress = Callable[[str, int], Told]
_POLICY_FOLDER = "policy"  # beside the task
_DEVICES = ("cpu", "cuda")


def _quiet(_title: str, _total: int) -> Told:
    return lambda _outcome: None


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


@dataclass
class Result:
    """What was found.

    Attributes:
        about: what a reader needs to repeat it.
        tiers, forks, resumption: results.
        extra, tables: of who ran it in another way: values for JSON, and what to show of them.
    """

    about: dict[str, Any]
    tiers: list[Tier] = field(default_factory=list)
    forks: Forks | None = None
    resumption: Resumption | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    tables: list[RenderableType] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every promise of equal bits was kept."""
        return self.resumption is None or self.resumption.bit_identical

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {**self.about, "tiers": [report.tier_values(tier) for tier in self.tiers]}
        if self.forks is not None:
            values["forks"] = report.fork_values(self.forks)
        if self.resumption is not None:
            values["resumed"] = report.resumption_values(self.resumption)
        return values | self.extra

    def show(self, console: Console) -> None:
        """Tables."""
        console.print(f"[bold]{self.about['task']}[/bold], {self.about['episodes']} starts")
        report.show_tiers(self.tiers, console)
        if self.forks is not None:
            report.show_forks(self.forks, console)
        if self.resumption is not None:
            report.show_resumption(self.resumption, console)
        for table in self.tables:
            console.print(table)


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
        OptionError: the package's PLAN has an unknown name.
    """
    known = {each.name for each in fields(LoadOptions)}
    if unknown := sorted(set(found.plan) - known):
        raise OptionError(
            f"PLAN of task '{found.folder}'", expected=f"names of {sorted(known)}", got=unknown[0]
        )
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


def run_eval(options: EvalOptions, progress: Progress = _quiet) -> Result:
    """Run every tier on the starts, then the experiments with saved states on the last one.

    Raises:
        FlashRTError: a plan or the task cannot be run.
    """
    result = Result(about(options))
    task, starts = options.found.task, options.starts
    baseline: tuple[Outcome, ...] | None = None
    seen: list[Seen] = []
    plans = options.plans
    makers: list[Callable[[], Pilot]] = [partial(EnginePilot, plan) for plan in plans]
    if options.reference:
        makers.insert(0, partial(ReferencePilot, plans[0], options.reference))
    for make in makers:
        with _opened(make) as pilot:
            keep = seen if baseline is None else None
            told = progress(pilot.name, starts.episodes)
            outcomes = run_tier(pilot, task, starts, seen=keep, told=told)
            joints = joint_errors(pilot, task.joint_names, seen) if baseline and seen else ()
            compared = len(seen) if joints else 0
            result.tiers.append(
                summarise(pilot.name, pilot.fingerprint, outcomes, baseline, joints, compared)
            )
            baseline = outcomes if baseline is None else baseline
    if options.observations is not None:
        write_observations([(s.instruction, s.observation) for s in seen], options.observations)
    if options.forks or options.resume:
        run_saved_states(options, plans[-1], result, progress)
    return result


def run_saved_states(
    options: EvalOptions, plan: LoadOptions, result: Result, progress: Progress
) -> None:
    """The experiments of :mod:`.branches`, with one plan."""
    task, starts = options.found.task, options.starts
    with _opened(partial(EnginePilot, plan, sessions=2)) as pilot:
        if options.forks:
            told = progress(f"{pilot.name}, {options.forks} forks", starts.episodes)
            result.forks = fork_rollouts(
                pilot,
                task,
                starts.seeds,
                forks=options.forks,
                fork_at=options.fork_at,
                replan_rows=starts.replan_rows,
                told=lambda: told(None),
            )
        if options.resume:
            first = starts.first_seed
            result.resumption = resume_episode(
                pilot, task, first, first + 1, replan_rows=starts.replan_rows
            )


@contextmanager
def _opened(make: Callable[[], Any]) -> Iterator[Any]:
    pilot = make()
    try:
        yield pilot
    finally:
        pilot.close()


def about(options: EvalOptions) -> dict[str, Any]:
    """What was run, and on what."""
    task, plan = options.found.task, options.plan
    values: dict[str, Any] = {
        "task": task.name,
        **asdict(options.starts),
        "dt_s": task.dt_s,
        "joint_names": list(task.joint_names),
        "policy": plan.policy,
        "preset": plan.preset,
        "checkpoint": shown(plan.checkpoint),
        "device": plan.device,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "command": command_line("flashrt"),
    }
    if any(each.device == "cuda" for each in options.plans):
        values["gpu"] = gpu_state()
    return values


def shown(checkpoint: str | Path) -> str:
    """A checkpoint by the last parts of its path: whose home it lies in is nobody's concern."""
    return str(checkpoint) if ":" in str(checkpoint) else "/".join(Path(checkpoint).parts[-2:])
