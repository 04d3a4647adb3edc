"""What a measurement was made on: GPU, driver, clocks, versions, commit."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = (
    "torch",
    "numpy",
    "cuda-bindings",
    "nvmath-python",
    "nvidia-cublas",
    "triton",
    "lerobot",
    "transformers",
)
_QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit"


def versions() -> dict[str, str]:
    """Installed versions of what matters here; packages that are missing are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def gpu_state() -> dict[str, str]:
    """Name, driver, clocks and power limit of the first GPU, as nvidia-smi tells; else empty."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}  # no such tool: the numbers stand without it
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(_QUERY.split(","), values, strict=False))


def command_line(program: str) -> str:
    """The command that runs, to repeat it; of files that it writes the name alone.

    Args:
        program: what stands in front of the arguments.
    """
    given = list(sys.argv[1:])
    for index, argument in enumerate(given[:-1]):
        if argument in ("-o", "--output", "--figure"):
            given[index + 1] = Path(given[index + 1]).name
    return f"{program} {shlex.join(given)}".strip()


def commit() -> str:
    """The commit of the checkout that runs, with "-dirty" when files differ.

    A tree that was copied without its history is named by FLASHRT_COMMIT; else "unknown".
    """
    if named := os.environ.get("FLASHRT_COMMIT"):
        return named
    root = Path(__file__).resolve().parent.parent.parent
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        return name + ("-dirty" if _git(root, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(root: Path, *args: str) -> str:
    command = ["git", "-C", str(root), *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=True
    ).stdout.strip()
