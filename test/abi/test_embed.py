"""The example program: embeds Python, then drives from a thread of its own.

Built and run with the commands of the document, as they stand there. Continuous integration has
what they need: `make test` refuses to begin without g++ and python3-dev.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from test.abi.conftest import ROOT

# What a shell that has just been opened does not have.
ACTIVE = ("FLASHRT_LIBRARY", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
MARK = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"


def documented() -> list[str]:
    """Commands of the document: activate, make the library, the program, run it."""
    text = (ROOT / "docs" / "c_interface.md").read_text()
    block = next(b for b in text.split("```")[1::2] if "build_abi.py" in b)
    commands = block.strip().replace("\\\n", " ").splitlines()
    assert [line.split()[0] for line in commands] == ["source", "python", "g++", "PYTHONPATH=."]
    return commands


def shell() -> dict[str, str]:
    """Environment of a shell in which nothing is active, with this Python's own python3-config."""
    environment = {k: v for k, v in os.environ.items() if k not in (*ACTIVE, MARK)}
    folders = [sysconfig.get_config_var("BINDIR"), *os.environ["PATH"].split(os.pathsep)]
    return environment | {"PATH": os.pathsep.join(folders)}


def bash(checkout: Path, *commands: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-ec", "\n".join(commands)],
        cwd=checkout,
        env=shell(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def done(checkout: Path, *commands: str) -> tuple[int, str, str]:
    """Status, output and errors of commands."""
    with bash(checkout, *commands) as process:
        out, err = process.communicate(timeout=200)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def checkout(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a virtual environment, where the library and the program were made."""
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        pytest.skip("no Python headers (python3-dev) on this machine")
    if not (Path(sys.prefix) / "bin" / "activate").is_file():
        pytest.skip("these tests do not run in a virtual environment")
    folder = tmp_path_factory.mktemp("embed") / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "lib")
    for name in ("csrc", "examples", "flashrt_core", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / ".venv").symlink_to(sys.prefix)
    status, _, err = done(folder, *documented()[:-1])
    assert status == 0, err
    return folder


def embed(checkout: Path, *arguments: str) -> tuple[int, str, str]:
    """Run as the document says, with other arguments."""
    activate, *_, run = documented()
    return done(checkout, activate, " ".join([*run.split()[:2], *arguments]))


def test_the_documented_commands_drive_save_and_resume(checkout: Path) -> None:
    activate, *_, run = documented()
    status, out, err = done(checkout, activate, run)
    assert (status, err) == (0, "")
    said = json.loads(out)
    assert said["bit_exact"] and said["stale_refused"]
    # One in Python, five of its own, and the action of the continuation.
    assert (said["decisions"], said["decisions_in_python"]) == (5, 7)
    assert min(said[name] for name in ("decide_us", "snapshot_us", "restore_us")) > 0


def test_it_compiles_without_warnings(compiler: list[str], checkout: Path) -> None:
    words = [*compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    words += ["-Icsrc/include", f"-I{sysconfig.get_path('include')}", "examples/embed/main.cpp"]
    built = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["cpu", "enormous"], "embed: OptionError: option 'preset'"),
        (
            ["cpu", "tiny", "abc"],
            "embed: decisions: expected a number from 1 to 1000000, got",
        ),
        (["cpu", "tiny", "99999999999"], "to 1000000, got '99999999999'"),
        (["cpu", "tiny", "-3"], "to 1000000, got '-3'"),
        (["cpu", "tiny", "3x"], "to 1000000, got '3x'"),
        (["cpu", "tiny", "3", "4"], "embed: expected at most three arguments"),
    ],
)
def test_what_is_wrong_is_one_line(checkout: Path, arguments: list[str], line: str) -> None:
    status, out, err = embed(checkout, *arguments)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert line in err


def test_without_an_environment_the_line_says_what_python_lacks(checkout: Path) -> None:
    status, _, err = done(checkout, "PYTHONPATH=none build/embed")
    assert status == 2 and err.count("\n") == 1
    assert "embed: ModuleNotFoundError: No module named" in err
    assert "activate the virtual environment" in err and "PYTHONPATH=." in err


def test_ctrl_c_ends_it(checkout: Path) -> None:
    activate, *_, run = documented()
    path, program = run.split()[:2]
    with bash(checkout, activate, f"export {path}", f"exec {program} cpu tiny 1000000") as process:
        time.sleep(8.0)  # it drives by then
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(10.0) == -signal.SIGINT
        finally:
            process.kill()
