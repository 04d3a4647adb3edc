"""The example program: embeds Python, then drives from a thread of its own.

Continuous integration has what it needs: `make test` refuses to begin without g++ and python3-dev.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from test.abi.conftest import ROOT


def embed_flags() -> list[str]:
    """What a program needs to embed this Python."""
    setting = sysconfig.get_config_var
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        pytest.skip("no Python headers (python3-dev) on this machine")
    folder, version = setting("LIBDIR"), setting("LDVERSION")
    libraries = f"{setting('LIBS') or ''} {setting('SYSLIBS') or ''}".split()
    return [
        f"-I{headers}", f"-L{folder}", f"-Wl,-rpath,{folder}", f"-lpython{version}", *libraries
    ]  # fmt: skip


@pytest.fixture(scope="module")
def program(
    compiler: list[str], library_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The example, compiled as the document says."""
    path, folder = tmp_path_factory.mktemp("embed") / "embed", library_path.parent
    words = [*compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    words += [f"-I{ROOT / 'csrc' / 'include'}", str(ROOT / "examples" / "embed" / "main.cpp")]
    words += ["-o", str(path), f"-L{folder}", f"-Wl,-rpath,{folder}", "-lflashrt", *embed_flags()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


def embed(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *(path for path in sys.path if path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHOME": sys.base_prefix}
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_it_drives_saves_and_resumes(program: Path) -> None:
    done = embed(program, "cpu", "tiny", "3")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["bit_exact"] and said["stale_refused"]
    # One in Python, three of its own, and the action of the continuation.
    assert (said["decisions"], said["decisions_in_python"]) == (3, 5)
    assert min(said[name] for name in ("decide_us", "snapshot_us", "restore_us")) > 0


def test_what_python_refuses_ends_it(program: Path) -> None:
    done = embed(program, "cpu", "enormous")
    assert done.returncode == 2 and "embed: Python failed" in done.stderr
    assert "preset" in done.stderr
