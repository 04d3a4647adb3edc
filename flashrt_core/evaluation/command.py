"""``flashrt eval``: what was asked for, run and put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from ..bench.machine import command_line, commit, gpu_state, machine, versions
from ..errors import OptionError
from ..load import LoadOptions, check_reference
from ..observations import write_observations
from . import report
from .branches import Forks, Resumption, check_forks, fork_rollouts, resume_episode, summarise_forks
from .options import EvalOptions, check_plans, plan_for
from .pilot import EnginePilot, Pilot, ReferencePilot
from .rollout import Outcome, Seen
from .tiers import JointError, Tier, joint_errors, run_tier, summarise

__all__ = ["EvalOptions", "Progress", "Result", "Told", "about", "plan_for", "run_eval", "shown"]

#: Told of each episode that has ended, with its outcome where it has a single one.
Told = Callable[[Outcome | None], None]
#: Told what is run now, and of how many episodes; what is told of them.
Progress = Callable[[str, int], Told]


def _quiet(_title: str, _total: int) -> Told:
    return lambda _outcome: None


@dataclass
class Result:
    """What was found.

    Attributes:
        about: what a reader needs to repeat it.
        tiers, forks, resumption: results.
        extra, tables: of who ran it in another way: values for JSON, and what to show of them.
        partial: why it is not all that was asked for; empty: it is.
    """

    about: dict[str, Any]
    tiers: list[Tier] = field(default_factory=list)
    forks: Forks | None = None
    resumption: Resumption | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    tables: list[RenderableType] = field(default_factory=list)
    partial: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing was found yet."""
        return not (self.tiers or self.forks or self.resumption)

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
        return values | self.extra | ({"partial": self.partial} if self.partial else {})

    def show(self, console: Console) -> None:
        """Tables."""
        console.print(f"[bold]{self.about['task']}[/bold], {self.about['episodes']} starts")
        if self.partial:
            console.print(
                f"PARTIAL: {self.partial}", style="bold red", highlight=False, markup=False
            )
        report.show_tiers(self.tiers, console)
        if self.forks is not None:
            report.show_forks(self.forks, console)
        if self.resumption is not None:
            report.show_resumption(self.resumption, console)
        for table in self.tables:
            console.print(table)


def run_eval(
    options: EvalOptions, progress: Progress = _quiet, result: Result | None = None
) -> Result:
    """Run every tier on the starts, then the experiments with saved states on the last one.

    What can be known before the first episode is: names, devices and calibrations of all tiers.

    Args:
        options: what to run.
        progress: told how far it is.
        result: takes what is found as it comes, for who is interrupted.

    Raises:
        FlashRTError: a plan or the task cannot be run.
    """
    result = Result(about(options)) if result is None else result
    check_direct(options)
    plans = options.plans
    baseline: Sequence[Outcome] | None = None
    seen: list[Seen] = []
    makers: list[Callable[[], Pilot]] = [partial(EnginePilot, plan) for plan in plans]
    if options.reference:
        makers.insert(0, partial(ReferencePilot, plans[0], options.reference))
    for make in makers:
        with _opened(make) as pilot:
            outcomes = _run_one(options, pilot, result, progress, seen, baseline)
        if baseline is None:
            baseline = outcomes
            if options.observations is not None:
                samples = [(each.instruction, each.observation) for each in seen]
                write_observations(samples, options.observations)
    if options.forks or options.resume:
        run_saved_states(options, plans[-1], result, progress)
    return result


def check_direct(options: EvalOptions) -> None:
    """What a direct run would find out late; FlashRTError."""
    if options.forks:
        check_forks(options.forks)
    elif options.fork_at:
        raise OptionError(
            "option '--fork-at'",
            expected="--forks, without which nothing forks",
            got=options.fork_at,
            remedy="add --forks 2, or leave it out",
        )
    if options.observations is not None and not options.starts.error_episodes:
        raise OptionError(
            "option '--observations'",
            expected="--error-episodes of 1 or more, whose observations are written",
            got="--error-episodes 0",
        )
    if options.reference:
        check_reference(options.reference)
    check_plans(options)


def _run_one(
    options: EvalOptions,
    pilot: Pilot,
    result: Result,
    progress: Progress,
    seen: list[Seen],
    baseline: Sequence[Outcome] | None,
) -> Sequence[Outcome]:
    """One tier, added to ``result`` with the episodes that ended, however it ends."""
    task, starts, joints = options.found.task, options.starts, tuple[JointError, ...]()
    outcomes: list[Outcome] = []
    told = progress(pilot.name, starts.episodes)
    try:
        keep = seen if baseline is None else None
        run_tier(pilot, task, starts, seen=keep, told=told, into=outcomes)
        if baseline is not None and seen:
            joints = joint_errors(pilot, task.joint_names, seen)
    finally:
        if outcomes:
            same = None if baseline is None else baseline[: len(outcomes)]
            compared = len(seen) if joints else 0
            result.tiers.append(
                summarise(pilot.name, pilot.fingerprint, outcomes, same, joints, compared)
            )
    return outcomes


def run_saved_states(
    options: EvalOptions, plan: LoadOptions, result: Result, progress: Progress
) -> None:
    """The experiments of :mod:`.branches`, with one plan."""
    task, starts = options.found.task, options.starts
    with _opened(partial(EnginePilot, plan, sessions=2)) as pilot:
        if options.forks:
            told = progress(f"{pilot.name}, {options.forks} forks", starts.episodes)
            given = {"forks": options.forks, "fork_at": options.fork_at}
            found: list[tuple[Outcome, ...]] = []
            try:
                fork_rollouts(
                    pilot,
                    task,
                    starts.seeds,
                    **given,
                    replan_rows=starts.replan_rows,
                    told=lambda: told(None),
                    into=found,
                )
            finally:
                if found:
                    result.forks = summarise_forks(pilot.name, found, **given)
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
