"""The node under load, as ``flashrt bench node`` runs it, and what makes it fail."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.bench.report import Limits, checks
from flashrt_ros.statistics import Histogram

pytestmark = pytest.mark.ros
GENEROUS = ["--max-joints-lost", "20", "--max-cpu", "150", "--max-overhead", "400"]
GENEROUS += ["--max-growth", "30"]


def bench(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flashrt_ros.cli", "bench", "node", "--output", str(output)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=100
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("bench") / "node.json"
    done = bench(output, "--seconds", "4", *GENEROUS)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_a_run_says_what_was_sent_and_what_became_of_it(report: dict[str, Any]) -> None:
    assert set(report["inputs"]) == {"front", "left", "right", "joints"}
    for name, values in report["inputs"].items():
        rate = 100 if name == "joints" else 30
        assert values["sent"] >= rate * 5, name
        assert values["lost"] == values["sent"] - values["received"]
        assert values["received"] == values["accepted"] + values["refused"]
        assert 0 < values["oldest_used_s"] <= values["max_age_s"]
    decisions = report["decisions"]
    assert decisions["made"] >= 40 and decisions["made"] == decisions["received"]
    assert decisions["rate_hz"] == pytest.approx(10.0, abs=1.5)
    assert report["inputs"]["joints"]["used"] == decisions["made"]
    cpu = report["cpu"]
    assert 0 < cpu["policy_percent"] < cpu["process_percent"]
    assert cpu["outside_percent"] == pytest.approx(
        cpu["process_percent"] - cpu["policy_percent"], abs=0.02
    )
    overhead, latency = report["overhead_ms"], report["latency_ms"]
    parts = latency["ingest"]["p50"] + latency["publish"]["p50"]
    assert parts < overhead["p50"] <= overhead["p95"] <= overhead["p99"]
    assert 50 < report["memory_mb"]["start"] < 2000
    for key in ("commit", "command", "machine", "versions", "limits"):
        assert report[key], key
    assert all(check["passed"] for check in report["checks"])


BROKEN: dict[str, tuple[tuple[Any, ...], Any]] = {
    "joints: oldest at a decision, s": (("inputs", "joints", "oldest_used_s"), 0.101),
    "joint states lost or refused": (("inputs", "joints", "accepted"), 1),
    "chunks lost or not finite": (("decisions", "not_finite"), 1),
    "no decision in the run": (("decisions", "made"), 0),
    "CPU outside the policy, % of a core": (("cpu", "outside_percent"), 150.1),
    "overhead p99, ms": (("overhead_ms", "p99"), math.inf),
    "memory growth, MB": (("memory_mb", "growth"), math.nan),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_limit_can_fail_alone(report: dict[str, Any], name: str) -> None:
    broken = copy.deepcopy(report)
    path, value = BROKEN[name]
    target = broken
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    found = [check.name for check in checks(broken, Limits(**report["limits"])) if not check.passed]
    assert found == [name]


def test_a_limit_that_does_not_hold_is_the_exit_status(tmp_path: Path) -> None:
    output = tmp_path / "node.json"
    done = bench(output, "--seconds", "1", "--size", "64x48", "--max-overhead", "0.001")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED: overhead p99, ms" in done.stdout
    failed = [c["name"] for c in json.loads(output.read_text())["checks"] if not c["passed"]]
    assert "overhead p99, ms" in failed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--seconds", "0"), "option '--seconds'"),
        (("--size", "640"), "option '--size'"),
        (("--camera-hz", "0"), "option '--camera-hz'"),
        (("--params", os.devnull), "parameter file '/dev/null'"),
    ],
)
def test_options_that_do_not_do_are_one_line(
    tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    done = bench(tmp_path / "node.json", *arguments)
    assert done.returncode == 2
    assert text in done.stderr and "Traceback" not in done.stderr


def test_percentiles_of_a_histogram_are_never_too_small() -> None:
    values = [0.3 * k for k in range(1, 1001)]
    histogram = Histogram(0.1, 5000)
    for value in values:
        histogram.add(value)
    for percent in (50, 95, 99):
        exact = sorted(values)[math.ceil(len(values) * percent / 100) - 1]
        assert exact - 1e-9 <= histogram.percentile(percent) <= exact + 0.1 + 1e-9
    assert histogram.maximum == pytest.approx(300.0)
    few = Histogram(0.1, 10)
    assert math.isnan(few.percentile(50))
    few.add(-1.0)
    assert few.percentile(50) == 0.0
    few.add(7.0)
    assert few.percentile(99) == math.inf and few.maximum == 7.0
