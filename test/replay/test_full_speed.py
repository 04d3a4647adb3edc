"""A replay at no pace of its own: the player waits for the node, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .test_node_runs import run_replay

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]


@pytest.mark.timed
def test_as_fast_as_the_node_follows(
    record: Callable[..., Path],
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, out, err = run_replay(
        capfd, monkeypatch, record(seconds=6.0), "--params", parameter_path, "--rate", "max",
        "--out", tmp_path,
    )  # fmt: skip
    assert code == 0, err
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["rate"] == "max" and "x the recorded timing" in out
    # 60 are due. The player waits for each, so that speed costs none of them.
    assert report["decisions"] >= 50 and report["deadline_missed"] <= 3
    # With a pace it would be no more than 1; a busy machine makes it little more.
    assert report["speed"] > 1.05 and report["player"]["seconds"] < 5.8
    assert report["player"]["sent"] == {"base": 180, "wrist": 180, "joints": 600}
    lines = (tmp_path / "replay.csv").read_text().splitlines()
    assert len(lines) >= report["decisions"] + 1 and lines[0].endswith("jump.joint_7")
