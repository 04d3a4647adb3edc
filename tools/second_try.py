"""Runs tests, those that failed once more and alone, and lists last which ones needed that.

    python tools/second_try.py -n 2 --dist loadscope -m timed test/replay test/launch test/ros

For tests that are held to times: what was late on a busy machine passes alone, a defect mostly
fails twice. Mostly: one that comes rarely does not, so every test of the list is to be looked at,
and what it said the first time stands above.

Arguments are pytest's; those that are there as paths are what is tried again. The exit status is
pytest's, of the second try where there was one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_FAILED = 1  # pytest's status where tests did; any other ends it
#: Where pytest notes them, below the folder that it runs in.
_NOTED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: Sequence[str]) -> int:
    """Exit status of the last try."""
    folders = [each for each in arguments if Path(each).exists()]
    status = _pytest(arguments)
    if status != _FAILED:
        return status
    first = _failed(folders)
    status = _pytest(["--lf", "--lfnf", "none", *folders])
    again = _failed(folders)
    print(f"\nThese failed at first and were tried again, alone ({len(first)}):")
    for name in first:
        print(f"  {'FAILED AGAIN' if name in again else 'passed then'}  {name}")
    print("One that passed then was late on a busy machine, or has a defect that comes rarely.")
    return status


def _pytest(arguments: Sequence[str]) -> int:
    with subprocess.Popen([sys.executable, "-m", "pytest", "-q", *arguments]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # pytest was told as well, and ends in order
                continue


def _failed(folders: Sequence[str]) -> list[str]:
    """What pytest noted of those folders."""
    below = tuple(folder.rstrip("/") + "/" for folder in folders)
    noted = json.loads(_NOTED.read_text()) if _NOTED.exists() else {}
    return sorted(name for name in noted if name.startswith(below))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
