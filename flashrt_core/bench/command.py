"""``flashrt bench``: what it measures, in which order, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..devices.overlap import DEFAULT, FRONTS, Overlap
from ..errors import NumericsError, OptionError
from ..load import LoadOptions, check_loadable, plans_of, precision_of
from ..outputs import check_figure, check_output
from ..policies import find_policy
from ..policies.base import Policy
from .case import Case, check_views, default_cases
from .latency import PLAN, Bench, CaseResult, check_options, shaped
from .machine import gpu_only, require_idle_gpu
from .peer_lerobot import PATHS, check_paths, require_lerobot, run_peer, with_ratios
from .report import describe_run, draw, peer_lines, table, write_json

_WAYS = ("both", "each")  # of overlap: more than one


def _ways(overlap: str, policy: Policy) -> tuple[str, ...]:
    """The ways that a case is measured, the one that counts first."""
    if overlap == "both":
        return (DEFAULT, "off")
    if overlap == "each":
        stages, found = policy.measures.stages, dict[tuple[bool, ...], str]()
        for way in (DEFAULT, "on", "off", *stages, *FRONTS):
            at = Overlap.parse(way).at
            found.setdefault(tuple(at(stage, front) for stage in stages for front in FRONTS), way)
        return tuple(found.values())
    return (overlap,)


_MOST_SAMPLES = 1_000_000
_INSTEAD = "use flashrt qualify or flashrt demo, which run on the CPU: bench needs a GPU"


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        plan: what is measured, but for the sizes that a case has; of several precision plans,
            separated by commas, one behind the other.
        cases: shapes; empty means the policy's own.
        samples: decisions that are timed, each on an observation other than the last.
        overlap: "on", "off", or classes of boundaries as :meth:`Overlap.parse` reads them; "both"
            measures every case as plans run and without overlap, "each" everywhere and every class
            alone too. All ways of a case must give equal bits.
        overlap_cases: those of ``cases`` that are measured in the other ways too; empty means all.
        trace: add every kernel's time, and one layer's kernels, from torch's profiler.
        peer: "lerobot" runs LeRobot's code on the same GPU afterwards, for the ratio; "" does not.
        peer_cases: those of ``cases`` that the peer runs; empty means all. It takes some minutes.
        peer_paths: "eager", "compiled_graph", or both; empty means both.
        fidelity: JSON of ``flashrt qualify``: what it found of a plan that is measured here goes
            into that plan's case. None adds nothing.
        output: JSON file; None writes none.
        figure: file of a figure; None draws none.
    """

    plan: LoadOptions = PLAN
    cases: tuple[Case, ...] = ()
    samples: int = 200
    overlap: str = DEFAULT
    overlap_cases: tuple[Case, ...] = ()
    trace: bool = False
    peer: str = ""
    peer_cases: tuple[Case, ...] = ()
    peer_paths: tuple[str, ...] = ()
    fidelity: Path | None = None
    output: Path | None = None
    figure: Path | None = None


def run_bench(options: BenchOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and writes; the result as it goes into the JSON file.

    Raises:
        OptionError: an option that is unknown or out of range.
        WeightsError: no such checkpoint.
        DeviceError: no usable GPU, a busy one, or no peer.
        NumericsError: overlap changed a bit.
        OutputError: a file could not be written although that was tried before.
    """
    options = _checked(options)
    qualified = read_fidelity(options.fidelity) if options.fidelity else {}
    # Most prefix rows first: the other cases take their weights from it.
    cases = sorted(options.cases, key=lambda c: (-c.views, -c.prompt_tokens, c.horizon))
    with ExitStack() as opened:
        benches = [Bench(plan) for plan in plans_of(options.plan)]
        for bench in benches:
            opened.callback(bench.close)
        with gpu_only(_INSTEAD):
            require_idle_gpu()
            for bench in benches:
                _check_calibrations(bench.plan, cases)
            lines = _timed(benches, options, cases)
        known = [line for line in lines if line["fingerprint"] in qualified]
        for line in known:
            line["fidelity"] = qualified[line["fingerprint"]]
        result = describe_run(str(benches[-1].library), benches[-1].gpu, lines)
        console.print(table(result))  # before anything else can go wrong
        if options.peer:  # behind everything of ours, so that it disturbs none of our times
            _add_peers(options, result, console)
        if options.trace:  # and behind the peer's times, as a profiler slows what follows it
            _keep(options, result, [])
            _add_traces(benches, options, cases, lines)
    if options.output is not None:
        write_json(result, options.output)
    if options.figure is not None:
        draw(result, options.figure, find_policy(options.plan.policy).measures.title)
    if qualified and not known:  # not before the file is there: measuring took minutes
        raise _error(
            "fidelity",
            expected="a report on a plan that was measured",
            got=f"fingerprints {', '.join(name[:12] for name in qualified)}",
            remedy="give flashrt qualify the sizes of a case: --views, --prompt-buckets, --horizon",
        )
    return result


def read_fidelity(path: Path) -> dict[str, dict[str, Any]]:
    """Fingerprint -> fidelity, of a file of ``flashrt qualify --json``; OptionError otherwise."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        reports = read.get("plans", [read])
        return {str(each["fingerprint"]): dict(each["fidelity"]) for each in reports}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        got = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise _error(
            "fidelity", expected="JSON of flashrt qualify", got=f"{got} in {str(path)!r}"
        ) from error


def _checked(options: BenchOptions) -> BenchOptions:
    """The options with what they leave open filled in; what is wrong with them is said now.

    Neither a device nor a file of weights has been opened, and nothing measured.
    """
    for name, given, known, remedy in (
        ("device", options.plan.device, ("cuda",), _INSTEAD),
        ("peer", options.peer, ("", "lerobot"), None),
    ):
        if given not in known:
            expected = f"one of {list(known)}"
            raise _error(name, expected=expected, got=repr(given), remedy=remedy)
    if not 1 <= options.samples <= _MOST_SAMPLES:
        raise _error("samples", expected=f"1 to {_MOST_SAMPLES:,}", got=options.samples)
    policy = find_policy(options.plan.policy)
    _check_overlap(options)
    cases = tuple(
        dict.fromkeys(options.cases or default_cases(options.plan, policy.measures.cases))
    )
    check_views(cases, policy)
    for name in ("peer_cases", "overlap_cases"):
        if unknown := [case for case in getattr(options, name) if case not in cases]:
            got = ", ".join(map(str, unknown))
            raise _error(name, expected="some of the cases", got=got)
    _check_peer(options)
    for case in cases:
        # Preset, precision, checkpoint and sizes, as loading would refuse them.
        for plan in plans_of(options.plan):
            check_options(case, plan)
    changed: dict[str, Any] = {"cases": cases}
    if options.output is not None:
        changed["output"] = check_output("--output", options.output)
    if options.figure is not None:
        changed["figure"] = check_figure("--figure", options.figure)
        if changed["figure"] == changed.get("output"):
            raise _error("figure", expected="another file than --output", got=options.figure)
    return replace(options, **changed)


def _check_calibrations(plan: LoadOptions, cases: Sequence[Case]) -> None:
    """One that is missing is told of before minutes go into the plans and cases in front of it."""
    if precision_of(plan).calibrated:
        for case in cases:
            check_loadable(shaped(plan, case))


def _error(name: str, **details: Any) -> OptionError:
    return OptionError(f"option '{name.replace('_', '-')}' of bench", **details)


def _check_overlap(options: BenchOptions) -> None:
    stages = find_policy(options.plan.policy).measures.stages
    if options.overlap not in _WAYS:
        try:
            named = Overlap.parse(options.overlap).stages
            known = named <= set(stages) or options.overlap == DEFAULT
        except OptionError:
            known = False
        if not known:
            raise _error(
                "overlap",
                expected="on, off, both, each, or of "
                + f"{', '.join((*stages, *FRONTS))} joined by + and ,",
                got=repr(options.overlap),
            )
        if options.overlap_cases:
            raise _error(
                "overlap_cases",
                expected="--overlap both or each, which measure more ways than one",
                got=f"--overlap {options.overlap}",
            )


def _check_peer(options: BenchOptions) -> None:
    if not options.peer:
        for name in ("peer_paths", "peer_cases"):
            if getattr(options, name):
                raise _error(name, expected="--peer", got="none", remedy="add --peer lerobot")
        return
    check_paths(options.peer_paths or PATHS)
    if (preset := options.plan.preset) != "base":
        raise _error("preset", expected="'base', the peer's sizes", got=repr(preset))
    require_lerobot(options.plan.policy)  # said before minutes are spent


def _timed(
    benches: Sequence[Bench], options: BenchOptions, cases: Sequence[Case]
) -> list[dict[str, Any]]:
    """Lines of all plans, sorted by case. Weights stay on the device where nothing needs room."""
    lines: list[dict[str, Any]] = []
    for bench in benches:
        lines += _measure(bench, replace(options, plan=bench.plan), cases)
        if options.peer or bench is not benches[-1]:
            bench.close()
    # Stable: the plans of a case stay in their order.
    return sorted(lines, key=lambda line: (line["views"], line["prompt_tokens"], line["horizon"]))


def _measure(bench: Bench, options: BenchOptions, cases: Sequence[Case]) -> list[dict[str, Any]]:
    first, *others = _ways(options.overlap, find_policy(options.plan.policy))
    found = list(bench.run(cases, options.samples, overlap=first))
    lines = [result.to_json(str(options.plan.precision)) | {"overlap": first} for result in found]
    chosen = [
        (line, result)
        for line, result in zip(lines, found, strict=True)
        if not options.overlap_cases or result.case in options.overlap_cases
    ]
    for overlap in others:
        again = bench.run([result.case for _, result in chosen], options.samples, overlap=overlap)
        for (line, result), other in zip(chosen, again, strict=True):
            _check_bits(result, other, overlap)
            times = other.to_json(str(options.plan.precision))
            ways = line.setdefault("other_overlaps", {})
            ways[overlap] = {name: times[name] for name in ("replay_ms", "stage_ms")}
            line["overlap_equal_bits"] = True
    return lines


def _add_traces(
    benches: Sequence[Bench],
    options: BenchOptions,
    cases: Sequence[Case],
    lines: Sequence[dict[str, Any]],
) -> None:
    """Adds the kernels of each line, the last plan's first: its weights are on the device yet."""
    way = _ways(options.overlap, find_policy(options.plan.policy))[0]
    for bench in reversed(benches):
        own = {_case_of(line): line for line in lines if line["precision"] == bench.plan.precision}
        for case, found in zip(cases, bench.traces(cases, overlap=way), strict=True):
            own[case].update(found.to_json())
        bench.close()


def _add_peers(options: BenchOptions, result: dict[str, Any], console: Console) -> None:
    """Adds the peer's rows; the file holds each as soon as there is one, and which are to come.

    Minutes go by between two rows, and whatever ends the run then must leave a whole file.
    """
    paths = [path for path in PATHS if path in (options.peer_paths or PATHS)]
    chosen = {
        case: line
        for line in result["cases"]
        if (case := _case_of(line)) in (options.peer_cases or options.cases)
        and line["precision"] == plans_of(options.plan)[0].precision
    }
    missing = [{"case": str(case), "path": path} for case in chosen for path in paths]
    try:
        _keep(options, result, missing)
        for case, found in run_peer(list(chosen), options.samples, paths, options.plan.policy):
            rows = chosen[case].setdefault("peers", [])
            if "ms" in found:
                rows.append(with_ratios(found, chosen[case]))
                missing.remove({"case": str(case), "path": found["path"]})
            else:
                next(row for row in rows if row["path"] == found["path"]).update(found)
            _keep(options, result, missing)
    finally:
        for told in peer_lines(result):
            console.print(told)
        for each in missing:
            console.print(f"{each['case']}: {options.peer} {each['path']}: not measured")


def _keep(options: BenchOptions, result: dict[str, Any], missing: list[dict[str, str]]) -> None:
    result.pop("peers_missing", None)
    if missing:
        result["peers_missing"] = list(missing)
    if options.output is not None:
        write_json(result, options.output)


def _case_of(line: dict[str, Any]) -> Case:
    return Case(line["views"], line["prompt_tokens"], line["horizon"], line["steps"])


def _check_bits(first: CaseResult, second: CaseResult, overlap: str) -> None:
    if not np.array_equal(first.actions, second.actions):
        raise NumericsError(
            f"actions of case {first.case} with overlap {DEFAULT!r} and {overlap!r}",
            expected="equal bits",
            got=f"a difference of {np.abs(first.actions - second.actions).max():.3g}",
            remedy="a kernel touches what another one writes before it waits",
        )
