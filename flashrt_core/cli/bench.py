"""``flashrt bench``: how fast a policy decides on this machine's GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..devices.overlap import DEFAULT
from ..terminal import terminal_or_file


def bench_command(
    policy: Annotated[str, typer.Argument(help="Policy, by registry name.")] = "pi05",
    preset: Annotated[str, typer.Option(help="Sizes: base or tiny.")] = "base",
    checkpoint: Annotated[
        str, typer.Option(help="random:<seed>, outliers:<seed> or a path.")
    ] = "random:0",
    device: Annotated[str, typer.Option(help="cuda.")] = "cuda",
    precision: Annotated[str, typer.Option(help="Precision plan.")] = "bf16",
    cases: Annotated[
        str, typer.Option(help="views x tokens x horizon, separated by commas: 2x48x10,3x200x50.")
    ] = "",
    samples: Annotated[int, typer.Option(help="Timed decisions a case.")] = 200,
    overlap: Annotated[
        str,
        typer.Option(
            help="Where kernels overlap: on, off, or classes of boundaries joined by +: context, "
            "action, kernel, product. both: as plans run, then off. each: on and every class alone "
            "too. both and each check that all ways give equal bits."
        ),
    ] = DEFAULT,
    overlap_cases: Annotated[
        str,
        typer.Option(
            help="Of both or each: cases that are measured in the other ways; empty: all."
        ),
    ] = "",
    trace: Annotated[bool, typer.Option(help="Add each kernel's time.")] = False,
    peer: Annotated[str, typer.Option(help="lerobot: run its code too, for the ratio.")] = "",
    peer_cases: Annotated[str, typer.Option(help="Those that the peer runs; empty: all.")] = "",
    peer_paths: Annotated[
        str,
        typer.Option(help="eager, compiled_graph (minutes of compiling a case); empty: both."),
    ] = "",
    output: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
    figure: Annotated[Path | None, typer.Option(help="File: .png, .pdf, .svg, ...")] = None,
) -> None:
    """Measure whole decisions: graph replay, call from images to actions, kernels, roofline."""
    # Only here: no other command needs what measuring needs.
    from ..bench.case import parse_cases
    from ..bench.command import BenchOptions, run_bench

    options = BenchOptions(
        policy=policy,
        preset=preset,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        cases=parse_cases(cases),
        samples=samples,
        overlap=overlap,
        overlap_cases=parse_cases(overlap_cases),
        trace=trace,
        peer=peer,
        peer_cases=parse_cases(peer_cases),
        peer_paths=tuple(map(str.strip, peer_paths.split(","))) if peer_paths.strip() else (),
        output=output,
        figure=figure,
    )
    run_bench(options, terminal_or_file())
