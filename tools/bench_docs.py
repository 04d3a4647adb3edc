"""Puts measured results into the documents, so that text and result files cannot say two things.

A block between two marker lines is made from the JSON files in bench/results/h200 and replaced as a
whole; figures are drawn from the same files. A block without a file says that it is not
measured yet. Everything is made before anything is written, so a file that lacks something, or that
was not measured at true size on a GPU, leaves the documents as they are.

    python tools/bench_docs.py            # write
    python tools/bench_docs.py --check    # exit status 1 where a document differs from its files
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from eval_record import directly, draw_strategies, looped, states  # noqa: E402
from layer_lines import draw_layer  # noqa: E402
from markdown import table, wrap  # noqa: E402
from node_record import node_record  # noqa: E402
from result_files import (  # noqa: E402
    FOLDER,
    Fields,
    MissingError,
    Result,
    of_file,
    read_result,
    told,
)
from result_lines import PATHS, name_of, record, three  # noqa: E402
from toolbox import Parser, ToolError, run  # noqa: E402

from flashrt_core.bench.report import CAPSULE_ROWS, draw  # noqa: E402
from flashrt_core.outputs import check_output, write_text  # noqa: E402

#: Figure -> the block whose file it is drawn from, and what draws it.
FIGURES: dict[str, tuple[str, Callable[[Result, Path], object]]] = {
    "docs/benchmarks.png": ("headline", draw),
    "docs/strategies.png": ("eval_delay", draw_strategies),
}
DOCUMENTS = (
    "README.md",
    "docs/benchmarks.md",
    "docs/dataflow.md",
    "docs/node.md",
    "docs/tutorial.md",
)
#: The cases that are named in a sentence, and the one whose layers are drawn.
LIGHT, HEAVY = (2, 48, 10), (3, 200, 50)
_BLOCK = re.compile(r"(<!-- from results: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def headline(result: Result) -> str:
    """Two sentences for the README, and the figure."""
    light = _case(result, LIGHT)
    replay, call = light["replay_ms"]["p50"], light["call_ms"]["p50"]
    text = [
        f"On an {result['gpu']} the full model at 16 bits replays a decision in",
        f"**{replay:.1f} ms** and answers a call from camera images to actions in",
        f"**{call:.1f} ms** (2 views, 48 prompt tokens, horizon 10; median, a fresh observation",
        "every time).",
    ]
    peers = {row["path"]: row for row in light.get("peers", ())}
    times = [
        f"{row['ms']['p50']:.0f} ms {words} ({row['ratio_to_call']:.1f} times the call)"
        for path, words in PATHS.items()
        if (row := peers.get(path))
    ]
    if times:
        name = f"{light['peers'][0]['name']} {light['peers'][0]['version']}"
        text.append(f"{name} on the same GPU takes {' and '.join(times)}.")
    text.append("How it was measured: [docs/benchmarks.md](docs/benchmarks.md).")
    return wrap(text) + "\n\n![One decision on the GPU, by case](docs/benchmarks.png)\n"


def results(result: Result) -> str:
    """Origin, command, figure, and a line a case."""
    figure = "![One decision on the GPU, by case](benchmarks.png)\n\n"
    return record(result, figure, "expert layer, µs", name_of)


def second_policy(result: Result) -> str:
    """The same without a figure, for a policy whose plans stand in one file."""
    return record(
        result, "", "block of a step, µs", lambda case: f"{name_of(case)} {case['precision']}"
    )


def overlap(result: Result) -> str:
    """Replay with overlap at some classes of boundaries only."""
    cases = [case for case in result["cases"] if case.get("other_overlaps")]
    if not cases:
        return "Not measured yet: the run had neither `--overlap both` nor `--overlap each`.\n"
    ways = list(dict.fromkeys(way for case in cases for way in case["other_overlaps"]))
    rows = [
        [
            name_of(case),
            _replay_and_action(case),
            *(_replay_and_action(case["other_overlaps"].get(way)) for way in ways),
        ]
        for case in cases
    ]
    return (
        "Replay p50 and, behind it, the action stage, in ms. "
        "All ways of a case gave equal bits."
        f"\n\n{table(['views x tokens x horizon', cases[0]['overlap'], *ways], rows)}"
    )


def precision(result: Result) -> str:
    """Errors against float32, and the gates."""
    rows = [
        [
            kind,
            name,
            f"{errors['actions']['min_cosine']:.6f}",
            *(f"{errors[part]['rms']:.2g}" for part in ("actions", "keys", "values")),
        ]
        for kind, ways in result["to_float32"].items()
        for name, errors in ways.items()
    ]
    columns = ["weights", "way", "least cosine of an action row"]
    columns += [f"rms error of {part}" for part in ("actions", "keys", "values")]
    passed = sum(gate["passed"] for gate in result["gates"])
    shape = " x ".join(str(result["shape"][name]) for name in ("views", "tokens", "horizon"))
    text = [
        f"{passed} of {len(result['gates'])} gates passed on an {result['gpu']['name']} at true",
        f"size: {result['decisions']} decisions of {shape} (views x prompt tokens x horizon);",
        f"commit {result['commit']}, `{result['command']}`.",
    ]
    return f"{wrap(text)}\n\n{table(columns, rows)}"


def low_bit(result: Result, layer: str = "expert layer, µs") -> str:
    """Plans of few bits, with their distance to float32; ``layer``: a column's title."""
    columns = ["views x tokens x horizon", "plan", "replay p50 / p95 / p99, ms", "call p50, ms"]
    columns += [*result["cases"][0]["stage_ms"], "kernels", layer]
    columns += ["cosine of action rows, mean / least", "calibration"]
    rows = []
    for case in result["cases"]:
        found, digest = case.get("fidelity"), case["calibration"]
        cosines = f"{found['cosine_mean']:.5f} / {found['cosine_min_row']:.5f}" if found else ""
        rows.append(
            [
                name_of(case),
                case["precision"],
                three(case["replay_ms"]),
                f"{case['call_ms']['p50']:.2f}",
                *(f"{value:.2f}" for value in case["stage_ms"].values()),
                f"{case['kernels']:,}",
                f"{case['expert_layer_us']:.1f}",
                f"{cosines} ({found['pairs']} pairs)" if found else "",
                f"`{digest[:12]}`" if digest != "none" else "",
            ]
        )
    head = (
        f"{result['gpu']}, driver {result['driver']}; commit {result['commit']}, kernels "
        f"{result['kernel_library']}. Cosines are against the float32 reference, on observations "
        "that the plan was not calibrated on."
    )
    return f"{wrap([head])}\n\n```\n{result['command']}\n```\n\n{table(columns, rows)}"


def second_low_bit(result: Result) -> str:
    """The same of a policy whose sampler has blocks."""
    return low_bit(result, "block of a step, µs")


def capsules(result: Result) -> str:
    """A line a number, a column a case."""
    cases = result["cases"]
    rows = [["bytes", *(f"{case['bytes']:,}" for case in cases)]]
    known = {label: name for label, name in CAPSULE_ROWS.items() if name in cases[0]}
    for label, name in known.items():  # an older run lacks what was added since
        times = [case[name] for case in cases]
        rows.append([label, *(f"{each['p50']:.1f} / {each['p95']:.1f}" for each in times)])
    ratios = {
        "rebuilt over restored": "restored_speedup",
        "tables made again over kept": "recompute_ratio",
    }
    for label, name in ratios.items():
        if name in cases[0]:
            rows.append([label, *(f"{case[name]:.2f}" for case in cases)])
    exact = [case["trials"] if case["bit_exact"] else min(case["equal"].values()) for case in cases]
    counts = [f"{n} of {case['trials']}" for n, case in zip(exact, cases, strict=True)]
    rows.append(["trials with equal bits", *counts])
    text = [
        f"p50 / p95 on an {result['gpu']}; commit {result['commit']}, kernels",
        f"{result['kernel_library']}, `{result['command']}`.",
    ]
    return f"{wrap(text)}\n\n{table(['', *(name_of(case) for case in cases)], rows)}"


def episodes(result: Result) -> str:
    """Decisions of an episode beside the official code's, in words."""
    least = ", ".join(f"{cosine['min']:.5f}" for cosine in result["cosines"])
    gate = result["gate"]
    text = [
        f"{result['chunks']} decisions of an episode at true size, each behind what LeRobot did",
        f"in the one before, both in {result['precision']}, on an {result['gpu']['name']}: least",
        f"cosine of an action row {least} (gate {gate['min_cosine']}:",
        f"{'passed' if gate['passed'] else 'failed'}).",
        f"Commit {result['commit']}, `{result['command']}`.",
    ]
    return f"{wrap(text)}\n"


def endurance(result: Result) -> str:
    """The soak, in words."""
    grown = result["device_bytes"][-1] - result["device_bytes"][0]
    host = result["host_bytes"][-1] - result["host_bytes"][0]
    failures = "; ".join(result["failures"]) or "nothing failed"
    times = result["replay_ms"]
    text = [
        f"{result['decisions']:,} decisions with fresh inputs on an {result['gpu']['name']} in",
        f"{result['seconds']:.0f} s: {failures}.",
        f"Device memory grew by {grown} bytes, host memory by {host};",
        f"{result['repeats']} repeats of a known input, {result['different']} with other bits.",
        f"Replay p50 {times['p50']:.3f} ms, p99 {times['p99']:.3f}, longest {times['max']:.3f}.",
        f"Commit {result['commit']}, `{result['command']}`.",
    ]
    return f"{wrap(text)}\n"


def layers(result: Result) -> str:
    """An expert and a prefix layer, drawn from the trace."""
    case = _case(result, LIGHT)
    parts = [
        wrap(
            [
                f"From the trace of {name_of(case)} (views x prompt tokens x horizon) on an",
                f"{result['gpu']}, medians over all layers and steps; commit",
                f"{result['commit']}. A dot is a kernel that is resident and waits for the one in",
                "front (overlap), `#` the time from the end of the one in front to its own end.",
                "A trace slows the kernels a little. Kernels have the names of that commit; only a",
                "GPU gives them anew, by [the series](benchmarks.md#again), from whose file",
                "`python tools/bench_docs.py` draws this.",
            ]
        ),
    ]
    found = case["layers"]
    if not found:
        raise MissingError("layers of a run with --trace")
    for name, title in (("expert", "expert layer of one step"), ("prefix", "prefix layer")):
        if name not in found:  # its kernels did not repeat as often as there are layers
            continue
        layer = found[name]
        head = f"One {title}: {layer['layer_us']:.1f} µs, {len(layer['kernels'])} launches."
        parts.append(f"{head}\n\n```\n{draw_layer(layer)}\n```")
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class Block:
    """A part of a document.

    Attributes:
        file: with its results, from the folder of the GPU's.
        make: text from what stands in the file.
        heading: in front of that; empty where the document has one.
        nothing: what stands there without that file.
    """

    file: str
    make: Callable[[Result], str]
    heading: str = ""
    nothing: str = "Not measured yet"


BLOCKS = {
    "headline": Block("pi05_bf16.json", headline, nothing="Full size on a GPU: not measured yet"),
    "results": Block("pi05_bf16.json", results, "## Results"),
    "low_bit": Block("pi05_fp8.json", low_bit, "## 8 bits"),
    "overlap": Block("pi05_bf16.json", overlap, "### Overlap, by class of boundary"),
    "layers": Block("pi05_bf16.json", layers, "## A layer, launch by launch"),
    "capsules": Block("pi05_capsule.json", capsules, "## Capsules"),
    "precision": Block("pi05_precision.json", precision, "## Precision"),
    "node_cpu": Block("../cpu/node_pi05.json", node_record),
    "node_gpu": Block("node_pi05.json", node_record),
    "eval": Block("../cpu/eval_tabletop.json", directly),
    "eval_gpu": Block("eval_tabletop.json", directly),
    "eval_forks": Block("../cpu/eval_tabletop_forks.json", states),
    "eval_node": Block("../cpu/eval_tabletop_node.json", looped),
    "eval_delay": Block("../cpu/eval_tabletop_node_150ms.json", looped),
    "endurance": Block("pi05_soak.json", endurance, "## Endurance"),
    "groot": Block(
        "groot_n17_bf16.json",
        second_policy,
        "## GR00T N1.7",
    ),
    "groot_low_bit": Block("groot_n17_fp8.json", second_low_bit, "### 8 bits"),
    "groot_capsules": Block("groot_n17_capsule.json", capsules, "### Capsules"),
    "lingbot": Block("lingbot_va_bf16.json", second_policy, "## LingBot-VA"),
    "lingbot_low_bit": Block("lingbot_va_low_bit.json", second_low_bit, "### 8 and 4 bits"),
    "lingbot_capsules": Block("lingbot_va_capsule.json", capsules, "### Capsules"),
    "lingbot_episodes": Block("lingbot_va_episodes.json", episodes, "### Beside LeRobot's code"),
}


def fill(text: str, folder: Path) -> str:
    """A document with every block made anew from the files of ``folder``.

    ToolError on a block that nothing makes, and on a file that it cannot be made of.
    """

    def block(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise ToolError(f"block {match[2]!r}", expected=f"one of {sorted(BLOCKS)}")
        return match[1] + _made(BLOCKS[match[2]], folder / BLOCKS[match[2]].file) + match[4]

    return _BLOCK.sub(block, text)


def _made(block: Block, path: Path) -> str:
    head = block.heading and f"{block.heading}\n\n"
    if not path.is_file():
        name = os.path.normpath(f"{FOLDER}/{block.file}")
        return f"{head}{block.nothing}: there is no `{name}`.\n"
    result = read_result(path)
    with of_file(path):
        return head + block.make(result)


def _case(result: Result, shape: tuple[int, int, int]) -> Result:
    for case in result["cases"]:
        if (case["views"], case["prompt_tokens"], case["horizon"]) == shape:
            return Fields(case)
    raise MissingError("case {} x {} x {}".format(*shape))


def _replay_and_action(times: Result | None) -> str:
    if times is None:
        return ""
    return f"{times['replay_ms']['p50']:.2f} / {times['stage_ms']['action']:.2f}"


def main() -> int:
    """Command line; 1 where --check finds a difference."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    texts = {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    folder = ROOT / FOLDER
    made = {path: fill(text, folder) for path, text in texts.items()}
    different = [path for path, text in texts.items() if made[path] != text]
    if not options.check:
        for path in (*different, *(ROOT / figure for figure in FIGURES)):
            check_output("--output", path)
        for figure, (block, drawn) in FIGURES.items():
            source = folder / BLOCKS[block].file
            if source.is_file():
                with of_file(source):
                    drawn(read_result(source), ROOT / figure)
        for path in different:
            write_text(made[path], path, "document")
    for path in different:
        done = "differs from its results" if options.check else "written"
        print(f"bench_docs: {told(path)} {done}")
    return 1 if options.check and different else 0


if __name__ == "__main__":
    run(main, "bench_docs")
