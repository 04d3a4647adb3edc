"""From the records of a run to its report: a JSON-ready dict and a table."""

from __future__ import annotations

import itertools
import math
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .counters import node_counts
from .records import PARTS, ChunkRecord, RunRecord, TimingRecord

PERCENTILES = (50, 95, 99)
FASTEST = "max"  # the rate of a replay that is as fast as the node follows

Record = TypeVar("Record", ChunkRecord, TimingRecord)


def statistics(values: Iterable[float]) -> dict[str, float]:
    """p50, p95, p99, mean and max, rounded to a microsecond's worth; empty for no values."""
    data = np.asarray(list(values), np.float64)
    if data.size == 0:
        return {}
    found = {f"p{p}": float(np.percentile(data, p)) for p in PERCENTILES}
    found |= {"mean": float(data.mean()), "max": float(data.max())}
    return {key: round(value, 4) for key, value in found.items()}


def summarise(run: RunRecord) -> dict[str, Any]:
    """The report of a run; plain values that ``json.dump`` takes.

    Latencies and ages are in ms, rates in Hz; ``chunk_jump`` is in the units of each action.
    """
    chunks, timings = unique(run.chunks), unique(run.timings)
    # An episode's first chunk may have fewer rows than the others.
    counted = Counter(chunk.actions.shape for chunk in chunks).most_common()
    shapes, others = [shape for shape, _ in counted], dict(counted[1:])
    counts = node_counts(run.diagnostics, run.play.sent)
    missing = gaps(chunks)
    latency = {part: statistics(t.parts_ms[part] for t in timings) for part in PARTS}
    latency["total"] = statistics(t.total_ms for t in timings)
    lost = counts.lost | ({"action_chunk": missing} if missing else {})
    return {
        "bag": run.bag,
        "parameters": run.parameters,
        "mode": run.mode,
        "rate": FASTEST if math.isinf(run.rate) else run.rate,
        "recorded_seconds": round(run.recorded_seconds, 3),
        "speed": round(run.recorded_seconds / run.play.seconds, 3) if run.play.seconds else 0.0,
        "decisions": len(chunks),
        "chunk_shape": list(shapes[0]) if shapes else [],
        "other_chunks": {_times(shape): count for shape, count in others.items()},
        "action_names": list(chunks[0].names) if chunks else [],
        "policy": chunks[0].policy if chunks else "",
        "fingerprint": chunks[0].fingerprint if chunks else "",
        "latency_ms": latency,
        "observation_age_ms": statistics(t.age_ms for t in timings),
        "newest_input_age_ms": statistics(c.newest_age_ms for c in chunks),
        "decision_interval_ms": statistics(intervals_ms(chunks)),
        "deadline_missed": counts.lost.get("deadline", 0),
        "chunk_jump": chunk_jumps(chunks),
        "dropped": sum(lost.values()),
        "dropped_by_input": lost,
        "refused": sum(counts.refused.values()),
        "refused_by_reason": counts.refused,
        "player": {
            "sent": dict(run.play.sent),
            "seconds": round(run.play.seconds, 3),
            "late_ms": statistics(run.play.late_ms),
            "malformed": dict(run.play.malformed),
        },
    }


def unique(records: Sequence[Record]) -> list[Record]:
    """One record a (session, sequence), the first, in order of sequence."""
    found: dict[tuple[str, int], Record] = {}
    for record in records:
        found.setdefault((record.session, record.sequence), record)
    return [found[key] for key in sorted(found)]


def gaps(chunks: Sequence[ChunkRecord]) -> int:
    """How many sequence numbers are missing between the first and last chunk of each session."""
    missing = 0
    for _, group in itertools.groupby(chunks, key=lambda chunk: chunk.session):
        numbers = [chunk.sequence for chunk in group]
        missing += numbers[-1] - numbers[0] + 1 - len(numbers)
    return missing


def jump(old: ChunkRecord, new: ChunkRecord) -> NDArray[np.float64] | None:
    """|new - old| of each action at the time of the new chunk's first; None without overlap."""
    if old.session != new.session or old.actions.shape != new.actions.shape or old.dt_ns <= 0:
        return None
    row = (new.first_action_ns - old.first_action_ns) / old.dt_ns
    if not 0 <= row <= len(old.actions) - 1:
        return None
    low = min(int(row), len(old.actions) - 2) if len(old.actions) > 1 else 0
    high = min(low + 1, len(old.actions) - 1)
    held = old.actions[low] + (row - low) * (old.actions[high] - old.actions[low])
    found: NDArray[np.float64] = np.abs(new.actions[0].astype(np.float64) - held)
    return found


def chunk_jumps(chunks: Sequence[ChunkRecord]) -> dict[str, dict[str, float]]:
    """How far each action jumps where a chunk replaces its predecessor: |new - old|, per action.

    Compared at the time of the new chunk's first action, with the predecessor interpolated there;
    pairs that do not overlap in time are left out.
    """
    pairs = (jump(old, new) for old, new in itertools.pairwise(chunks))
    jumps = [found for found in pairs if found is not None]
    if not jumps:
        return {}
    columns = np.stack(jumps).T
    return {name: statistics(column) for name, column in zip(chunks[0].names, columns, strict=True)}


def intervals_ms(chunks: Sequence[ChunkRecord]) -> list[float]:
    """Time between chunks that arrived here, each to the one before."""
    return [(b.received_ns - a.received_ns) / 1e6 for a, b in itertools.pairwise(chunks)]


def versions() -> dict[str, str]:
    """Versions of what took part."""
    found = {"python": platform.python_version()}
    for name in ("flashrt-ros", "torch", "numpy", "rosbags", "rclpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # rclpy of a distribution, a checkout that was not installed
    found["ros_distro"] = os.environ.get("ROS_DISTRO", "") or _wheels_distro()
    return {name: version for name, version in found.items() if version}


def _wheels_distro() -> str:
    for distro in ("kilted", "jazzy"):
        try:
            metadata.version(f"ros-{distro}-rclpy")
        except metadata.PackageNotFoundError:
            continue
        return distro
    return ""


def render(report: Mapping[str, Any], checks: Mapping[str, bool] | None = None) -> RenderableType:
    """The report for a terminal."""
    table = Table(title="latency of a decision, ms", title_justify="left", header_style="bold")
    table.add_column("part")
    for column in ("p50", "p95", "p99", "max"):
        table.add_column(column, justify="right")
    rows = [*report["latency_ms"].items(), ("observation age", report["observation_age_ms"])]
    for name, values in rows:
        if name == "observation age":
            table.add_section()
        cells = [f"{values[c]:.2f}" if values else "-" for c in ("p50", "p95", "p99", "max")]
        table.add_row(name, *cells, style="bold" if name == "total" else None)
    facts = Table.grid(padding=(0, 2))
    shape = _times(report["chunk_shape"]) or "none"
    shape += "".join(f" ({count} of {other})" for other, count in report["other_chunks"].items())
    missed = report["deadline_missed"]
    facts.add_row(
        "decisions", f"{report['decisions']}, chunks of {shape}, deadline missed {missed} times"
    )
    if report["rate"] == FASTEST:
        facts.add_row("speed", f"{report['speed']:.2f} x the recorded timing")
    if jumps := report["chunk_jump"]:
        name = max(jumps, key=lambda each: jumps[each]["p99"])
        facts.add_row(
            "largest jump",
            f"{name}, p50 {jumps[name]['p50']:.4g}, p99"
            f" {jumps[name]['p99']:.4g} from chunk to chunk",
        )
    facts.add_row("dropped", _counted(report["dropped"], report["dropped_by_input"]))
    facts.add_row("refused", _counted(report["refused"], report["refused_by_reason"]))
    if malformed := report["player"]["malformed"]:
        facts.add_row("malformed", _counted(sum(malformed.values()), malformed) + ", not played")
    if report["player"]["late_ms"]:
        late = report["player"]["late_ms"]
        sent = sum(report["player"]["sent"].values())
        facts.add_row(
            "player", f"{sent} messages, late by p50 {late['p50']:.2f}, p99 {late['p99']:.2f} ms"
        )
    for name, passed in (checks or {}).items():
        mark = Text("yes", style="green") if passed else Text("NO", style="bold red")
        facts.add_row(name.replace("_", " "), mark)
    return Group(table, facts)


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _counted(total: int, parts: Mapping[str, int]) -> str:
    named = ", ".join(f"{name} {count}" for name, count in parts.items() if count)
    return f"{total} ({named})" if named else str(total)
