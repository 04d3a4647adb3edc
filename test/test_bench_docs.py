"""Documents and result files say the same."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import bench_docs  # noqa: E402  (tools/ is no package)
from eval_record import draw_strategies  # noqa: E402
from layer_lines import draw_layer  # noqa: E402
from toolbox import ToolError  # noqa: E402

from flashrt_core.bench.capsule_command import described  # noqa: E402
from flashrt_core.bench.capsules import CapsuleResult  # noqa: E402
from flashrt_core.bench.report import CAPSULE_ROWS, describe_run  # noqa: E402
from test.bench.test_bench import Case, line  # noqa: E402

LAYER = {
    "layer_us": 20.6,
    "repeats": 180,
    "kernels": [
        {"kernel": "norm_qkv_bf16", "start_us": 0.0, "duration_us": 8.0, "share_us": 4.0},
        {"kernel": "nvjet_tst_64x8", "start_us": 4.0, "duration_us": 8.0, "share_us": 4.0},
        {"kernel": "geglu_bf16", "start_us": 14.0, "duration_us": 6.0, "share_us": 8.0},
    ],
}


def bench_result() -> dict[str, Any]:
    """A run of two cases, one with a peer and with overlap both ways."""
    cases = [line(Case(2, 48, 10), True), line(Case(3, 200, 50), False)]
    cases[0] |= {"layers": {"expert": LAYER, "prefix": LAYER}, "overlap": "on"}
    cases[0]["other_overlaps"] = {"off": {"replay_ms": {"p50": 9.9}, "stage_ms": {"action": 4.8}}}
    made = describe_run("abc", {"name": "GPU", "driver_version": "580"}, cases)
    return made | {"command": "flashrt bench pi05 --trace"}


def capsule_result(device: str = "cuda") -> dict[str, Any]:
    """Two trials of one case."""
    found = CapsuleResult(Case(2, 48, 10), device, "bf16", "abc", 10_034_176, 10_036_000, 2)
    found.times = {
        name: [30.0, 40.0] for name in (*CAPSULE_ROWS.values(), "prompt_ms", "step_tables_ms")
    }
    found.equal = dict.fromkeys(found.equal, 2)
    return described([found], {"name": "GPU"}) | {"command": "flashrt bench capsule"}


def low_bit_result() -> dict[str, Any]:
    """A run of two plans, one of them qualified."""
    wide, narrow = line(Case(2, 48, 10), False), line(Case(2, 48, 10), False)
    found = {"cosine_mean": 0.99961, "cosine_min_row": 0.9981, "pairs": 64}
    narrow |= {"precision": "fp8", "calibration": "c" * 64, "fidelity": found}
    made = describe_run("abc", {"name": "GPU", "driver_version": "580"}, [narrow, wide])
    return made | {"command": "flashrt bench pi05 --precision fp8,bf16"}


def precision_result() -> dict[str, Any]:
    """One way on one kind of weights."""
    errors = {
        part: {"rms": 0.0025, "min_cosine": 0.99999} for part in ("actions", "keys", "values")
    }
    return {
        "to_float32": {"gaussian": {"cuda": errors}},
        "gates": [{"passed": True}],
        "commit": "c",
        "command": "python tools/compare_precision.py",
        "shape": {"views": 2, "tokens": 48, "horizon": 10},
        "decisions": 2,
        "gpu": {"name": "GPU"},
    }


def soak_result() -> dict[str, Any]:
    """A soak in which nothing failed."""
    times = {"p50": 0.36, "p95": 0.37, "p99": 0.38, "max": 0.4}
    numbers = {"decisions": 100_000, "repeats": 20, "different": 0, "seconds": 84.0}
    memory = {"host_bytes": [7, 7], "device_bytes": [9, 9]}
    told = {"failures": [], "commit": "c", "command": "python tools/soak.py"}
    return {"replay_ms": times, "gpu": {"name": "GPU"}} | numbers | memory | told


def node_result(**more: Any) -> dict[str, Any]:
    """A node under load; with ``gpu``, on one."""
    times = {"p50": 7.3, "p95": 9.6, "p99": 11.5, "max": 20.25}
    parts = ("ingest", "context", "action", "publish", "total", "observation age")
    return {
        "seconds": 600.0,
        "inputs": {"front": {"sent": 18057}},
        "decisions": {"made": 6019, "rate_hz": 10.0},
        "latency_ms": dict.fromkeys(parts, times),
        "overhead_ms": times,
        "checks": [{"name": "overhead p99, ms", "got": 11.5, "limit": 15.0, "passed": True}],
        "machine": {"cores": 2, "cpu": "CPU"},
        "versions": {"ros_distro": "kilted"},
        "commit": "c",
        "command": "flashrt bench node --seconds 600",
        **more,
    }


def eval_result(*names: str) -> dict[str, Any]:
    """Tiers of ``flashrt eval``, each behind the first a bit better; and what else it can hold."""
    rate = {"successes": 199, "total": 200, "low": 0.972, "high": 0.999}
    score = {"mean": 0.0235, "low": 0.011, "high": 0.036}
    paired = {"difference": -0.005, "low": -0.028, "high": 0.014}
    joints = {"elbow": {"rms": 1.5e-4}, "wrist": {"rms": 2.4e-4}}
    first = {"name": names[0], "success": rate, "paired": None, "score": None, "joints": {}}
    tiers = [first]
    more = {"paired": paired, "score": score, "joints": joints}
    tiers += [first | {"name": name} | more for name in names[1:]]
    loop = {
        "counts": {"stale": 2},
        "safe_actions": 1,
        "jumps": {"elbow": {"p95": 0.016}, "wrist": {"p95": 0.036}},
        "acceleration": {"p99": 22.54},
        "pace": 0.97,
    }
    forks = {"forks": 4, "single": rate, "best": rate | {"successes": 200}, "improved": 33}
    return {
        "tiers": tiers,
        "loops": dict.fromkeys(names, loop),
        "forks": forks | {"score": score},
        "resumed": {"bit_identical": True},
        "machine": {"cores": 2, "cpu": "CPU"},
        "commit": "c",
        "command": "flashrt eval tabletop",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A result folder with every file, and the one of machines without a GPU beside it."""
    others, tmp_path = tmp_path / "cpu", tmp_path / "h200"
    others.mkdir()
    tmp_path.mkdir()
    (others / "node_pi05.json").write_text(json.dumps(node_result()))
    for name in ("", "_forks", "_node", "_node_150ms"):
        found = eval_result("cpu fp32, replace, +150 ms", "cpu fp32, ensemble, +150 ms")
        (others / f"eval_tabletop{name}.json").write_text(json.dumps(found))
    gpu = {"gpu": {"name": "GPU"}}
    (tmp_path / "node_pi05.json").write_text(json.dumps(node_result(**gpu)))
    found = eval_result("reference", "cuda bf16", "cuda fp8")
    (tmp_path / "eval_tabletop.json").write_text(json.dumps(found | gpu))
    made = {"bf16": bench_result(), "precision": precision_result(), "soak": soak_result()}
    made |= {"capsule": capsule_result(), "fp8": low_bit_result()}
    for name, result in made.items():
        (tmp_path / f"pi05_{name}.json").write_text(json.dumps(result))
    return tmp_path


def test_documents_hold_what_the_files_say() -> None:
    for name in bench_docs.DOCUMENTS:
        text = (ROOT / name).read_text()
        assert bench_docs.fill(text, ROOT / bench_docs.FOLDER) == text, (
            f"{name} differs from its result files; run python tools/bench_docs.py"
        )


def test_every_block_has_a_place_and_is_filled_once(folder: Path) -> None:
    texts = [(ROOT / name).read_text() for name in bench_docs.DOCUMENTS]
    assert sorted(
        name for text in texts for name in re.findall(r"<!-- from results: (\w+) -->", text)
    ) == sorted(bench_docs.BLOCKS)
    for text in texts:
        once = bench_docs.fill(text, folder)
        assert once != text
        assert bench_docs.fill(once, folder) == once


def block(name: str) -> str:
    """A document of one block."""
    return f"<!-- from results: {name} -->\nold\n<!-- end -->"


@pytest.mark.parametrize("name", sorted(bench_docs.BLOCKS))
def test_a_block_without_a_file_says_so(name: str, tmp_path: Path) -> None:
    made = bench_docs.fill(block(name), tmp_path)
    heading, file = bench_docs.BLOCKS[name].heading, bench_docs.BLOCKS[name].file
    path = f"bench/results/h200/{file}".replace("h200/../", "")
    assert f"ot measured yet: there is no `{path}`" in made
    assert heading in made and "old" not in made and not re.search(r"\d ms", made)


def test_plans_of_8_bits_stand_beside_those_of_16(folder: Path) -> None:
    made = bench_docs.fill(block("low_bit"), folder)
    narrow, wide = (text for text in made.splitlines() if text.startswith("| 2 x 48 x 10"))
    assert "| fp8 |" in narrow and "0.99961 / 0.99810 (64 pairs)" in narrow
    assert "`cccccccccccc`" in narrow and wide.rstrip(" |").endswith("22.2")


def test_a_node_under_load_on_the_cpu_and_beside_a_gpu(folder: Path) -> None:
    for name, where in (("node_cpu", "2 cores of CPU"), ("node_gpu", "GPU")):
        made = bench_docs.fill(block(name), folder)
        assert f"600 s on {where}, ROS 2 kilted, commit c: 6019 decisions at 10.00 Hz" in made
        assert "| overhead p99, ms | 11.5 | 15 | yes |" in made
        assert "| overhead | 7.30 | 9.60 | 11.50 | 20.25 |" in made


def test_a_policy_in_its_task(folder: Path, tmp_path: Path) -> None:
    made = bench_docs.fill(block("eval"), folder)
    assert "`flashrt eval tabletop` on 2 cores of CPU, commit c:" in made
    assert "| 199 of 200 (97.2 to 99.9 %) | -0.5 (-2.8 to +1.4) | +0.024 (+0.011 to +0.036)" in made
    assert "| 2.4e-04 (wrist) |" in made
    made = bench_docs.fill(block("eval_forks"), folder)
    assert "at 199 of 200 starts, the best of 4 forks of one state at 200;" in " ".join(
        made.split()
    )
    assert "the rest is bit-identical." in made
    for name in ("eval_node", "eval_delay"):
        made = bench_docs.fill(block(name), folder)
        assert "| +0.024 (+0.011 to +0.036) | 1 / 2 | 0.036 | 22.5 | 0.97 |" in made
    figure = tmp_path / "figure.png"
    draw_strategies(eval_result("a, replace, +1 ms", "a, temporal_ensemble, +1 ms"), figure)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="block 'gone': expected one of"):
        bench_docs.fill(block("gone"), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bf16", "{}", "expected field 'command'"),
        ("bf16", "", "expected JSON"),
        ("bf16", json.dumps(bench_result())[:-40], "expected JSON"),
        ("bf16", "[1]", "malformed .*expected an object, got a list"),
        ("bf16", bench_result() | {"cases": []}, "malformed|expected case 2 x 48 x 10"),
        ("bf16", bench_result() | {"cases": [line(Case(1, 48, 10), False)]}, "2 x 48 x 10, got"),
        ("bf16", bench_result() | {"cases": {"a": 1}}, "malformed"),
        ("bf16", bench_result() | {"command": "flashrt bench --preset tiny"}, "got preset tiny"),
        ("capsule", capsule_result("cpu"), "got the CPU"),
        ("precision", precision_result() | {"command": "x --narrow"}, "got narrow sizes"),
        ("precision", precision_result() | {"command": "x --place=cpu"}, "got the CPU"),
        ("precision", precision_result() | {"place": "cpu"}, "got the CPU"),
        ("precision", precision_result() | {"sizes": "narrow"}, "got narrow sizes"),
        ("precision", precision_result() | {"gpu": {}}, "got a machine whose GPU"),
        ("node", node_result(), "expected field 'gpu'"),
        ("soak", {k: v for k, v in soak_result().items() if k != "failures"}, "field 'failures'"),
        ("bf16", bench_result() | {"partial": "interrupted"}, "got a part of one: interrupted"),
    ],
)
def test_a_file_that_does_not_do_is_one_line(
    name: str, content: str | dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / ("node_pi05.json" if name == "node" else f"pi05_{name}.json")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    (first, *_) = (key for key, each in bench_docs.BLOCKS.items() if each.file == path.name)
    with pytest.raises(ToolError, match=message) as raised:
        bench_docs.fill(block(first), tmp_path)
    said = str(raised.value)
    assert "\n" not in said and path.name in said and "; make it by " in said


def test_a_tier_of_the_cpu_is_none_of_a_gpu(folder: Path) -> None:
    (folder / "eval_tabletop.json").write_text(json.dumps(eval_result("reference", "cpu fp8")))
    with pytest.raises(ToolError, match="got cpu fp8; make it by .* cuda:bf16,cuda:fp8"):
        bench_docs.fill(block("eval_gpu"), folder)


def test_a_run_without_a_trace_is_told_the_option(folder: Path) -> None:
    result = bench_result()
    for layers in ({}, None):
        if layers is None:
            del result["cases"][0]["layers"]
        else:
            result["cases"][0]["layers"] = layers
        (folder / "pi05_bf16.json").write_text(json.dumps(result))
        with pytest.raises(ToolError, match=r"layers.*make it by flashrt bench pi05 --trace"):
            bench_docs.fill(block("layers"), folder)
    result["cases"][0]["layers"] = {"expert": LAYER}
    (folder / "pi05_bf16.json").write_text(json.dumps(result))
    assert "One expert layer" in bench_docs.fill(block("layers"), folder)


def test_nothing_is_written_unless_all_is_made(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "checkout"
    for name in bench_docs.DOCUMENTS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text((ROOT / name).read_text())
    before = {name: (root / name).read_text() for name in bench_docs.DOCUMENTS}
    results = root / bench_docs.FOLDER
    for each in (folder, folder.parent / "cpu"):
        shutil.copytree(each, results.parent / each.name)
    monkeypatch.setattr(bench_docs, "ROOT", root)
    monkeypatch.setattr(sys, "argv", ["bench_docs.py"])
    whole = (results / "pi05_soak.json").read_text()
    (results / "pi05_soak.json").write_text(whole[:50])
    with pytest.raises(ToolError, match=r"pi05_soak.json: expected JSON"):
        bench_docs.main()
    assert {name: (root / name).read_text() for name in before} == before
    assert not any((root / figure).exists() for figure in bench_docs.FIGURES)
    (results / "pi05_soak.json").write_text(whole)
    assert bench_docs.main() == 0
    assert (root / "docs/benchmarks.png").is_file()
    assert all((root / name).read_text() != text for name, text in before.items())
    monkeypatch.setattr(sys, "argv", ["bench_docs.py", "--check"])
    assert bench_docs.main() == 0
    (root / "README.md").write_text(before["README.md"])
    assert bench_docs.main() == 1
    assert capsys.readouterr().out.endswith("README.md differs from its results\n")


def test_rows_that_are_missing_are_left_out() -> None:
    result = bench_result()
    (row,) = result["cases"][0]["peers"]
    result["cases"][0]["peers"] = [row | {"path": "eager", "samples": 2}]
    assert "LeRobot, graph" not in bench_docs.results(result)
    assert "LeRobot, eager" in bench_docs.results(result)
    assert " x (2 samples) |" in bench_docs.results(result)
    told = " ".join(bench_docs.headline(result).split())
    assert "takes 32 ms as it comes (3.1 times the call)." in told
    for rows in ([], [row | {"path": "another"}]):
        result["cases"][0]["peers"] = rows
        assert "LeRobot" not in bench_docs.results(result) + bench_docs.headline(result)


def test_overlaps_of_some_cases_only() -> None:
    result = bench_result()
    assert "3 x 200 x 50" not in bench_docs.overlap(result)
    alone = {"action": {"replay_ms": {"p50": 9.5}, "stage_ms": {"action": 4.2}}}
    result["cases"][1] |= {"overlap": "on", "other_overlaps": alone}
    made = bench_docs.overlap(result)
    assert "| views x tokens x horizon | on | off | action |" in made
    assert "| 3 x 200 x 50 | 9.00 / 4.00 |  | 9.50 / 4.20 |" in made
    for case in result["cases"]:
        case.pop("other_overlaps")
    assert bench_docs.overlap(result).startswith("Not measured yet")


def test_capsules_by_case() -> None:
    result = capsule_result()
    made = bench_docs.capsules(result)
    assert "|  | 2 x 48 x 10 |" in made and "| bytes | 10,034,176 |" in made
    assert "| snapshot, us | 35.0 / 39.5 |" in made
    assert "| rebuilt over restored | 1.00 |" in made
    assert "| trials with equal bits | 2 of 2 |" in made
    result["cases"][0] |= {"bit_exact": False, "equal": {"restored": 2, "forked": 1}}
    assert "| trials with equal bits | 1 of 2 |" in bench_docs.capsules(result)


def test_a_comparison_names_gpu_shape_and_sizes() -> None:
    made = bench_docs.precision(precision_result())
    assert "on an GPU at true" in made and "2 decisions of 2 x 48 x 10" in made


def test_the_text_names_times_and_ratios() -> None:
    result = bench_result()
    assert "in **9.0 ms**" in bench_docs.headline(result)
    told = " ".join(bench_docs.headline(result).split())
    assert "32 ms compiled and in one CUDA graph (3.1 times the call)" in told
    result["notes"] = ["Rows were taken out."]
    assert "\n\nRows were taken out.\n\n" in bench_docs.results(result)
    table = bench_docs.results(result)
    assert "| 2 x 48 x 10 | 9.00 / 9.10 / 9.20 | 10.00 / 10.10 / 10.20 |" in table
    assert "| 31.5 ms, 3.5 x |" in table
    assert "| 2 x 48 x 10 | 9.00 / 4.00 | 9.90 / 4.80 |" in bench_docs.overlap(result)


def test_a_layer_is_drawn_from_its_trace() -> None:
    drawn = draw_layer(LAYER).splitlines()
    assert drawn[0] == "norm_qkv_bf16       " + "." * 12 + "#" * 12 + " " * 36 + "    4.0 µs"
    # Resident from 4 us, on its own from 8 us, until 12 us.
    assert (
        drawn[1]
        == "product (cuBLASLt)  " + " " * 12 + "." * 12 + "#" * 12 + " " * 24 + "    4.0 µs"
    )
    assert drawn[2] == "geglu_bf16          " + " " * 42 + "#" * 18 + "    8.0 µs"


def test_episodes_say_whether_they_agree() -> None:
    cosine = {"min": 0.99958, "mean": 0.9999}
    found = {
        "chunks": 1,
        "cosines": [cosine],
        "gate": {"min_cosine": 0.9995, "passed": True},
        "precision": "bf16",
        "gpu": {"name": "GPU"},
        "commit": "c",
        "command": "compare",
    }
    assert "row 0.99958 (gate 0.9995: passed)" in bench_docs.episodes(found)
    found["gate"] = {"min_cosine": 0.9999, "passed": False}
    assert "(gate 0.9999: failed)" in bench_docs.episodes(found)
