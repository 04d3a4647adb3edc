"""The result of a bench run: JSON for the record, a table for the terminal, a figure."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .machine import commit, gpu_state, versions


def describe_run(kernel_library: str, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything that a reader needs to trust and repeat the numbers."""
    state = gpu_state()
    return {
        "gpu": state.get("name", "unknown"),
        "driver": state.get("driver_version", "unknown"),
        "clocks": {name: value for name, value in state.items() if name.startswith("clocks")},
        "power_limit": state.get("power.limit", "unknown"),
        "versions": versions(),
        "commit": commit(),
        "kernel_library": kernel_library,
        "command": shlex.join(["flashrt", *sys.argv[1:]]),
        "cases": list(cases),
    }


def write_json(result: dict[str, Any], path: Path) -> None:
    """Write a result file, and its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def table(result: dict[str, Any]) -> Table:
    """One line a case."""
    view = Table(box=SIMPLE_HEAD, title=f"{result['gpu']}, kernels {result['kernel_library'][:16]}")
    columns = "views tokens horizon|replay p50|p95|p99 ms|call p50 ms|kernels|layer us|of roofline"
    for column in ("case", *columns.split("|")[1:]):
        view.add_column(column, justify="right")
    for case in result["cases"]:
        replay, share = case["replay_ms"], case["share_of_roofline"]
        view.add_row(
            f"{case['views']}x{case['prompt_tokens']}x{case['horizon']}",
            f"{replay['p50']:.2f}",
            f"{replay['p95']:.2f}",
            f"{replay['p99']:.2f}",
            f"{case['call_ms']['p50']:.2f}",
            str(case["kernels"]),
            f"{case['expert_layer_us']:.1f}",
            "-" if share is None else f"{share:.0%}",
        )
    return view


def draw(result: dict[str, Any], path: Path) -> None:
    """Stacked stages of each case beside its roofline, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = result["cases"]
    names = [f"{c['views']} views\n{c['prompt_tokens']} tok\nh {c['horizon']}" for c in cases]
    figure, axes = pyplot.subplots(figsize=(1.2 + 0.9 * len(cases), 3.6), layout="constrained")
    bottom = [0.0] * len(cases)
    for stage in dict.fromkeys(stage for case in cases for stage in case["stage_ms"]):
        values = [case["stage_ms"].get(stage, 0.0) for case in cases]
        axes.bar(names, values, bottom=bottom, width=0.6, label=stage)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    floors = [sum(case["roofline_ms"].values()) for case in cases]
    if all(floors):
        axes.plot(names, floors, "k_", markersize=22, label="roofline")
    axes.set_ylabel("graph replay, ms (p50)")
    axes.set_title(f"{result['gpu']}, {cases[0]['precision']}")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)
