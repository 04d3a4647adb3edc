"""What is measured on and of: a GPU that is idle, several plans, their fidelity and rooflines."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flashrt_core import load
from flashrt_core.bench import command, machine
from flashrt_core.bench.capsule_command import CapsuleBenchOptions, run_capsule_bench
from flashrt_core.bench.case import Case
from flashrt_core.bench.command import BenchOptions, run_bench
from flashrt_core.bench.roofline import CEILINGS, floor_ms
from flashrt_core.contract import ShapeKey
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.errors import DeviceError, OptionError
from flashrt_core.policies import find_policy
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.policies.pi05.config import make_config
from flashrt_core.policies.pi05.sites import SITES
from flashrt_core.precision import Format, Precision
from flashrt_core.scales import NoCalibrationError
from test.bench.test_bench import HEAVY, LIGHT, line, plan


@pytest.mark.parametrize(("used", "busy"), [("100 %", True), ("6 %", True), ("5 %", False)])
def test_a_busy_gpu_is_not_measured_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: str, busy: bool
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{used}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if not busy:
        machine.require_idle_gpu()
        return
    for measure in (run_bench_once, run_capsules_once):
        with pytest.raises(DeviceError, match=f"idle: at most 5 %.*got {used}.*end the other"):
            measure()


def run_bench_once() -> None:
    run_bench(BenchOptions(cases=(LIGHT,)), Console(file=io.StringIO()))


def run_capsules_once() -> None:
    run_capsule_bench(CapsuleBenchOptions(cases=(LIGHT,)), Console(file=io.StringIO()))


def test_without_nvidia_smi_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    machine.require_idle_gpu()


def plan_line(bench: Any, options: BenchOptions, cases: Sequence[Case]) -> list[dict[str, Any]]:
    name = options.plan.precision
    return [
        line(case, False) | {"precision": name, "fingerprint": f"{case} {name}"} for case in cases
    ]


def test_plans_are_measured_in_one_run_and_fidelity_goes_to_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "_measure", plan_line)
    monkeypatch.setattr(command, "check_loadable", lambda options: None)
    monkeypatch.setattr(machine, "gpu_state", dict)
    found = {"cosine_mean": 0.9996, "cosine_min_row": 0.998, "pairs": 64}
    report = tmp_path / "fidelity.json"
    report.write_text(json.dumps({"fingerprint": "2x48x10 fp8", "fidelity": found}))
    options = BenchOptions(plan(precision="fp8, bf16,fp8"), cases=(LIGHT, HEAVY), fidelity=report)
    told = io.StringIO()
    cases = run_bench(options, Console(file=told, width=200))["cases"]
    names = [(case["horizon"], case["precision"]) for case in cases]
    assert names == [(10, "fp8"), (10, "bf16"), (50, "fp8"), (50, "bf16")]
    assert [case.get("fidelity") for case in cases] == [found, None, None, None]
    assert "2x48x10 fp8" in told.getvalue() and "2x48x10 bf16" in told.getvalue()


def test_a_calibration_that_is_missing_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(load, "open_device", lambda *_, **__: CpuDevice())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = BenchOptions(plan(precision="bf16,fp8"), cases=(LIGHT, HEAVY))
    with pytest.raises(NoCalibrationError, match=r"--precision fp8 .*--horizon 50[^\n]*\Z"):
        run_bench(options, Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (None, "No such file"),
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        ('{"plans": 3}', "TypeError"),
        ('{"fingerprint": "f"}', "'fidelity'"),
    ],
)
def test_what_is_no_report_is_refused_before_measuring(
    text: str | None, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("measured"))
    path = tmp_path / "r.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError, match=rf"fidelity.*JSON of flashrt qualify.*{wrong}[^\n]*\Z"):
        run_bench(BenchOptions(cases=(LIGHT,), fidelity=path), Console(file=io.StringIO()))


@pytest.mark.usefixtures("measured")
def test_a_report_on_another_plan_is_told_when_the_file_is_there(tmp_path: Path) -> None:
    report, output = tmp_path / "f.json", tmp_path / "r.json"
    report.write_text(json.dumps({"fingerprint": "another", "fidelity": {}}))
    options = BenchOptions(cases=(LIGHT,), fidelity=report, output=output)
    with pytest.raises(OptionError, match="a plan that was measured.*another.*--prompt-buckets"):
        run_bench(options, Console(file=io.StringIO()))
    assert "fidelity" not in json.loads(output.read_text())["cases"][0]


@pytest.mark.parametrize(
    ("form", "milliseconds"),
    # Summed by hand from the sizes and the ceilings: 790 TFLOP/s of bf16, 4.3 TB/s.
    [
        ("bf16", (0.557, 2.710, 1.466)),
        ("fp8", (0.289, 1.383, 0.742)),
        ("i8a16", (0.557, 2.7, 0.742)),
    ],
)
def test_the_roofline_follows_the_plan(form: str, milliseconds: tuple[float, ...]) -> None:
    sites = {name: Format(form) for name in SITES}
    shape = ShapeKey(views=2, prompt_tokens=48, horizon=10, steps=10)
    ceiling = CEILINGS["NVIDIA H200"]
    products = POLICY.measures.products(make_config("base"), shape)
    floor = floor_ms(products, ceiling, Precision(Format.BF16, sites))
    assert list(floor) == ["vision", "prefix", "action"]
    assert list(floor.values()) == pytest.approx(milliseconds, rel=0.02)


@pytest.mark.parametrize(
    ("policy", "steps", "layers"),
    [("pi05", 10, 180), ("groot_n17", 4, 128), ("lingbot_va", 20, 1500)],
)
def test_layers_of_the_action_stage(policy: str, steps: int, layers: int) -> None:
    """LingBot-VA's ``steps`` are those of its video; its actions have 50 of their own."""
    found = find_policy(policy)
    assert found.measures.action_layers(found.config("base"), steps) == layers
