"""The set-up of .venv: how it ends when it is interrupted, and what a GPU adds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import environment  # noqa: E402  (tools/ is no package)


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


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Callable[[], None]]:
    """The steps that a set-up would take, by name."""
    found: dict[str, Callable[[], None]] = {}
    monkeypatch.setattr(environment, "STATE", tmp_path)
    monkeypatch.setattr(environment, "step", lambda name, key, text, do: found.update({name: do}))
    monkeypatch.setattr(environment, "check_torch", lambda: None)
    return found


def test_a_gpu_gets_the_extra_of_the_project_beside_the_pins(
    steps: dict[str, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.set_up(dev=True, gpu=True)
    assert list(steps) == [
        "python", "packages", "dev-packages", "cuda-packages",
        "interfaces", "c-interface", "project",
    ]  # fmt: skip
    commands: list[list[str]] = []
    monkeypatch.setattr(environment, "call", lambda command, **_: commands.append(command))
    steps["cuda-packages"]()
    pip, check = commands
    assert {"requirements/runtime.txt", "requirements/dev.txt"} <= set(pip)
    assert [word.partition(">")[0] for word in pip[-3:]] == [
        "cuda-bindings", "nvidia-cublas", "nvmath-python"
    ]  # fmt: skip
    assert check[-1] == "check"


def test_without_a_gpu_nothing_of_it_is_installed(steps: dict[str, Callable[[], None]]) -> None:
    environment.set_up(dev=True)
    assert "cuda-packages" not in steps and "dev-packages" in steps


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ("2.13.0+cu130 13.0", ""),
        ("2.13.0+cpu None", r"got 2.13.0.cpu \(CUDA None\); install"),
        ("2.9.0 12.8", r"CUDA 13, got 2.9.0 \(CUDA 12.8\)"),
        ("", "got none"),
    ],
)
def test_a_torch_that_cannot_use_the_gpu_is_refused(
    told: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho '{told}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(environment, "VENV", tmp_path)
    if refused:
        with pytest.raises(SystemExit, match=refused) as raised:
            environment.check_torch()
        assert "\n" not in str(raised.value)
    else:
        environment.check_torch()


def test_the_gpu_check_runs_in_the_environment_that_it_sets_up() -> None:
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "gpu-check"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=True,
    )
    first, _, *ran = done.stdout.splitlines()
    assert first.endswith("tools/environment.py --gpu")
    tools = ("-m pytest -q -m gpu test", "tools/check_gpu.py", "tools/soak.py")
    for tool, line in zip(tools, ran, strict=True):
        assert f'PATH="{ROOT}/.venv/bin:' in line and f" python {tool}" in line
