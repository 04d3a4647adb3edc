"""What failed once is tried again and listed, whatever came of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[1] / "tools" / "second_try.py"
TESTS = """
from pathlib import Path

def test_well():
    pass

def test_late():
    if not Path("seen").exists():
        Path("seen").touch()
        assert False

{more}
"""


def tried(folder: Path, more: str = "") -> tuple[int, list[str]]:
    """Exit status, and the lines behind pytest's own."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "some").mkdir()
    (folder / "some" / "test_it.py").write_text(TESTS.format(more=more))
    command = [sys.executable, str(TOOL), "-p", "no:xdist", "some/"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    lines = ended.stdout.splitlines()
    started = [at for at, line in enumerate(lines) if line.startswith("These failed at first")]
    return ended.returncode, lines[started[-1] :] if started else []


def test_a_test_that_passes_then_is_listed_last(tmp_path: Path) -> None:
    status, (head, listed, _) = tried(tmp_path)
    assert status == 0 and head.endswith("(1):")
    assert listed == "  passed then  some/test_it.py::test_late"


def test_one_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "seen").touch()
    status, (_, listed, _) = tried(tmp_path, "def test_wrong():\n    assert False\n")
    assert status == 1 and listed == "  FAILED AGAIN  some/test_it.py::test_wrong"


def test_without_a_failure_nothing_is_added(tmp_path: Path) -> None:
    (tmp_path / "seen").touch()
    assert tried(tmp_path) == (0, [])
