"""Documents and result files say the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import bench_docs  # noqa: E402  (tools/ is no package)

from flashrt_core.bench.report import describe_run  # noqa: E402
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
    return describe_run("abc", {"name": "GPU", "driver_version": "580"}, cases)


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
    }


def soak_result() -> dict[str, Any]:
    """A soak in which nothing failed."""
    times = {"p50": 0.36, "p95": 0.37, "p99": 0.38, "max": 0.4}
    numbers = {"decisions": 100_000, "repeats": 20, "different": 0, "seconds": 84.0}
    memory = {"host_bytes": [7, 7], "device_bytes": [9, 9]}
    told = {"failures": [], "commit": "c", "command": "python tools/soak.py"}
    return {"replay_ms": times} | numbers | memory | told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A result folder with every file."""
    made = {"bf16": bench_result(), "precision": precision_result(), "soak": soak_result()}
    for name, result in made.items():
        (tmp_path / f"pi05_{name}.json").write_text(json.dumps(result))
    return tmp_path


def test_documents_hold_what_the_files_say() -> None:
    for name in bench_docs.DOCUMENTS:
        text = (ROOT / name).read_text()
        assert bench_docs.fill(text, ROOT / bench_docs.RESULTS) == text, (
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


def test_without_files_documents_stay(tmp_path: Path) -> None:
    text = "<!-- from results: headline -->\nold\n<!-- end -->"
    assert bench_docs.fill(text, tmp_path) == text
    with pytest.raises(SystemExit, match="block 'gone'"):
        bench_docs.fill(text.replace("headline", "gone"), tmp_path)


def test_the_text_names_times_and_ratios() -> None:
    result = bench_result()
    assert "in **9.0 ms**" in bench_docs.headline(result)
    assert "32 ms compiled and in one CUDA graph (3.5 times)" in bench_docs.headline(result)
    table = bench_docs.results(result)
    assert "| 2 x 48 x 10 | 9.00 / 9.10 / 9.20 | 10.00 / 10.10 / 10.20 |" in table
    assert "| 31.5 ms, 3.5 x |" in table
    assert "| 2 x 48 x 10 | 9.00 / 4.00 | 9.90 / 4.80 |" in bench_docs.overlap(result)


def test_a_layer_is_drawn_from_its_trace() -> None:
    drawn = bench_docs._draw_layer(LAYER).splitlines()
    assert drawn[0] == "norm_qkv_bf16       " + "." * 12 + "#" * 12 + " " * 36 + "    4.0 µs"
    # Resident from 4 us, on its own from 8 us, until 12 us.
    assert (
        drawn[1]
        == "product (cuBLASLt)  " + " " * 12 + "." * 12 + "#" * 12 + " " * 24 + "    4.0 µs"
    )
    assert drawn[2] == "geglu_bf16          " + " " * 42 + "#" * 18 + "    8.0 µs"
