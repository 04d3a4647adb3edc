"""The node under load, as ``flashrt bench node`` runs it, and what makes it fail."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("rclpy")

from typer.testing import CliRunner

from flashrt_core.errors import OptionError
from flashrt_ros.bench.report import Limits, checks
from flashrt_ros.cli import app
from flashrt_ros.statistics import Histogram

pytestmark = [pytest.mark.ros, pytest.mark.timed]
Run = tuple[subprocess.CompletedProcess[str], dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of the command; no node keeps the limit of its overhead, every node the others."""
    output = tmp_path_factory.mktemp("bench") / "node.json"
    command = [sys.executable, "-m", "flashrt_ros.cli", "bench", "node", "--output", str(output)]
    command += ["--seconds", "2", "--max-joints-lost", "50", "--max-cpu", "150"]
    command += ["--max-overhead", "0.001", "--max-growth", "40"]
    command += ["--set", "camera.left.max_age_s:=0.25", "--set", "prompt:=wave"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert output.is_file(), done.stdout + done.stderr
    return done, json.loads(output.read_text())


@pytest.fixture(scope="module")
def report(run: Run) -> dict[str, Any]:
    return run[1]


def test_a_run_says_what_was_sent_and_what_became_of_it(report: dict[str, Any]) -> None:
    assert set(report["inputs"]) == {"front", "left", "right", "joints"}
    for name, values in report["inputs"].items():
        rate = 100 if name == "joints" else 30
        assert values["sent"] >= rate * 2, name
        assert values["lost"] == values["sent"] - values["received"]
        assert values["received"] == values["accepted"] + values["refused"]
        assert 0 < values["oldest_used_s"] <= values["max_age_s"]
    assert report["inputs"]["left"]["max_age_s"] == 0.25, "set on the command line"
    decisions = report["decisions"]
    assert decisions["made"] >= 15 and decisions["made"] == decisions["received"]
    assert decisions["rate_hz"] == pytest.approx(10.0, abs=1.5)
    assert report["inputs"]["joints"]["used"] >= decisions["made"]
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
    limits = Limits(**report["limits"] | {"overhead_ms": 400.0})
    assert [check.name for check in checks(report, limits) if not check.passed] == []
    assert [check.name for check in checks(broken, limits) if not check.passed] == [name]


def test_a_limit_that_does_not_hold_is_the_exit_status(run: Run) -> None:
    done, report = run
    assert done.returncode == 1 and "FAILED: overhead p99, ms\n" in done.stdout
    assert [c["name"] for c in report["checks"] if not c["passed"]] == ["overhead p99, ms"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--seconds", "0"), "option '--seconds'"),
        (("--size", "640"), "option '--size'"),
        (("--camera-hz", "0"), "option '--camera-hz'"),
        (("--params", os.devnull), "parameter file '/dev/null'"),
        (("--set", "rate_hz"), "'--set': expected NAME:=VALUE, got 'rate_hz'"),
        (("--set", "rate_hz:=[1"), "'--set', value of rate_hz: expected YAML, got '[1'"),
        (("--set", "rate_hz:=0.0"), "'rate_hz': expected more than 0"),
        (("--set", "ratehz:=3.0"), "did you mean 'rate_hz'?"),
        (("--set", "rate_hz:=fast"), "parameter 'rate_hz': expected float, got 'fast'"),
        (("--set", "zzz:=1.0"), "parameter 'zzz': expected one of docs/parameters.md, got none"),
    ],
)
def test_options_that_do_not_do_are_refused(arguments: tuple[str, ...], text: str) -> None:
    done = CliRunner().invoke(app, ["bench", "node", *arguments])
    assert isinstance(done.exception, OptionError) and text in str(done.exception)


def test_percentiles_of_a_histogram_are_never_too_small() -> None:
    values = [0.3 * k for k in range(1, 1001)]
    histogram = Histogram(0.1, 5000)
    for value in values:
        histogram.add(value)
    for percent in (50, 95, 99):
        exact = sorted(values)[math.ceil(len(values) * percent / 100) - 1]
        assert exact - 1e-9 <= histogram.percentile(percent) <= exact + 0.1 + 1e-9
    assert histogram.maximum == pytest.approx(300.0)
    assert histogram.percentile(100) == histogram.maximum
    few = Histogram(0.1, 10)
    assert math.isnan(few.percentile(50))
    few.add(-1.0)
    assert few.percentile(50) == 0.0
    few.add(7.0)
    assert few.percentile(99) == math.inf and few.maximum == 7.0
