"""``flashrt calibrate``: the scale table of a quantised plan, from observations of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..calibration.run import calibrate
from ..errors import OptionError
from ..load import LoadOptions
from ..observations import Sample, made_up_observations, read_observations
from ..outputs import check_output
from ..policies.base import Processor
from ..scales import Calibration, default_path, read_calibration
from ..terminal import terminal_or_file
from .options import option, refuse_idle, takes_plan
from .progress import progress_bars

#: Reads a recording: bag, parameter file of the node that would have used it, and how many
#: observations at most, spread over it. Set where ROS is.
BagReader = Callable[[Path, Path, int | None], Iterator[Sample]]
bag_readers: list[BagReader] = []

Npz = Annotated[Path | None, option("File of observations (docs/numerics.md).")]
Bag = Annotated[Path | None, option("rosbag2 of the robot; with --params.")]
Params = Annotated[Path | None, option("Parameter file of the node, which says what topics mean.")]
MadeUp = Annotated[int | None, option("So many made-up observations: for trials only.", 1)]
Place = Annotated[str, option("cpu, or reference_cuda: torch computes it on a GPU.")]
Limit = Annotated[int | None, option("At most so many observations.", 1)]
Seed = Annotated[int, option("Seed of made-up observations.", 0)]
Method = Annotated[str, option("Scales from the largest number (amax) or a percentile.")]
Percentile = Annotated[float, option("Which percentile.")]
Output = Annotated[Path | None, option("File; none: where loading the plan looks.")]


@takes_plan(
    without=("calibration", "camera_bytes", "real_time_chunking"),
    precision={"default": "fp8"},
    device={"annotation": Place},
)
def calibrate_command(
    options: LoadOptions,
    context: typer.Context,
    npz: Npz = None,
    bag: Bag = None,
    params: Params = None,
    made_up: MadeUp = None,
    limit: Limit = None,
    seed: Seed = 1,
    method: Method = "amax",
    percentile: Percentile = 99.99,
    output: Output = None,
) -> None:
    """Observe a policy in bf16 and write the scales that a quantised plan needs.

    Runs on the references: on the CPU, or with --device reference_cuda on a GPU.
    """
    if made_up is None:
        refuse_idle(context, ["seed"], "--made-up")
    if bag is None:
        refuse_idle(context, ["params"], "--bag")
    # The name of the default depends on what is loaded; its folder does not.
    tried = check_output("--output", output or default_path({}))
    samples, origin = sample_source(
        npz=npz, bag=bag, params=params, made_up=made_up, seed=seed, limit=limit
    )
    with progress_bars("observed") as (told, decided):
        found = calibrate(
            options,
            lambda processor: islice(samples(processor), limit),
            origin=origin,
            method=method,
            percentile=percentile,
            told=told,
            decided=decided,
        )
    console = terminal_or_file()
    render(found, console)  # before anything can go wrong with the file
    path = tried if output else default_path(found.key)
    done = f"{_replaced(path, found)} {path}" if path.exists() else f"written to {path}"
    found.write(path)
    console.print(done, soft_wrap=True, highlight=False)


def _replaced(path: Path, found: Calibration) -> str:
    """That a file is replaced; of a calibration, by how many observations in place of how many."""
    try:
        old = read_calibration(path) if path.is_file() else None
    except OptionError:
        old = None
    if old is None:
        return "replaced"
    was, now = (
        f"{len(each.observations)} observations ({each.recorder.get('observations', 'unknown')})"
        for each in (old, found)
    )
    return f"{was} are replaced by {now}: replaced"


def sample_source(
    *,
    npz: Path | None,
    bag: Path | None,
    params: Path | None,
    made_up: int | None,
    seed: int,
    limit: int | None,
) -> tuple[Callable[[Processor], Iterable[Sample]], str]:
    """Where the observations come from, and that in words; OptionError unless it is one place."""
    given = [name for name, value in (("npz", npz), ("bag", bag), ("made-up", made_up)) if value]
    if len(given) != 1:
        raise OptionError(
            "observations",
            expected="one of --npz FILE, --bag BAG --params FILE, --made-up N",
            got=given or "none",
        )
    if npz is not None:
        return partial(_from_file, npz), f"npz: {npz.name}"
    if made_up is not None:
        return partial(_made_up, made_up, seed), f"made up: {made_up} with seed {seed}"
    if params is None or bag is None:
        raise OptionError(
            "option '--params'",
            expected="a parameter file of the node",
            got="none",
            remedy="add --params FILE: it says which topic of the bag is what",
        )
    if not bag_readers:
        raise OptionError(
            "option '--bag'",
            expected="the flashrt command of a ROS environment",
            got="the core alone",
            remedy="source your workspace and run flashrt, or use --npz",
        )
    return lambda _: bag_readers[0](bag, params, limit), f"bag: {bag.name}"


def _from_file(path: Path, processor: Processor) -> Iterator[Sample]:
    return read_observations(path, processor.views)


def _made_up(count: int, seed: int, processor: Processor) -> Iterator[Sample]:
    return made_up_observations(
        processor.views, processor.state_dim, count, seed, square=processor.square
    )


def render(found: Calibration, console: Console) -> None:
    """A table of what was found, the largest over the layers of a site."""
    count, origin = len(found.observations), found.recorder["observations"]
    console.print(f"[bold]{found.key['policy']}, {found.key['precision']}[/bold]")
    console.print(f"{count} observations ({origin}), scales from the {found.method}")
    table = Table("site", "largest", f"{found.percentile} %", box=SIMPLE_HEAD, header_style="dim")
    for name, each in found.sites.items():
        table.add_row(name, f"{max(each.amax):.4g}", f"{max(each.percentile):.4g}")
    console.print(table)
    console.print(f"digest {found.digest}")
