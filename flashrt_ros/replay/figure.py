"""The figure of a run: latency over time by part, its distribution, ages, and the parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .decisions import write_decisions
from .output import writing
from .records import PARTS, RunRecord, TimingRecord
from .report import intervals_ms, unique

if TYPE_CHECKING:
    from flashrt_core.plotting import Axes

# Okabe-Ito: told apart with any colour vision, and in print.
COMPARED = ("#56B4E9", "#E69F00")
_COLOURS = {"ingest": "#56B4E9", "context": "#0072B2", "action": "#E69F00", "publish": "#009E73"}
# What a run leaves, behind the name of its command.
RESULTS = (".json", ".csv", ".png", "_node.log")
INK, FAINT, _AGE, _ALARM, _JUMP = "#22303C", "#7A8793", "#CC79A7", "#D55E00", "#0072B2"
STYLE: Any = {
    "font.size": 11,
    "axes.edgecolor": "#C4CCD4",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "grid.color": "#E6EAEE",
    "legend.frameon": False,
}


def write_results(stem: Path, report: Mapping[str, Any], run: RunRecord, subtitle: str) -> None:
    """Write ``<stem>.json``, ``.csv`` and, where there were decisions, ``.png``; or OutputError."""
    with writing("report", stem.with_suffix(".json")):
        stem.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
    with writing("table", stem.with_suffix(".csv")):
        write_decisions(stem.with_suffix(".csv"), run)
    if run.timings:
        with writing("figure", stem.with_suffix(".png")):
            draw(stem.with_suffix(".png"), report, run, subtitle)


def draw(path: Path, report: Mapping[str, Any], run: RunRecord, subtitle: str) -> None:
    """Write ``path`` (PNG, 1400 x 950).

    Args:
        path: file to write.
        report: what :func:`~flashrt_ros.replay.report.summarise` returned.
        run: its records; at least one of a timing.
        subtitle: what ran where.
    """
    records = unique(run.timings)
    from flashrt_core.plotting import pyplot as plt  # not for those who draw nothing

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(14, 9.5), dpi=100, facecolor="white")
        grid = figure.add_gridspec(
            3, 2, width_ratios=(2.5, 1), height_ratios=(2.1, 1, 1.1), hspace=0.42, wspace=0.13,
            left=0.055, right=0.975, top=0.885, bottom=0.065,
        )  # fmt: skip
        over_time = figure.add_subplot(grid[0, 0])
        spread = figure.add_subplot(grid[0, 1])
        age = figure.add_subplot(grid[1, 0], sharex=over_time)
        parts = figure.add_subplot(grid[1, 1])
        seconds = np.array([r.received_ns - records[0].received_ns for r in records]) / 1e9
        _draw_over_time(over_time, seconds, records)
        _draw_spread(spread, records, report)
        _draw_age(age, seconds, records)
        _draw_parts(parts, report)
        _draw_jumps(figure.add_subplot(grid[2, 0]), report)
        _draw_intervals(figure.add_subplot(grid[2, 1]), run, report)
        figure.text(0.055, 0.96, _title(report), fontsize=16, fontweight="bold")
        figure.text(0.055, 0.93, subtitle, fontsize=10.5, color=FAINT)
        figure.savefig(path)
        plt.close(figure)


def _title(report: Mapping[str, Any]) -> str:
    total = report["latency_ms"]["total"]
    shape = " x ".join(map(str, report["chunk_shape"]))
    return (
        f"{report['policy']}: {report['decisions']} decisions of {shape} actions, "
        f"{total['p50']:.1f} ms each (p99 {total['p99']:.1f} ms)"
    )


def _draw_over_time(axes: Axes, seconds: np.ndarray, records: Sequence[TimingRecord]) -> None:
    layers = [np.array([r.parts_ms[part] for r in records]) for part in PARTS]
    total = np.array([r.total_ms for r in records])
    axes.stackplot(
        seconds, *layers, labels=PARTS, colors=[_COLOURS[p] for p in PARTS], alpha=0.9, linewidth=0
    )
    axes.plot(seconds, total, color=INK, linewidth=1.1, label="total")
    top = _frame_top(total)
    for moment, value in zip(seconds[total > top], total[total > top], strict=True):
        axes.plot(moment, top * 0.985, "^", color=_ALARM, ms=6, clip_on=False)
        axes.annotate(
            f"{value:.0f} ms", (moment, top * 0.985), (7, -4), textcoords="offset points",
            fontsize=9.5, color=_ALARM,
        )  # fmt: skip
    axes.set_ylim(0, top)
    axes.set_xlim(0, max(float(seconds[-1]), 1e-3))
    axes.set_ylabel("ms")
    axes.set_title("latency of each decision, by part")
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(labelbottom=False)
    axes.legend(loc="upper left", ncols=5, fontsize=10, handlelength=1.1, columnspacing=1.2)


def _draw_spread(axes: Axes, records: Sequence[TimingRecord], report: Mapping[str, Any]) -> None:
    total = np.array([r.total_ms for r in records])
    top = _frame_top(total)
    inside = total[total <= top]
    bins = np.linspace(float(inside.min()), float(inside.max()) + 1e-6, 33).tolist()
    counts, _, _ = axes.hist(inside, bins=bins, color="#9DB2C6", edgecolor="white", linewidth=0.6)
    stats = report["latency_ms"]["total"]
    highest = float(np.max(counts)) * 1.04
    for key, style in (("p50", "-"), ("p95", "--"), ("p99", ":")):
        shown = min(stats[key], top)
        text = f"{key}  {stats[key]:.2f} ms"
        axes.vlines(shown, 0, highest, color=INK, lw=1.3, ls=style, label=text)
    left = len(total) - len(inside)
    axes.set_title("distribution of the total")
    axes.set_xlabel("ms" + (f"  ({left} slower, up to {stats['max']:.0f} ms)" if left else ""))
    axes.set_ylabel("decisions")
    axes.set_ylim(0, highest * 1.32)  # the legend has the room above bars and lines to itself
    axes.legend(loc="upper right", fontsize=10, handlelength=1.6, borderpad=0.2, borderaxespad=0.1)


def _frame_top(total: np.ndarray) -> float:
    """Upper end of the latency axes: one slow decision must not flatten the rest."""
    return max(float(np.percentile(total, 99)) * 1.35, float(np.median(total)) * 1.6)


def _draw_age(axes: Axes, seconds: np.ndarray, records: Sequence[TimingRecord]) -> None:
    age = np.array([r.age_ms for r in records])
    axes.fill_between(seconds, 0, age, color=_AGE, alpha=0.25, linewidth=0)
    axes.plot(seconds, age, color=_AGE, linewidth=1.2)
    axes.set_ylim(min(0.0, float(age.min()) * 1.1), max(float(age.max()) * 1.2, 1.0))
    axes.set_ylabel("ms")
    axes.set_xlabel("seconds of the run")
    axes.set_title("age of the oldest input when the chunk was published")
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _draw_parts(axes: Axes, report: Mapping[str, Any]) -> None:
    latency = report["latency_ms"]
    height = np.arange(len(PARTS))[::-1]
    middle = np.array([latency[part]["p50"] for part in PARTS])
    slow = np.array([latency[part]["p99"] for part in PARTS])
    axes.barh(height, middle, color=[_COLOURS[p] for p in PARTS], height=0.62)
    axes.hlines(height, middle, slow, color=INK, linewidth=1.1)
    axes.plot(slow, height, "|", color=INK, ms=8)
    widest = max(float(slow.max()), 1e-6)
    for y, p50, p99 in zip(height, middle, slow, strict=True):
        axes.text(p99 + 0.03 * widest, y, f"{p50:.2f} | {p99:.2f}", va="center", fontsize=10)
    axes.set_xlim(0, widest * 1.42)
    axes.set_yticks(height, PARTS)
    axes.tick_params(axis="y", length=0, colors=INK)
    axes.set_xlabel("ms", labelpad=1)
    axes.set_title("parts, p50 | p99")


def _draw_jumps(axes: Axes, report: Mapping[str, Any]) -> None:
    jumps = report["chunk_jump"]
    axes.set_title("jump of each action where a chunk replaces its predecessor, p50 | p99")
    if not jumps:
        axes.text(0.5, 0.5, "no chunk overlaps its predecessor", ha="center", color=FAINT)
        axes.set_axis_off()
        return
    place = np.arange(len(jumps))
    middle, slow = (np.array([each[key] for each in jumps.values()]) for key in ("p50", "p99"))
    axes.bar(place, middle, color=_JUMP, width=0.6)
    axes.vlines(place, middle, slow, color=INK, linewidth=1.1)
    axes.plot(place, slow, "_", color=INK, ms=10)
    axes.set_xticks(place, jumps, rotation=0 if len(jumps) <= 8 else 30)
    axes.tick_params(axis="x", length=0, colors=INK)
    axes.set_ylim(0, max(float(slow.max()) * 1.15, 1e-9))
    axes.set_ylabel("units of the action")
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _draw_intervals(axes: Axes, run: RunRecord, report: Mapping[str, Any]) -> None:
    missed = report["deadline_missed"]
    axes.set_title(f"between chunks; {missed} deadlines missed")
    found = np.array(intervals_ms(unique(run.chunks)))
    axes.set_xlabel("ms", labelpad=1)
    axes.set_ylabel("chunks")
    if found.size == 0:
        return
    low, high = float(found.min()), float(np.percentile(found, 99)) + 1e-6
    inside = found[found <= high]
    axes.hist(inside, bins=np.linspace(low, high, 33).tolist(), color="#9DB2C6", edgecolor="white")
    if len(inside) < len(found):
        axes.set_xlabel(f"ms  ({len(found) - len(inside)} longer, up to {found.max():.0f})")
