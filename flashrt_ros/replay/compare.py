"""``flashrt compare``: what differs between two runs, in a table, a figure and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from flashrt_core.errors import OptionError
from flashrt_core.files import local_path

from .figure import COMPARED, FAINT, INK, STYLE
from .output import results_folder, writing
from .progress import Reporter
from .records import PARTS
from .report import FASTEST

if TYPE_CHECKING:
    from flashrt_core.plotting import Axes

_RESULTS = ("compare.json", "compare.png")
_SHOWN = ("p50", "p99")
# What must be the same for the numbers of two runs to be about the same thing.
_ALIKE = ("policy", "fingerprint", "mode", "rate", "seed", "recorded_seconds", "chunk_shape")
_COUNTS = ("decisions", "deadline_missed", "dropped", "refused")


@dataclass(frozen=True)
class Difference:
    """One number of both runs; ``change`` is second / first - 1, None where that is no number."""

    name: str
    unit: str
    first: float | None
    second: float | None

    @property
    def change(self) -> float | None:
        """Relative to the first."""
        if self.first is None or self.second is None or self.first == 0.0:
            return None
        return self.second / self.first - 1.0


def run_compare(first: Path, second: Path, out: Path, reporter: Reporter) -> None:
    """Compare two reports and write ``compare.json`` and ``compare.png`` into ``out``.

    Raises:
        OptionError: a file is no report, or the folder cannot be used.
    """
    reports = read_report(first), read_report(second)
    with results_folder(out, _RESULTS) as folder:
        found = differences(*reports)
        path = folder / "compare.json"
        document = {
            "first": str(first),
            "second": str(second),
            "unlike": unlike(*reports),
            "chunks_identical": same_chunks(*reports),
            "differences": [asdict(each) | {"change": each.change} for each in found],
        }
        with writing("comparison", path):
            path.write_text(json.dumps(document, indent=2) + "\n")
        with writing("figure", path.with_suffix(".png")):
            draw(path.with_suffix(".png"), reports, (_label(first), _label(second)))
    reporter.console.print(render(*reports))
    reporter.say(f"wrote {path} and .png")


def read_report(path: Path) -> dict[str, Any]:
    """A report that ``flashrt replay`` or ``flashrt demo`` wrote.

    Raises:
        OptionError: it cannot be read, is no JSON, or lacks what a report has.
    """
    path = local_path("report", path, OptionError)
    try:
        report = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "text that is not UTF-8"
        raise OptionError(f"report '{path}'", expected="a readable file", got=reason) from None
    except ValueError as error:
        raise OptionError(f"report '{path}'", expected="JSON", got=error) from None
    if not isinstance(report, dict) or not _is_report(report):
        raise OptionError(
            f"report '{path}'",
            expected="what 'flashrt replay' or 'flashrt demo' of this version wrote",
            got="another document",
            remedy="run it again",
        )
    return report


def _is_report(report: Mapping[str, Any]) -> bool:
    latency, ages = report.get("latency_ms"), report.get("observation_age_ms")
    tables = [*(latency.values() if isinstance(latency, dict) else [None]), ages]
    tables += [report.get("newest_input_age_ms"), report.get("decision_interval_ms")]
    jumps = report.get("chunk_jump")
    tables += jumps.values() if isinstance(jumps, dict) else [None]
    return (
        all(_is_statistics(table) for table in tables)
        and isinstance(latency, dict)
        and latency.keys() == {*PARTS, "total"}
        and all(type(report.get(name)) is int for name in _COUNTS)
        and all(name in report for name in (*_ALIKE, "player"))
    )


def _is_statistics(table: object) -> bool:
    """Empty, for a run without decisions, or with every number of a report's statistics."""
    if not isinstance(table, dict):
        return False
    numbers = all(type(v) in (int, float) and math.isfinite(v) for v in table.values())
    return numbers and (not table or table.keys() >= {"p50", "p95", "p99", "mean", "max"})


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Every number that both kinds of report hold, in the order of a report."""
    return list(_differences(first, second))


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    def of(name: str, unit: str, *path: str) -> Iterator[Difference]:
        tables = [_at(report, path) for report in (first, second)]
        for key in _SHOWN:
            yield Difference(f"{name} {key}", unit, *(table.get(key) for table in tables))

    for part in (*PARTS, "total"):
        yield from of(part, "ms", "latency_ms", part)
    yield from of("oldest input's age", "ms", "observation_age_ms")
    yield from of("newest input's age", "ms", "newest_input_age_ms")
    yield from of("time between chunks", "ms", "decision_interval_ms")
    for name in _COUNTS:
        yield Difference(name.replace("_", " "), "", first[name], second[name])
    for action in dict.fromkeys([*first["chunk_jump"], *second["chunk_jump"]]):
        yield from of(f"jump of {action}", "", "chunk_jump", action)


def _at(report: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    found: Any = report
    for key in path:
        found = found.get(key, {})
    table: Mapping[str, Any] = found
    return table


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Names of what should be the same in both runs and is not."""
    return [name for name in _ALIKE if first[name] != second[name]]


def same_chunks(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool | None:
    """Whether two step-mode runs made the same chunks to the bit; None for other runs."""
    digests = [report.get("chunks_sha256") for report in (first, second)]
    return digests[0] == digests[1] if all(digests) else None


def render(first: Mapping[str, Any], second: Mapping[str, Any]) -> RenderableType:
    """The comparison for a terminal."""
    table = Table(title="two runs", title_justify="left", header_style="bold")
    table.add_column("")
    for column in ("first", "second", "difference", "change"):
        table.add_column(column, justify="right")
    for each in differences(first, second):
        gap = _gap(each)
        change = "-" if each.change is None else f"{100 * each.change:+.1f} %"
        name = f"{each.name}, {each.unit}" if each.unit else each.name
        table.add_row(name, _number(each.first), _number(each.second), gap, change)
    facts = Table.grid(padding=(0, 2))
    same = same_chunks(first, second)
    if same is not None:
        facts.add_row("chunks", "the same to the bit" if same else "not the same")
    for name in unlike(first, second):
        facts.add_row(f"other {name.replace('_', ' ')}", f"{first[name]}  |  {second[name]}")
    return Group(table, facts)


def _gap(each: Difference) -> str:
    if each.first is None or each.second is None:
        return "-"
    return f"{each.second - each.first:+.4g}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def draw(
    path: Path, reports: tuple[Mapping[str, Any], Mapping[str, Any]], labels: tuple[str, str]
) -> None:
    """Write ``path`` (PNG, 1400 x 900): latencies, ages and intervals, jumps, side by side."""
    from flashrt_core.plotting import pyplot as plt  # not for those who draw nothing

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            2, 2, figsize=(14, 9), dpi=100, facecolor="white", width_ratios=(1.6, 1)
        )
        figure.subplots_adjust(0.055, 0.085, 0.975, 0.86, 0.2, 0.32)
        latency = [report["latency_ms"] for report in reports]
        _pairs(panels[0, 0], "latency of a decision, by part, p50 | p99", "ms", latency, labels)
        ages = [
            {
                "oldest input": report["observation_age_ms"],
                "newest input": report["newest_input_age_ms"],
            }
            for report in reports
        ]
        _pairs(panels[0, 1], "age of the inputs, p50 | p99", "ms", ages, labels)
        jumps = [report["chunk_jump"] for report in reports]
        _pairs(panels[1, 0], "jump from chunk to chunk, p50 | p99", "units", jumps, labels)
        _counts(panels[1, 1], reports)
        figure.text(0.055, 0.945, " and ".join(labels), fontsize=16, fontweight="bold")
        figure.text(0.055, 0.91, _alike(*reports), fontsize=10.5, color=FAINT)
        panels[0, 0].legend(loc="upper left", fontsize=10)
        figure.savefig(path)
        plt.close(figure)


def _pairs(
    axes: Axes, title: str, unit: str, tables: Sequence[Mapping[str, Any]], labels: tuple[str, str]
) -> None:
    """Groups of two bars, p50, with p99 above."""
    axes.set_title(title)
    names = list(dict.fromkeys([*tables[0], *tables[1]]))
    place = np.arange(len(names))
    top = 0.0
    for index, table in enumerate(tables):
        at = place + (index - 0.5) * 0.36
        middle, slow = (
            np.array([table.get(name, {}).get(key, 0.0) for name in names]) for key in _SHOWN
        )
        axes.bar(at, middle, width=0.34, color=COMPARED[index], label=labels[index])
        axes.vlines(at, middle, slow, color=INK, linewidth=1.1)
        axes.plot(at, slow, "_", color=INK, ms=9)
        top = max(top, float(slow.max(initial=0.0)))
    axes.set_xticks(place, names, rotation=0 if len(names) <= 6 else 30)
    axes.tick_params(axis="x", length=0, colors=INK)
    axes.set_ylim(0, max(top * 1.25, 1e-9))
    axes.set_ylabel(unit)
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _counts(axes: Axes, reports: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
    axes.set_title("counts")
    place = np.arange(len(_COUNTS))[::-1]
    for index, report in enumerate(reports):
        values = [report[name] for name in _COUNTS]
        at = place + (0.5 - index) * 0.36
        axes.barh(at, values, height=0.34, color=COMPARED[index])
        for y, value in zip(at, values, strict=True):
            axes.text(value, y, f" {value}", va="center", fontsize=10)
    most = max(max(report[name] for name in _COUNTS) for report in reports)
    axes.set_xlim(0, max(most, 1) * 1.15)
    axes.set_yticks(place, [name.replace("deadline_", "") for name in _COUNTS])
    axes.tick_params(axis="y", length=0, colors=INK)


def _alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    names = unlike(first, second)
    said = "other " + ", ".join(n.replace("_", " ") for n in names) if names else "same plan, pace"
    same = same_chunks(first, second)
    if same is not None:
        said += "  |  chunks are " + ("the same to the bit" if same else "not the same")
    return f"{said}  |  {_pace(first)}, {_pace(second)}"


def _pace(report: Mapping[str, Any]) -> str:
    if report["rate"] == FASTEST:
        return "as fast as the node follows"
    return "step by step" if report["mode"] == "step" else f"{report['rate']:g} x the timing"


def _label(path: Path) -> str:
    """The folder tells runs apart whose files have the name of the command."""
    return f"{path.resolve().parent.name}/{path.name}"
