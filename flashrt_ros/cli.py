"""The ``flashrt`` command: the core's commands, and ``demo``, ``replay``, ``compare``: with ROS."""

from __future__ import annotations

from flashrt_core.signals import leave_at_once

if __name__ == "__main__":  # python -m; start.py does it for the command
    leave_at_once("flashrt")  # before the imports, which take seconds

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import yaml

from flashrt_core.cli.bench import bench_app
from flashrt_core.cli.calibrate import bag_readers
from flashrt_core.cli.eval import RosOptions, ros_runners
from flashrt_core.cli.main import app, run
from flashrt_core.cli.options import given, refuse_idle
from flashrt_core.errors import OptionError
from flashrt_core.evaluation.command import EvalOptions, Progress, Result
from flashrt_core.evaluation.task import EVALUATION_SEED, task_folders
from flashrt_core.observations import Sample
from flashrt_ros.paths import share_directory

_RATES = (0.001, 1000.0)  # slower or faster than any clock and any node can follow

Domain = Annotated[
    int | None,
    typer.Option(
        help="DDS domain, discovered as your environment says. Without it a domain that nothing on"
        " this host uses, discovered on this host only.",
    ),
]


@app.command()
def demo(
    context: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Option(help="A synthetic recording of that length, instead of the one that ships."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("out"),
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the scene and of the noise, 0 where not given. Of --live: of the first"
            f" episode, {EVALUATION_SEED}."
        ),
    ] = None,
    domain: Domain = None,
    live: Annotated[
        bool, typer.Option("--live", help="A simulated robot in real time, and a film of it.")
    ] = False,
    task: Annotated[str, typer.Option(help="Of --live: as for flashrt eval.")] = "tabletop",
    episodes: Annotated[int, typer.Option(help="Of --live: how many.", min=1, max=100)] = 4,
) -> None:
    """Play a recording into the policy node over DDS; measure and verify.

    Exit status 1 where a check fails or fewer than 50 decisions were made; with --live where half
    of the episodes or more were not done, or the safe action was taken.
    """
    if live:
        if given(context, "seconds"):
            raise OptionError(
                "option '--seconds'",
                expected="a recording, whose length it is",
                got="--live",
                remedy="leave it out, or say how many --episodes",
            )
        from flashrt_ros.evaluation.live import LiveOptions, run_live
        from flashrt_ros.replay.progress import Reporter

        first = EVALUATION_SEED if seed is None else seed
        if not 0 <= first < 1 << 31:
            raise OptionError("option '--seed'", expected=f"0 to {(1 << 31) - 1}", got=seed)
        asked = LiveOptions(task, episodes, out, first, domain)
        raise typer.Exit(run_live(asked, Reporter()))
    refuse_idle(context, ("task", "episodes"), "--live")
    seed = 0 if seed is None else seed
    if seconds is not None and not seconds <= 600:
        raise OptionError("option '--seconds'", expected="at most 600", got=seconds)
    _check_seed(seed)
    from flashrt_ros.replay.demo import DemoOptions, run_demo
    from flashrt_ros.replay.progress import Reporter

    raise typer.Exit(run_demo(DemoOptions(seconds, out, seed, domain), Reporter()))


@app.command()
def replay(
    bag: Annotated[Path, typer.Argument(help="A rosbag2: folder, .mcap or .db3.")],
    params: Annotated[Path, typer.Option(help="Parameter file of the node.")],
    rate: Annotated[
        str | None,
        typer.Option(
            help="Times the recorded timing, 1 where not given; max: as fast as the node follows."
        ),
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="One decision after the other; results repeat exactly.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Step mode: at most so many decisions.")] = None,
    remap: Annotated[
        list[str] | None, typer.Option(help="BAG_TOPIC:=NODE_TOPIC; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("out"),
    seed: Annotated[int | None, typer.Option(help="Instead of the file's seed.")] = None,
    domain: Domain = None,
) -> None:
    """Play a recording into the policy node and report latency, ages, drops and refusals."""
    times = _rate(rate)
    if rate is not None and step:
        raise OptionError("option '--rate'", expected="timed mode", got="--step, which has none")
    if limit is not None and limit < 1:
        raise OptionError("option '--limit'", expected=">= 1", got=limit)
    if limit is not None and not step:
        raise OptionError(
            "option '--limit'", expected="step mode", got="timed mode", remedy="add --step"
        )
    _check_seed(seed)
    from flashrt_ros.replay.command import ReplayOptions, run_replay
    from flashrt_ros.replay.progress import Reporter

    options = ReplayOptions(
        bag=bag,
        parameters=params,
        rate=times,
        step=step,
        limit=limit,
        remaps=dict(_remap(text) for text in remap or ()),
        out=out,
        seed=seed,
        domain=domain,
    )
    raise typer.Exit(run_replay(options, Reporter()))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="The JSON report of a run.")],
    second: Annotated[Path, typer.Argument(help="That of another run.")],
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("out"),
) -> None:
    """Show what differs between two runs of replay or demo, in a table, a figure and JSON."""
    from flashrt_ros.replay.compare import run_compare
    from flashrt_ros.replay.progress import Reporter

    run_compare(first, second, out, Reporter())


@bench_app.command("node")
def bench_node(
    params: Annotated[
        Path | None,
        typer.Option(help="Parameter file of the node; none: the small policy, three cameras."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME:=VALUE, a parameter instead of the file's; repeatable."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 600.0,
    camera_hz: Annotated[float, typer.Option(help="Images a second of each camera.")] = 30.0,
    joint_hz: Annotated[float, typer.Option(help="Joint states a second.")] = 100.0,
    size: Annotated[str, typer.Option(help="Of the images, WIDTHxHEIGHT.")] = "640x480",
    max_joints_lost: Annotated[int, typer.Option(help="Joint states that may be lost.")] = 0,
    max_cpu: Annotated[
        float, typer.Option(help="CPU of the node outside the policy, % of one core.")
    ] = 60.0,
    max_overhead: Annotated[
        float,
        typer.Option(
            help="99 % of decisions, ms: newest image to published chunk, without the engine."
        ),
    ] = 15.0,
    max_growth: Annotated[float, typer.Option(help="Growth of anonymous memory, MB.")] = 4.0,
    output: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
    domain: Domain = None,
) -> None:
    """The whole node under a robot's load: losses, ages, CPU, memory, overhead.

    Exit status 1 where a limit does not hold.
    """
    from flashrt_ros.bench.command import NodeBenchOptions, run_node_bench
    from flashrt_ros.bench.report import Limits
    from flashrt_ros.replay.progress import Reporter

    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if found is None:
        raise OptionError("option '--size'", expected="WIDTHxHEIGHT", got=f"'{size}'")
    for name, rate in (("camera", camera_hz), ("joint", joint_hz)):
        if not 0.1 <= rate <= 2000:
            raise OptionError(f"option '--{name}-hz'", expected="0.1 to 2000", got=rate)
    options = NodeBenchOptions(
        parameters=params,
        changes=_values(changes or []),
        seconds=seconds,
        camera_hz=camera_hz,
        joint_hz=joint_hz,
        width=int(found[1]),
        height=int(found[2]),
        limits=Limits(max_joints_lost, max_cpu, max_overhead, max_growth),
        domain=domain,
        output=output,
    )
    raise typer.Exit(run_node_bench(options, Reporter()))


def _values(changes: list[str]) -> dict[str, object]:
    """Parameters by name, their values as YAML says."""
    found: dict[str, object] = {}
    for change in changes:
        name, mark, text = change.partition(":=")
        if not (name and mark):
            raise OptionError("option '--set'", expected="NAME:=VALUE", got=f"'{change}'")
        try:
            found[name] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none, say
            raise OptionError(
                f"option '--set', value of {name}", expected="YAML", got=f"'{text}'"
            ) from None
    return found


def _rate(text: str | None) -> float:
    """Times the recorded timing; infinity for ``max``."""
    if text is None:
        return 1.0
    if text == "max":
        return math.inf
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _RATES[0] <= value <= _RATES[1]:
        raise OptionError(
            "option '--rate'", expected=f"{_RATES[0]:g} to {_RATES[1]:g}, or max", got=f"'{text}'"
        )
    return value


def _check_seed(seed: int | None) -> None:
    """The node takes what its parameter ``seed`` takes."""
    from flashrt_ros.parameters import expand

    least, most = expand(())["seed"].bounds or (0, math.inf)
    if seed is not None and not least <= seed <= most:
        raise OptionError("option '--seed'", expected=f"{least} to {most}", got=seed)


def _remap(text: str) -> tuple[str, str]:
    source, mark, target = text.partition(":=")
    if not (mark and source and target):
        raise OptionError("option '--remap'", expected="BAG_TOPIC:=NODE_TOPIC", got=f"'{text}'")
    return source, "/" + target.lstrip("/")


def read_bag(bag: Path, params: Path, limit: int | None) -> Iterator[Sample]:
    """Observations of a recording, for ``flashrt calibrate --bag``."""
    from flashrt_ros.replay.observations import bag_observations

    return bag_observations(bag, params, limit)


def run_ros_eval(
    options: EvalOptions, ros: RosOptions, progress: Progress, result: Result
) -> Result:
    """Episodes through a node, for ``flashrt eval --ros``."""
    from flashrt_ros.evaluation.command import run_ros_eval as run_eval

    return run_eval(options, ros, progress, result)


def shipped_tasks() -> Path:
    """Folder of the tasks that ship: in a checkout, or installed."""
    return share_directory() / "examples"


bag_readers.append(read_bag)
ros_runners.append(run_ros_eval)
task_folders.insert(0, shipped_tasks)


def main() -> int:
    """Run the command line; the exit status."""
    return run(app)


if __name__ == "__main__":
    sys.exit(main())
