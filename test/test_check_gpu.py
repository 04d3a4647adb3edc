"""The GPU checks' own judgement: what they select, and what they take for clean."""

from __future__ import annotations

import subprocess
import sys
import time
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


def test_racecheck_leaves_out_only_what_is_named() -> None:
    left_out = set(check_gpu.picked("memcheck")) - set(check_gpu.picked("racecheck"))
    assert left_out == set(check_gpu.NOT_RACED)
    assert check_gpu.picked("memcheck") == check_gpu.PICKED


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


@pytest.mark.parametrize("ended", ["late", "interrupted"])
def test_no_test_goes_on_when_the_tool_is_ended(
    ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    sanitizer = tmp_path / "sanitizer"  # starts a process of its own, like the true one
    sanitizer.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {child}\nwait\n")
    sanitizer.chmod(0o755)
    waits = subprocess.Popen.communicate

    def communicate(self: subprocess.Popen[str], timeout: float | None = None) -> tuple[str, str]:
        if timeout is None:
            return waits(self)
        while not child.exists() or not child.read_text().strip():
            time.sleep(0.01)
        if ended == "interrupted":
            raise KeyboardInterrupt
        return waits(self, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    if ended == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            check_gpu.run("memcheck", str(sanitizer), [], 0.2)
    else:
        assert "ended after 0 s" in check_gpu.run("memcheck", str(sanitizer), [], 0.2).output
    number = int(child.read_text())
    state = Path(f"/proc/{number}/stat")
    for _ in range(500):  # until the kernel has ended it; init may leave it a zombie for a while
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] in "ZX":
            return
        time.sleep(0.01)
    pytest.fail(f"process {number} goes on")
