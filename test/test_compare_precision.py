"""The precision comparison's own judgement, and the whole of it at small sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "test")]

import compare_precision  # noqa: E402  (tools/ is no package)


def outputs(error: float) -> compare_precision.Outputs:
    """Actions and a cache of two layers, the second with an error."""
    actions, cache = np.ones((1, 3, 4), np.float32), np.ones((1, 2, 5, 4), np.float32)
    cache[:, 1, :, 0] += error
    actions[:, 1, 0] += error
    return {"actions": actions, "keys": cache, "values": cache.copy()}


def test_errors_are_told_by_layer() -> None:
    rows = compare_precision.compare(outputs(0.2), outputs(0.0))
    assert rows["keys"]["relative_by_layer"] == pytest.approx([0.0, 0.1])
    assert rows["actions"]["min_cosine"] == pytest.approx(4.2 / (2 * (3 + 1.44) ** 0.5))


@pytest.mark.parametrize(
    ("ours", "plain", "failed"),
    [
        (0.001, 0.002, set()),
        (0.003, 0.002, {"rms error of actions", "rms error of keys", "rms error of values"}),
        (0.2, 0.3, {"action cosine"}),
    ],
)
def test_gates(ours: float, plain: float, failed: set[str]) -> None:
    exact = outputs(0.0)
    rows: dict[str, Any] = {
        name: compare_precision.compare(outputs(error), exact)
        for name, error in (("cuda", ours), ("lerobot_rope", plain), ("reference_cuda", 9.0))
    }
    gates = list(compare_precision.judge("gaussian", rows))
    assert len(gates) == 4
    assert {name.partition(": ")[2] for name, *_, passed in gates if not passed} == failed


@pytest.mark.slow
def test_the_command_at_narrow_sizes(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "compare_precision.py"), "--narrow"]
    command += ["--place", "cpu", "--decisions", "1", "--tokens", "8", "--views", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed  outliers, cpu: action cosine" in done.stdout
