"""``flashrt bench``: what it measures, in which order, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..errors import NumericsError, OptionError
from .latency import CASES, Bench, Case, CaseResult
from .report import describe_run, draw, table, write_json


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        policy, preset, checkpoint, precision, device: as in LoadOptions.
        cases: shapes; empty means all of 1, 2, 3 views x 48, 200 tokens x horizon 10, 50.
        samples: decisions that are timed, each on an observation other than the last.
        overlap: "on", "off", or "both": each case both ways, with a check for equal bits.
        trace: add every kernel's time, from torch's profiler.
        output: JSON file; None writes none.
        figure: PNG file; None draws none.
    """

    policy: str = "pi05"
    preset: str = "base"
    checkpoint: str = "random:0"
    precision: str = "bf16"
    device: str = "cuda"
    cases: tuple[Case, ...] = ()
    samples: int = 200
    overlap: str = "on"
    trace: bool = False
    output: Path | None = None
    figure: Path | None = None


def run_bench(options: BenchOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and writes; the result as it goes into the JSON file.

    Raises:
        OptionError: an option that is unknown or out of range.
        DeviceError: no usable GPU.
        NumericsError: overlap changed a bit.
    """
    _check(options)
    # Most prefix rows first: the other cases take their weights from it.
    cases = sorted(options.cases or CASES, key=lambda c: (-c.views, -c.prompt_tokens, c.horizon))
    bench = Bench(preset=options.preset, checkpoint=options.checkpoint, precision=options.precision)
    try:
        lines = _measure(bench, options, cases)
        library = str(bench.library)
    finally:
        bench.close()
    lines.sort(key=lambda line: (line["views"], line["prompt_tokens"], line["horizon"]))
    result = describe_run(library, lines)
    console.print(table(result))
    if options.output is not None:
        write_json(result, options.output)
    if options.figure is not None:
        draw(result, options.figure)
    return result


def _check(options: BenchOptions) -> None:
    for name, known in (
        ("policy", ("pi05",)),
        ("device", ("cuda",)),
        ("overlap", ("on", "off", "both")),
    ):
        if getattr(options, name) not in known:
            raise OptionError(
                f"option {name!r} of bench",
                expected=f"one of {list(known)}",
                got=repr(getattr(options, name)),
            )
    if options.samples < 1:
        raise OptionError("option 'samples' of bench", expected=">= 1", got=options.samples)


def _measure(bench: Bench, options: BenchOptions, cases: Sequence[Case]) -> list[dict[str, Any]]:
    overlap = options.overlap != "off"
    found = list(bench.run(cases, options.samples, overlap=overlap, traced=options.trace))
    lines = [result.to_json(options.precision) for result in found]
    if options.overlap == "both":
        plain = bench.run(cases, options.samples, overlap=False)
        for line, result, without in zip(lines, found, plain, strict=True):
            _check_bits(result, without)
            other = without.to_json(options.precision)
            line["overlap_off"] = {name: other[name] for name in ("replay_ms", "stage_ms")}
            line["overlap_equal_bits"] = True
    return lines


def _check_bits(first: CaseResult, second: CaseResult) -> None:
    if not np.array_equal(first.actions, second.actions):
        raise NumericsError(
            f"actions of case {first.case} with and without overlap",
            expected="equal bits",
            got=f"a difference of {np.abs(first.actions - second.actions).max():.3g}",
            remedy="a kernel touches what another one writes before it waits",
        )
