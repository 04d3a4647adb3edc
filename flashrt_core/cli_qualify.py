"""``flashrt qualify``: a pipeline against its reference, on the user's own checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from .checkpoint import Progress as Told
from .cli_options import (
    DEFAULT_CHECKPOINT,
    DEFAULT_VIEWS,
    AsJson,
    Checkpoint,
    DeviceName,
    Dims,
    InPrompt,
    Numerics,
    PolicyName,
    Precision,
    Preset,
    Size,
    Stats,
    Tokenizer,
    Views,
    option,
    plan_options,
)
from .load import LoadOptions, configuration, load, qualifier
from .qualification import Error, Gates, Report, gates_for, made_up_observations, qualify
from .terminal import terminal_or_file

FAILED = 1  # exit status when a gate fails

Decisions = Annotated[int, option("Observations to compare on.", 1)]
Seed = Annotated[int, option("Seed of the observations.", 0)]
Place = Annotated[str, option("Where torch computes the reference: cpu or cuda.")]
Limit = Annotated[float | None, option("Gate, instead of the precision plan's.")]
Threads = Annotated[int, option("torch threads; 0: its own choice.", 0)]


def qualify_command(
    policy: PolicyName = "pi05",
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    preset: Preset = "",
    device: DeviceName = LoadOptions.device,
    precision: Precision = LoadOptions.precision,
    numerics: Numerics = "",
    views: Views = DEFAULT_VIEWS,
    state_dim: Dims = None,
    action_dim: Dims = None,
    norm_stats: Stats = None,
    tokenizer: Tokenizer = None,
    state_in_prompt: InPrompt = True,
    horizon: Size = None,
    steps: Size = None,
    decisions: Decisions = 2,
    seed: Seed = 0,
    reference_device: Place = "cpu",
    min_cosine: Limit = None,
    max_error: Limit = None,
    max_stage_error: Limit = None,
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Compare a pipeline with its float32 reference, stage by stage and joint by joint.

    Observations are made up; exit status 1 when a gate fails.
    """
    gates = gates_for(
        precision, min_cosine=min_cosine, max_error=max_error, max_stage_error=max_stage_error
    )
    options = plan_options(
        policy=policy,
        preset=preset,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        numerics=numerics,
        views=views,
        state_dim=state_dim,
        action_dim=action_dim,
        norm_stats=norm_stats,
        tokenizer=tokenizer,
        state_in_prompt=state_in_prompt,
        horizon=horizon,
        steps=steps,
        threads=threads,
    )
    report = compare(options, gates, decisions, seed, reference_device)
    if as_json:
        print(json.dumps(about(options) | report.as_dict(), indent=2))
    else:
        render(report, terminal_or_file(), f"{policy}, {checkpoint}, {precision}, on {device}")
    if not report.passed:
        raise typer.Exit(FAILED)


def compare(
    options: LoadOptions, gates: Gates, decisions: int, seed: int, reference_device: str
) -> Report:
    """Load the pipeline and its reference, and compare them on made-up observations."""
    options = replace(options, max_sessions=1, capsule_slots=0)
    with progress_bars() as (told, decided):
        session = load(options, told)
        try:
            return qualify(
                session,
                qualifier(options, reference_device),
                gates,
                made_up_observations(
                    session.processor.views, session.processor.state_dim, decisions, seed
                ),
                lambda done: decided(done, decisions),
            )
        finally:
            session.engine.close()


@contextmanager
def progress_bars() -> Iterator[tuple[Told, Any]]:
    """Bars on stderr, where it is a terminal, for reading a checkpoint; a line a decision."""
    bytes_ = (TextColumn("{task.description:>10}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*bytes_, console=console, transient=True, disable=quiet) as bars:
        tasks: dict[str, Any] = {}

        def told(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done)

        def decided(done: int, total: int) -> None:
            if not quiet:
                console.print(f"decision {done} of {total} compared", style="dim")

        yield told, decided


def about(options: LoadOptions) -> dict[str, Any]:
    """What was qualified: the options, and what they come to with this checkpoint."""
    names = ("policy", "preset", "checkpoint", "device", "precision", "views")
    deployment, config = configuration(options)
    return {name: getattr(options, name) for name in names} | {
        "origin": deployment.origin,
        "config": asdict(config),
    }


def render(report: Report, console: Console, title: str) -> None:
    """Tables of stages, joints and gates."""
    console.print(f"[bold]{title}[/bold], {report.decisions} decisions")
    stages = Table("stage", *_COLUMNS, box=SIMPLE_HEAD, header_style="dim")
    for name, error in report.stages.items():
        stages.add_row(name, *_cells(error))
    joints = Table("action", *_COLUMNS, box=SIMPLE_HEAD, header_style="dim")
    for index, error in enumerate(report.joints):
        joints.add_row(str(index), *_cells(error))
    gates = Table("gate", "limit", "found", "", box=SIMPLE_HEAD, header_style="dim")
    for gate in report.gates:
        mark = "[green]passed[/green]" if gate.passed else "[red]FAILED[/red]"
        gates.add_row(gate.name, f"{gate.limit:g}", f"{gate.found:.7g}", mark)
    console.print(stages, joints, gates)


_COLUMNS = ("largest", "rms", "relative", "least cosine")


def _cells(error: Error) -> list[str]:
    values = asdict(error)
    return [
        *(f"{values[name]:.3g}" for name in ("max_abs", "rms", "relative")),
        f"{error.min_cosine:.7f}",
    ]
