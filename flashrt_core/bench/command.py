"""``flashrt bench``: what it measures, in which order, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..devices.overlap import FRONTS, Overlap
from ..errors import NumericsError, OptionError
from .case import CASES, Case
from .latency import Bench, CaseResult
from .peer_lerobot import PATHS, check_paths, require_lerobot, run_peer, with_ratios
from .report import describe_run, draw, peer_lines, table, write_json

_STAGES = ("context", "action")  # of a decision
#: The ways that a case is measured, the one that counts first.
_OVERLAPS = {"both": ("on", "off"), "each": ("on", "off", *_STAGES, *FRONTS)}


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        policy, preset, checkpoint, precision, device: as in LoadOptions.
        cases: shapes; empty means all of 1, 2, 3 views x 48, 200 tokens x horizon 10, 50.
        samples: decisions that are timed, each on an observation other than the last.
        overlap: "on", "off", or classes of boundaries as :meth:`Overlap.parse` reads them; "both"
            measures every case on and off, "each" every class alone too. All ways of a case must
            give equal bits.
        overlap_cases: those of ``cases`` that are measured in the other ways too; empty means all.
        trace: add every kernel's time, and one layer's kernels, from torch's profiler.
        peer: "lerobot" runs LeRobot's code on the same GPU afterwards, for the ratio; "" does not.
        peer_cases: those of ``cases`` that the peer runs; empty means all. It takes some minutes.
        peer_paths: "eager", "compiled_graph", or both.
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
    overlap_cases: tuple[Case, ...] = ()
    trace: bool = False
    peer: str = ""
    peer_cases: tuple[Case, ...] = ()
    peer_paths: tuple[str, ...] = PATHS
    output: Path | None = None
    figure: Path | None = None


def run_bench(options: BenchOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and writes; the result as it goes into the JSON file.

    Raises:
        OptionError: an option that is unknown or out of range.
        DeviceError: no usable GPU, or no peer.
        NumericsError: overlap changed a bit.
    """
    _check(options)
    # Most prefix rows first: the other cases take their weights from it.
    cases = sorted(options.cases or CASES, key=lambda c: (-c.views, -c.prompt_tokens, c.horizon))
    for name in ("peer_cases", "overlap_cases"):
        if unknown := set(getattr(options, name)) - set(cases):
            option = f"option '{name.replace('_', '-')}' of bench"
            raise OptionError(
                option, expected="some of the cases", got=", ".join(map(str, unknown))
            )
    bench = Bench(preset=options.preset, checkpoint=options.checkpoint, precision=options.precision)
    try:
        lines = _measure(bench, options, cases)
    finally:
        bench.close()
    lines.sort(key=lambda line: (line["views"], line["prompt_tokens"], line["horizon"]))
    result = describe_run(str(bench.library), bench.gpu, lines)
    if options.output is not None:
        write_json(result, options.output)
    if options.peer:  # behind everything of ours, so that it disturbs none of our times
        for _ in _add_peers(options, lines):
            if options.output is not None:  # minutes go by until the next one has been measured
                write_json(result, options.output)
    console.print(table(result))
    for told in peer_lines(result):
        console.print(told)
    if options.figure is not None:
        draw(result, options.figure)
    return result


def _check(options: BenchOptions) -> None:
    for name, known in (
        ("policy", ("pi05",)),
        ("device", ("cuda",)),
        ("peer", ("", "lerobot")),
    ):
        if getattr(options, name) not in known:
            raise OptionError(
                f"option {name!r} of bench",
                expected=f"one of {list(known)}",
                got=repr(getattr(options, name)),
            )
    if options.overlap not in _OVERLAPS:
        stages = Overlap.parse(options.overlap).stages or frozenset()
        if unknown := stages - set(_STAGES):
            raise OptionError("overlap", expected=f"of {[*_STAGES, *FRONTS]}", got=sorted(unknown))
    if options.samples < 1:
        raise OptionError("option 'samples' of bench", expected=">= 1", got=options.samples)
    if options.peer:
        check_paths(options.peer_paths)
        if options.preset != "base":
            raise OptionError("option 'preset' of bench", expected="'base', the peer's sizes")
        require_lerobot()  # said before minutes are spent


def _measure(bench: Bench, options: BenchOptions, cases: Sequence[Case]) -> list[dict[str, Any]]:
    first, *others = _OVERLAPS.get(options.overlap, (options.overlap,))
    found = list(bench.run(cases, options.samples, overlap=first, traced=options.trace))
    lines = [result.to_json(options.precision) | {"overlap": first} for result in found]
    chosen = [
        (line, result)
        for line, result in zip(lines, found, strict=True)
        if not options.overlap_cases or result.case in options.overlap_cases
    ]
    for overlap in others:
        again = bench.run([result.case for _, result in chosen], options.samples, overlap=overlap)
        for (line, result), other in zip(chosen, again, strict=True):
            _check_bits(result, other, overlap)
            times = other.to_json(options.precision)
            ways = line.setdefault("other_overlaps", {})
            ways[overlap] = {name: times[name] for name in ("replay_ms", "stage_ms")}
            line["overlap_equal_bits"] = True
    return lines


def _add_peers(options: BenchOptions, lines: Sequence[dict[str, Any]]) -> Iterator[None]:
    for line in lines:
        case = Case(line["views"], line["prompt_tokens"], line["horizon"], line["steps"])
        if not options.peer_cases or case in options.peer_cases:
            rows = line["peers"] = []
            for row in run_peer(case, options.samples, options.peer_paths):
                rows.append(with_ratios(row, line))
                yield


def _check_bits(first: CaseResult, second: CaseResult, overlap: str) -> None:
    if not np.array_equal(first.actions, second.actions):
        raise NumericsError(
            f"actions of case {first.case} with overlap on and {overlap!r}",
            expected="equal bits",
            got=f"a difference of {np.abs(first.actions - second.actions).max():.3g}",
            remedy="a kernel touches what another one writes before it waits",
        )
