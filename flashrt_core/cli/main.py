"""Commands that need no ROS: ``python -m flashrt_core``, and the core part of ``flashrt``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..contract import Contract
from ..load import Description, LoadOptions, describe
from ..specs import BufferSpec, Role
from ..terminal import USER_ERROR, run_command, terminal_or_file
from .bench import bench_app
from .calibrate import calibrate_command
from .eval import eval_command
from .group import OneLineGroup
from .options import AsJson, refuse_idle_calibration, takes_plan
from .qualify import qualify_command

NOT_LOADABLE = 1  # exit status of inspect

_DIGEST = re.compile("[0-9a-f]{64}")

__all__ = ["USER_ERROR", "app", "as_dict", "render", "run"]

app = typer.Typer(
    name="flashrt",
    cls=OneLineGroup,
    help="Robot policies on the robot's own hardware, at batch one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


app.command("qualify")(qualify_command)
app.add_typer(bench_app, name="bench")
app.command("calibrate")(calibrate_command)
app.command("eval")(eval_command)


@app.command()
@takes_plan(without=("threads",))
def inspect(options: LoadOptions, as_json: AsJson = False) -> None:
    """Show the execution contract of a policy: what goes in, what runs, what a capsule holds.

    Exit status 1 where something is missing without which the plan would not load.
    """
    refuse_idle_calibration(options, [options])
    description = describe(options)
    if as_json:
        print(json.dumps(as_dict(description), indent=2))
    else:
        title = f"{options.policy}, preset {options.preset}, {options.precision}, {options.device}"
        terminal_or_file().print(render(description, title))
    if description.missing is not None:
        raise typer.Exit(NOT_LOADABLE)


def as_dict(description: Description) -> dict[str, Any]:
    """The description as plain values; sizes in elements, offsets and bytes in bytes."""
    contract, deployment = description.contract, description.deployment
    identity = description.fingerprint
    return {
        "policy": contract.policy,
        "checkpoint": {
            "origin": deployment.origin,
            "cameras": list(deployment.cameras),
            "state_dim": deployment.state_dim,
            "action_dim": deployment.action_dim,
        },
        "transforms": dict(description.transforms),
        "calibration": description.calibration,
        "missing": None if description.missing is None else str(description.missing),
        "config": asdict(description.config),
        "shapes": [_fields(key, "views prompt_tokens horizon steps") for key in contract.shapes],
        "inputs": [
            _fields(spec, "name buffer shape dtype update rate transform unit doc")
            for spec in contract.inputs
        ],
        "outputs": [_fields(spec, "name buffer shape dtype unit doc") for spec in contract.outputs],
        "stages": [
            _fields(spec, "name rate transform reads writes requires doc")
            for spec in contract.stages
        ],
        "buffers": [
            _fields(spec, "name role shape dtype doc") | {"bytes": spec.nbytes}
            for spec in contract.buffers
        ],
        "bytes": {
            role.value: _total([b for b in contract.buffers if b.role is role]) for role in Role
        }
        | {"total": _total(contract.buffers)},
        "regions": [
            {
                "shape": _fields(key, "views prompt_tokens horizon steps"),
                "bytes": sum(region.nbytes for region in regions),
                "regions": [
                    _fields(r, "name buffer offset row_bytes rows pitch doc") | {"bytes": r.nbytes}
                    for r in regions
                ],
            }
            for key, regions in contract.regions.items()
        ],
        "fingerprint": identity and {"digest": identity.digest, "parts": dict(identity.parts)},
    }


def _fields(spec: Any, names: str) -> dict[str, Any]:
    found = {name: getattr(spec, name) for name in names.split()}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.items()
    }


def render(description: Description, title: str) -> RenderableType:
    """The description for a terminal."""
    contract = description.contract
    parts: list[RenderableType] = [Text(title, style="bold"), _origin(description)]
    parts += [_windows(contract), _stages(contract), _buffers(contract), _regions(contract)]
    if description.fingerprint is not None:
        digest = description.fingerprint.digest
        parts.append(_texts(f"fingerprint {digest[:16]}", description.fingerprint.parts))
    return Group(*parts)


def _texts(title: str, values: Mapping[str, str]) -> Table:
    table = _table(title, "part", "value")
    for name, value in values.items():
        table.add_row(name, f"{value[:16]} ..." if _DIGEST.fullmatch(value) else value)
    return table


def _origin(description: Description) -> Text:
    """Where the weights come from, and the roundings and conventions that follow."""
    lines = [f"weights of origin {description.deployment.origin}"]
    if description.deployment.cameras:
        lines.append("its cameras, in slot order: " + ", ".join(description.deployment.cameras))
    lines += [f"{name}: {value}" for name, value in description.transforms.items()]
    if description.calibration != "none":
        lines.append(f"calibration: {description.calibration}")
    if description.missing is not None:
        lines.append(f"not loadable like this: {description.missing}")
    numerics = getattr(description.config, "numerics", None)
    if numerics is not None:
        values = asdict(numerics).items()
        lines.append("numerics: " + ", ".join(f"{name} {value}" for name, value in values))
    return Text("\n".join(lines))


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD
    )
    for column in columns:
        whole = column in ("name", "bytes", "shape", "dtype", "rate", "buffer")
        table.add_column(column, justify="right" if column == "bytes" else "left", no_wrap=whole)
    return table


def _windows(contract: Contract) -> Table:
    table = _table("inputs and outputs", "name", "shape", "dtype", "update", "rate", "unit")
    for spec in contract.inputs:
        update = f"{spec.update} by {spec.transform}" if spec.transform else str(spec.update)
        table.add_row(spec.name, _shape(spec.shape), spec.dtype, update, spec.rate, spec.unit)
    table.add_section()
    for output in contract.outputs:
        table.add_row(output.name, _shape(output.shape), output.dtype, "read", "", output.unit)
    return table


def _stages(contract: Contract) -> Table:
    table = _table("stages, in decision order", "name", "rate", "reads", "writes", "requires")
    for spec in contract.stages:
        name = f"{spec.name} (transform)" if spec.transform else spec.name
        reads, writes = (_without_scratch(contract, b) for b in (spec.reads, spec.writes))
        table.add_row(name, spec.rate, reads, writes, ", ".join(spec.requires))
        table.add_section()
    return table


def _without_scratch(contract: Contract, names: Sequence[str]) -> str:
    kept = [name for name in names if contract.buffer(name).role is not Role.SCRATCH]
    scratch = len(names) - len(kept)
    return "\n".join(kept) + (f"\nand {scratch} scratch" if scratch else "")


def _buffers(contract: Contract) -> Table:
    table = _table("buffers", "role", "name", "shape", "dtype", "bytes")
    for role in Role:
        rows = [spec for spec in contract.buffers if spec.role is role]
        for spec in rows:
            table.add_row(role, spec.name, _shape(spec.shape), spec.dtype, _bytes(spec.nbytes))
        if rows:
            table.add_row(role, f"{len(rows)} together", "", "", _bytes(_total(rows)), style="bold")
            table.add_section()
    return table


def _regions(contract: Contract) -> Table:
    table = _table("regions, what a capsule holds", "name", "buffer", "rows x bytes", "bytes")
    for key, regions in contract.regions.items():
        for region in regions:
            extent = f"{region.rows} x {region.row_bytes}"
            extent += f", {region.pitch} apart" if region.rows > 1 else ""
            table.add_row(region.name, region.buffer, extent, _bytes(region.nbytes))
        total = _bytes(sum(region.nbytes for region in regions))
        table.add_row(f"for {key}", "", "", total, style="bold")
        table.add_section()
    return table


def _total(buffers: Iterable[BufferSpec]) -> int:
    return sum(spec.nbytes for spec in buffers)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _bytes(count: int) -> str:
    return f"{count:,}"


def run(application: Callable[[], Any] = app) -> int:
    """Run the command line; its exit status, as :func:`~flashrt_core.terminal.run_command`."""
    return run_command(application)
