"""``flashrt qualify``: a pipeline against its reference, on the user's own checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..errors import OptionError
from ..fidelity.qualification import Error, Gates, Report, gates_for, qualify
from ..load import (
    LoadOptions,
    calibration_of,
    check_loadable,
    check_reference,
    configuration,
    load,
    plans_of,
    precision_of,
    qualifier,
    views_of,
)
from ..observations import Sample, made_up_observations, read_observations
from ..outputs import check_figure
from ..policies.base import Processor
from ..terminal import terminal_or_file
from .options import AsJson, Plans, given, option, refuse_idle_calibration, takes_plan
from .progress import progress_bars

FAILED = 1  # exit status when a gate fails

Decisions = Annotated[int, option("Made-up observations to compare on.", 1)]
Noises = Annotated[int, option("Decisions an observation, each with other noise.", 1)]
Npz = Annotated[Path | None, option("File of observations to compare on instead.")]
Seed = Annotated[int, option("Seed of the made-up observations.", 0)]
Place = Annotated[str, option("Where torch computes the reference: cpu or cuda.")]
Limit = Annotated[float | None, option("Gate, instead of the precision plan's.")]
Figure = Annotated[Path | None, option("File: .png, .pdf, .svg, ...")]


@takes_plan(precision={"annotation": Plans})
def qualify_command(
    whole: LoadOptions,
    context: typer.Context,
    decisions: Decisions = 2,
    noises: Noises = 1,
    npz: Npz = None,
    seed: Seed = 0,
    reference_device: Place = "cpu",
    mean_cosine: Limit = None,
    min_cosine: Limit = None,
    max_error: Limit = None,
    max_stage_error: Limit = None,
    figure: Figure = None,
    as_json: AsJson = False,
) -> None:
    """Compare a pipeline with its float32 reference, stage by stage and joint by joint.

    Observations are made up, or those of a file; exit status 1 when a gate fails.
    """
    if npz is not None and (idle := given(context, "decisions", "seed")):
        raise OptionError(
            f"option '{idle[0]}'",
            expected="made-up observations, which it is about",
            got="--npz",
            remedy="leave one of them out",
        )
    figure = figure and check_figure("--figure", figure)
    limits = {
        "mean_cosine": mean_cosine,
        "min_cosine": min_cosine,
        "max_error": max_error,
        "max_stage_error": max_stage_error,
    }
    plans = plans_of(whole)
    gates = [gates_for(precision_of(plan).tier, **limits) for plan in plans]
    check_reference(reference_device)
    refuse_idle_calibration(whole, plans)
    if len(plans) > 1:  # what the last one lacks is said before the first one's minutes
        for plan in plans:
            check_loadable(plan)

    def samples(processor: Processor) -> Iterable[Sample]:
        if npz is not None:
            return read_observations(npz, processor.views)
        return made_up_observations(
            processor.views, processor.state_dim, decisions, seed, square=processor.square
        )

    reports = [
        compare(plan, limit, samples, noises, reference_device, f"npz: {npz.name}" if npz else "")
        for plan, limit in zip(plans, gates, strict=True)
    ]
    found = [about(p) | r.as_dict() for p, r in zip(plans, reports, strict=True)]
    show(found, reports, as_json=as_json, figure=figure)
    if not all(report.passed for report in reports):
        raise typer.Exit(FAILED)


def show(
    found: list[dict[str, Any]], reports: list[Report], *, as_json: bool, figure: Path | None
) -> None:
    """Tables or JSON of every plan, and the figure where one was asked for."""
    if as_json:
        print(json.dumps(found[0] if len(found) == 1 else {"plans": found}, indent=2))
    else:
        for plan, report in zip(found, reports, strict=True):
            names = ("policy", "checkpoint", "plan", "device")
            render(report, terminal_or_file(), "{}, {}, {}, on {}".format(*map(plan.get, names)))
    if figure is not None:
        from ..fidelity.figure import draw_fidelity

        draw_fidelity(found, figure)


def compare(
    options: LoadOptions,
    gates: Gates,
    samples: Callable[[Processor], Iterable[Sample]],
    noises: int,
    reference_device: str,
    origin: str = "",
) -> Report:
    """Load the pipeline and its reference, and compare them on observations."""
    options = replace(options, max_sessions=1, capsule_slots=0)
    with progress_bars(f"compared, {options.precision}") as (told, decided):
        session = load(options, told)
        try:
            return qualify(
                session,
                qualifier(options, reference_device),
                gates,
                samples(session.processor),
                decided,
                noises=noises,
                calibration=calibration_of(options, session),
                origin=origin,
            )
        finally:
            session.engine.close()


def about(options: LoadOptions) -> dict[str, Any]:
    """What was qualified: the options, and what they come to with this checkpoint."""
    names = ("policy", "preset", "checkpoint", "device")
    deployment, config = configuration(options)
    return {name: getattr(options, name) for name in names} | {
        "views": views_of(options),
        "plan": options.precision,
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
        gates.add_row(gate.name, f"{gate.limit:.7g}", f"{gate.found:.7g}", mark)
    console.print(stages, joints, gates)


_COLUMNS = ("largest", "rms", "relative", "mean cosine", "least cosine")


def _cells(error: Error) -> list[str]:
    values = asdict(error)
    return [
        *(f"{values[name]:.3g}" for name in ("max_abs", "rms", "relative")),
        f"{error.mean_cosine:.7f}",
        f"{error.min_cosine:.7f}",
    ]
