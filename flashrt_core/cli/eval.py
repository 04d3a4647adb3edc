"""``flashrt eval``: whether a policy does its task in simulation, tier by tier."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from ..bench.report import write_json
from ..errors import OptionError
from ..evaluation.command import EvalOptions, Progress, Result, Told, about, plan_for, run_eval
from ..evaluation.rollout import Outcome
from ..evaluation.task import EVALUATION_SEED, find_task
from ..evaluation.tiers import Starts
from ..load import LoadOptions
from ..outputs import check_output
from ..policies import find_policy
from ..terminal import terminal_or_file
from .options import AsJson, given, option, refuse_idle, refuse_idle_calibration, takes_plan

FAILED = 1  # exit status where bits that are promised to be equal are not


@dataclass(frozen=True)
class RosOptions:
    """What a run through the node needs beside the options of a direct one.

    Attributes:
        strategies: ``execution.strategy``, one or several separated by commas.
        added_delay_ms: by which every decision takes longer; likewise.
        camera_hz: images a second.
        params: parameter file of the node; None: the task's, or one made of it.
        domain: DDS domain; None: a private one.
        log: folder for the node's logs; None: none is kept.
    """

    strategies: str = "replace"
    added_delay_ms: str = "0"
    camera_hz: float = 25.0
    params: Path | None = None
    domain: int | None = None
    log: Path | None = None


_OF_ROS = ("strategy", "added_delay", "camera_hz", "params", "domain", "log")
_OF_DIRECT = ("error_episodes", "reference_device", "forks", "fork_at", "resume", "observations")

#: Runs episodes through a node, and puts what is found into the result. Set where ROS is.
RosRunner = Callable[[EvalOptions, RosOptions, Progress, Result], Result]
ros_runners: list[RosRunner] = []

TaskName = Annotated[str, typer.Argument(help="A shipped task, or a task's package folder.")]
PolicyOption = Annotated[str, option("Policy, by registry name.")]
Tiers = Annotated[str, option("Precision plans, separated by commas; cuda:fp8 names its device.")]
Checkpoint = Annotated[str, option("Checkpoint folder or random:<seed>; empty: the task's own.")]
Sizes = Annotated[str, option("Sizes; empty: as the task says.")]
Episodes = Annotated[int, option("Starts; each is run by every tier.", 1)]
FirstSeed = Annotated[int, option("Seed of the first start; the others follow it.", 0)]
Rows = Annotated[int, option("Rows of a chunk that are executed before the next decision.", 1)]
Errors = Annotated[int, option("Starts whose decisions all tiers make, for joint errors.", 0)]
Place = Annotated[str, option("Where torch computes the reference: cpu or cuda.")]
Reference = Annotated[bool, option("Run the reference too; else the first plan is compared with.")]
Forks = Annotated[
    int, option("Rollouts of one state by the last plan, of which the best is taken; 0: none.", 0)
]
ForkAt = Annotated[int, option("--forks: decision at which they fork.", 0)]
Resume = Annotated[
    bool, option("With the last plan: save in mid-episode, run another, restore; compare bits.")
]
Observations = Annotated[
    Path | None,
    option("Write what the first --error-episodes starts were decided on: .npz for calibrate."),
]
Output = Annotated[Path | None, option("JSON file.")]
Ros = Annotated[bool, option("Through the node: it and the simulator as processes, real time.")]
Strategy = Annotated[str, option("--ros: execution.strategy; several with commas.")]
AddedDelay = Annotated[str, option("--ros: ms that a decision takes longer; several with commas.")]
CameraHz = Annotated[float, option("--ros: images a second of each camera.", 0.5)]
Params = Annotated[Path | None, option("--ros: parameter file of the node.")]
Domain = Annotated[int | None, option("--ros: DDS domain; without it a private one.")]
Log = Annotated[Path | None, option("--ros: folder for logs of node and simulator.")]


@takes_plan(
    # Its task says some; a strategy, which only --ros has, what a plan is made for.
    without=(
        *("policy", "checkpoint", "preset", "views", "state_dim", "action_dim"),
        "real_time_chunking",
    ),
    precision={"annotation": Tiers},
)
def eval_command(
    options: LoadOptions,
    context: typer.Context,
    task: TaskName,
    policy: PolicyOption = "pi05",
    checkpoint: Checkpoint = "",
    preset: Sizes = "",
    episodes: Episodes = 50,
    first_seed: FirstSeed = EVALUATION_SEED,
    replan_rows: Rows = 5,
    error_episodes: Errors = 20,
    reference: Reference = True,
    reference_device: Place = "cpu",
    forks: Forks = 0,
    fork_at: ForkAt = 0,
    resume: Resume = False,
    observations: Observations = None,
    ros: Ros = False,
    strategy: Strategy = RosOptions.strategies,
    added_delay: AddedDelay = RosOptions.added_delay_ms,
    camera_hz: CameraHz = RosOptions.camera_hz,
    params: Params = None,
    domain: Domain = None,
    log: Log = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run a policy in simulation: success rates on the same starts, and errors of actions.

    On the engine in step mode, or with --ros through the node in real time. Exit status 1 where
    bits that are promised to be equal are not. What ended before an error or Ctrl-C is shown and
    written, marked as partial.
    """
    _refuse_idle(context, ros=ros, reference=reference, forks=forks)
    output = output and check_output("--output", output)
    observations = observations and check_output("--observations", observations)
    if find_policy(policy).looks_back and given(context, "replan_rows"):
        raise OptionError(
            "option '--replan-rows'",
            expected=f"none: policy '{policy}' decides where a chunk ends",
            got=replan_rows,
            remedy="leave it out",
        )
    found = find_task(task)
    named = EvalOptions(found, replace(options, policy=policy))
    refuse_idle_calibration(options, named.plans)
    asked = EvalOptions(
        found,
        plan_for(found, options, policy, checkpoint, preset),
        Starts(episodes, first_seed, replan_rows, error_episodes),
        reference=reference_device if reference else "",
        forks=forks,
        fork_at=fork_at,
        resume=resume,
        observations=observations,
    )
    through = RosOptions(strategy, added_delay, camera_hz, params, domain, log)
    _run(asked, through if ros else None, as_json, output)


def _run(asked: EvalOptions, ros: RosOptions | None, as_json: bool, output: Path | None) -> None:
    """Run it, show and write what came out; Exit where a promise was broken."""
    result = Result(about(asked))
    try:
        with episode_bars() as progress:
            if ros is not None:
                ros_runner()(asked, ros, progress, result)
            else:
                run_eval(asked, progress, result)
    except BaseException as error:
        if not result.empty:
            result.partial = str(error) or type(error).__name__
            show(result, as_json, output)
            if output is not None:
                error.add_note(f"what ended before is in {output}")
        raise
    show(result, as_json, output)
    if not result.passed:
        raise typer.Exit(FAILED)


def _refuse_idle(context: typer.Context, *, ros: bool, reference: bool, forks: int) -> None:
    """OptionError where an option was given that only counts beside others, which were not."""
    if not ros:
        refuse_idle(context, _OF_ROS, "--ros")
    elif direct := given(context, *_OF_DIRECT):
        raise OptionError(
            f"option '{direct[0]}'",
            expected="a direct run: through the node nothing repeats to the bit",
            got="--ros",
            remedy="leave one of them out",
        )
    if not reference:
        refuse_idle(context, ["reference_device"], "a reference")
    if not forks:
        refuse_idle(context, ["fork_at"], "--forks")


def show(result: Result, as_json: bool, output: Path | None) -> None:
    """JSON or tables, and the file."""
    if output is not None:
        write_json(result.as_dict(), output)
    if as_json:
        print(json.dumps(result.as_dict(), indent=1))
    else:
        result.show(terminal_or_file())


def ros_runner() -> RosRunner:
    """What runs episodes through a node; OptionError without ROS."""
    if not ros_runners:
        raise OptionError(
            "option '--ros'",
            expected="the flashrt command of a ROS environment",
            got="the core alone",
            remedy="source your workspace and run flashrt",
        )
    return ros_runners[0]


@contextmanager
def episode_bars() -> Iterator[Progress]:
    """A bar a tier on stderr with the successes so far; where that is no terminal, two lines."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn())
    last = (TimeElapsedColumn(), TextColumn("{task.fields[note]}", style="dim"))
    if not console.is_terminal:
        yield _lines
        return
    with Bars(*columns, *last, console=console) as bars:

        def begin(title: str, total: int) -> Told:
            bar, done = bars.add_task(title, total=total, note=""), [0, 0]

            def told(outcome: Outcome | None) -> None:
                done[0] += 1
                done[1] += outcome is not None and outcome.success
                note = "" if outcome is None else f"{done[1]} of {done[0]} done"
                bars.update(bar, advance=1, note=note)

            return told

        yield begin


def _lines(title: str, total: int) -> Told:
    """Says when a tier begins and when it has ended."""
    start, done = time.monotonic(), [0, 0]
    print(f"{title}: {total} episodes ...", file=sys.stderr, flush=True)

    def told(outcome: Outcome | None) -> None:
        done[0] += 1
        done[1] += outcome is not None and outcome.success
        if done[0] == total:
            won = "" if outcome is None else f", {done[1]} done"
            took = f"{time.monotonic() - start:.0f} s"
            print(f"{title}: {total} episodes{won} in {took}", file=sys.stderr, flush=True)

    return told
