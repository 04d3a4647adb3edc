"""The set-up of .venv: how it ends when it is interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(60)
def test_an_interrupted_set_up_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "environment.py", tmp_path / "tools")
    base: str = sys._base_executable  # type: ignore[attr-defined]
    # The whole group gets the signal, as from a terminal.
    with subprocess.Popen(
        [base, str(tmp_path / "tools" / "environment.py")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        limit = time.monotonic() + 30
        while not (tmp_path / ".venv").is_dir() and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    if "missing:" in err:
        pytest.skip("this machine lacks what the set-up needs")
    assert process.returncode == 130
    assert err == ""
    assert out.splitlines()[-1] == "[setup] interrupted; run make again"
    assert "Traceback" not in out
