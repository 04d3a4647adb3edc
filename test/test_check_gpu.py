"""The GPU checks' own judgement: what they select, and what they take for clean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import check_gpu
import toolbox
from toolbox import ToolError

CLEAN = "8 passed in 3.1s\n========= ERROR SUMMARY: 0 errors\n"
RACE = "8 passed\n========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"
WARNING = (
    "========= Warning: Race reported between Write access at attention_bf16_cluster+0x1d0\n"
    "8 passed\n========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n"
)


def test_every_beginning_selects_a_test() -> None:
    chosen = check_gpu.select(check_gpu.collect())
    assert len(chosen) >= len(check_gpu.PICKED)
    with pytest.raises(ToolError, match="no test begins with 'test_gone"):
        check_gpu.select(chosen, ("test_gone[1]",))


def test_a_missing_pytest_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolbox, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"\Apackages: expected pytest.*make setup-gpu[^\n]*\Z"):
        check_gpu.collect()


def test_a_pytest_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_gpu, "FILES", ("test/kernels/test_gone.py",))
    with pytest.raises(ToolError, match=r"pytest to end with 0, got 4: .*test_gone[^\n]*\Z"):
        check_gpu.collect()


@pytest.mark.parametrize(
    ("output", "code", "clean", "errors"),
    [
        (CLEAN, 0, True, 0),
        (CLEAN, 1, False, 0),
        (CLEAN.replace("8", "7"), 0, False, 0),
        (CLEAN.replace("0 errors", "3 errors"), 9, False, 3),
        (RACE, 9, False, 2),
        (WARNING, 9, True, 0),
        (WARNING.replace("_cluster", ""), 9, False, 0),
        ("8 passed\nended after 300 s", -9, False, None),
    ],
)
def test_only_a_whole_run_without_findings_is_clean(
    output: str, code: int, clean: bool, errors: int | None
) -> None:
    finding = check_gpu.read_output("memcheck", output, code, 8, 4.0)
    assert (finding.clean, finding.errors) == (clean, errors)
    assert bool(finding.output) != clean
