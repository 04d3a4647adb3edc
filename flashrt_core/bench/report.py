"""The result of a bench run: JSON for the record, a table for the terminal, a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..outputs import whole_file, write_text
from .machine import command_line, commit, versions

#: Rows of a table of capsules: what they are called, and what they show of a case.
CAPSULE_ROWS = {
    "snapshot, us": "snapshot_us",
    "restore, us": "restore_us",
    "restore behind another session, us": "switch_us",
    "fork, us": "fork_us",
    "move to the host, us": "to_host_us",
    "move back, us": "to_device_us",
    "restore from the host, us": "restore_from_host_us",
    "write a file, ms": "file_write_ms",
    "read a file, ms": "file_read_ms",
    "next action, rebuilt, ms": "rebuild_ms",
    "next action, restored, ms": "restored_ms",
    "decision, tables kept, ms": "reuse_ms",
    "decision, tables made again, ms": "recompute_ms",
}


def describe_run(
    kernel_library: str, state: Mapping[str, str], cases: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that a reader needs to trust and repeat the numbers.

    Args:
        kernel_library: digest.
        state: of the GPU under load, see :func:`flashrt_core.bench.machine.gpu_state`.
        cases: lines of the result.
    """
    return {
        "gpu": state.get("name", "unknown"),
        "driver": state.get("driver_version", "unknown"),
        "clocks": {name: value for name, value in state.items() if name.startswith("clocks")},
        "power_limit": state.get("power.limit", "unknown"),
        "versions": versions(),
        "commit": commit(),
        "kernel_library": kernel_library,
        "command": command_line("flashrt"),
        "cases": list(cases),
    }


def write_json(result: dict[str, Any], path: Path) -> None:
    """Write a result file, whole or not at all, and its folder where that is missing."""
    write_text(json.dumps(result, indent=1) + "\n", path)


def table(result: dict[str, Any]) -> Table:
    """One line a case."""
    view = Table(box=SIMPLE_HEAD, title=f"{result['gpu']}, kernels {result['kernel_library'][:16]}")
    columns = "views tokens horizon|replay p50|p95|p99 ms|call p50 ms|kernels|layer us|of roofline"
    for column in ("case", *columns.split("|")[1:]):
        view.add_column(column, justify="right")
    for case in result["cases"]:
        replay, share = case["replay_ms"], case["share_of_roofline"]
        view.add_row(
            f"{case['views']}x{case['prompt_tokens']}x{case['horizon']} {case['precision']}",
            f"{replay['p50']:.2f}",
            f"{replay['p95']:.2f}",
            f"{replay['p99']:.2f}",
            f"{case['call_ms']['p50']:.2f}",
            str(case["kernels"]),
            f"{case['expert_layer_us']:.1f}",
            "-" if share is None else f"{share:.0%}",
        )
    return view


def peer_lines(result: dict[str, Any]) -> list[str]:
    """What each peer took, in a line."""
    return [
        f"{case['views']}x{case['prompt_tokens']}x{case['horizon']}: {row['name']} {row['version']}"
        f" {row['path']} {row['ms']['p50']:.1f} ms, {row['ratio_to_replay']:.1f} times our replay"
        for case in result["cases"]
        for row in case.get("peers", ())
    ]


_PEER_SPACE = 3.0  # a peer's bar is at most that many times as long as our longest


def draw(result: dict[str, Any], path: Path, title: str = "π0.5") -> None:
    """Each case's stages, stacked, with its roofline, and the peer's fastest path beside."""
    from ..plotting import pyplot

    cases = result["cases"]
    figure, axes = pyplot.subplots(figsize=(6.4, 1.5 + 0.5 * len(cases)), layout="constrained")
    places = range(len(cases))
    height = 0.36 if any(case.get("peers") for case in cases) else 0.6
    low = [0.0] * len(cases)
    for stage in dict.fromkeys(stage for case in cases for stage in case["stage_ms"]):
        values = [case["stage_ms"].get(stage, 0.0) for case in cases]
        axes.barh(places, values, height, left=low, label=stage)
        low = [begin + value for begin, value in zip(low, values, strict=True)]
    for place, total in zip(places, low, strict=True):
        axes.text(total, place, f" {total:.1f}", va="center", fontsize=8)
    floors = [sum(case["roofline_ms"].values()) for case in cases]
    if all(floors):
        axes.plot(floors, places, "k|", markersize=12, label="roofline")
    _draw_peers(axes, cases, height, most=_PEER_SPACE * max(low))
    plans = list(dict.fromkeys(case["precision"] for case in cases))
    label = "{views} x {prompt_tokens} x {horizon}" + (", {precision}" if len(plans) > 1 else "")
    names = [label.format(**case) for case in cases]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("one decision on the GPU, ms (p50)")
    axes.set_title(f"{title}, {result['gpu']}, {', '.join(plans)}", loc="left", fontsize=10)
    axes.set_ylabel("views x prompt tokens x horizon")
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    try:
        with whole_file("figure", path) as part:
            figure.savefig(part, dpi=160)
    finally:
        pyplot.close(figure)


def _draw_peers(axes: Any, cases: Sequence[dict[str, Any]], height: float, most: float) -> None:
    """Bars of the peer, cut at ``most`` ms, where ours would be too short to read."""
    best = {
        place: min(case["peers"], key=lambda row: row["ms"]["p50"])
        for place, case in enumerate(cases)
        if case.get("peers")
    }
    if not best:
        return
    row = next(iter(best.values()))
    label = f"{row['name']} {row['version']}, {row['path'].replace('_', ' + ')}"
    values = [row["ms"]["p50"] for row in best.values()]
    places = [place + height for place in best]
    shown = [min(value, most) for value in values]
    axes.barh(places, shown, height, color="0.8", label=label)
    for place, end, value in zip(places, shown, values, strict=True):
        mark = "" if end == value else " \N{RIGHTWARDS ARROW}"
        axes.text(end, place, f"{mark} {value:.1f}", va="center", fontsize=8, color="0.4")
