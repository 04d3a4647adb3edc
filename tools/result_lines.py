"""A result file of ``flashrt bench`` as text: where it comes from, and a line a case."""

from __future__ import annotations

from collections.abc import Callable

from markdown import table, wrap
from result_files import Result

PATHS = {"compiled_graph": "compiled and in one CUDA graph", "eager": "as it comes"}
SHORT = {"compiled_graph": "graph", "eager": "eager"}
_FEW = 10  # samples, of which a reader wants to know that they are no more


def name_of(case: Result) -> str:
    return f"{case['views']} x {case['prompt_tokens']} x {case['horizon']}"


def three(times: dict[str, float]) -> str:
    return " / ".join(f"{times[name]:.2f}" for name in ("p50", "p95", "p99"))


def peer(case: Result, path: str) -> str:
    for row in case.get("peers", ()):
        if row["path"] == path:
            few = f" ({row['samples']} samples)" if row["samples"] < _FEW else ""
            return f"{row['ms']['p50']:.1f} ms, {row['ratio_to_replay']:.1f} x{few}"
    return ""


def record(result: Result, figure: str, layer: str, name: Callable[[Result], str]) -> str:
    """Origin, command, and a line a case.

    Args:
        result: of ``flashrt bench``.
        figure: stands in front of the table.
        layer: what the column of a layer's time is called.
        name: of a line.
    """
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    clocks = ", ".join(f"{name} {value}" for name, value in result["clocks"].items())
    head = (
        f"{result['gpu']}, driver {result['driver']}; {clocks}; {versions}; commit "
        f"{result['commit']}, kernels {result['kernel_library']}."
    )
    paths = [path for path in PATHS if any(peer(case, path) for case in result["cases"])]
    columns = [
        "views x tokens x horizon",
        "replay p50 / p95 / p99, ms",
        "call p50 / p95 / p99, ms",
        *result["cases"][0]["stage_ms"],
        "kernels",
        layer,
        "of the roofline",
        *(f"LeRobot, {SHORT[path]}" for path in paths),
    ]
    rows = [
        [
            name(case),
            three(case["replay_ms"]),
            three(case["call_ms"]),
            *(f"{value:.2f}" for value in case["stage_ms"].values()),
            f"{case['kernels']:,}",
            f"{case['expert_layer_us']:.1f}",
            f"{case['share_of_roofline']:.0%}" if case["share_of_roofline"] else "",
            *(peer(case, path) for path in paths),
        ]
        for case in result["cases"]
    ]
    notes = "".join(f"{wrap([note])}\n\n" for note in result.get("notes", ()))
    return (
        f"{wrap([head])}\n\n```\n{result['command']}\n```\n\n{notes}{figure}{table(columns, rows)}"
    )
