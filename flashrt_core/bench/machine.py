"""What a measurement was made on: GPU, driver, clocks, versions, commit."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

from ..errors import DeviceError

#: Options in one word with a file that is written, or with an absolute path.
_WRITTEN = re.compile(r"(--(?:output|figure)=|-o|--[a-z-]+=(?=/))(.+)", re.DOTALL)
#: What the devices advise, and what is no remedy where only a GPU is measured.
_USE_CPU = "set device to 'cpu'"
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
_BUSY, _IDLE_PERCENT = "utilization.gpu", 5


@contextmanager
def gpu_only(instead: str) -> Iterator[None]:
    """Lets a lack of a GPU be told with the advice that fits a command which has no other device.

    Args:
        instead: what can be done without a GPU.
    """
    try:
        yield
    except DeviceError as error:
        if error.remedy is None or _USE_CPU not in error.remedy:
            raise
        raise error.reworded(remedy=error.remedy.replace(_USE_CPU, instead)) from error


def versions() -> dict[str, str]:
    """Installed versions of what matters here; packages that are missing are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def gpu_state() -> dict[str, str]:
    """Name, driver, clocks and power limit of the GPU in use, as nvidia-smi tells; else empty."""
    return _query_gpu(_QUERY)


def require_idle_gpu() -> None:
    """DeviceError while other programs keep the GPU in use busy: every time would be wrong.

    To be called before this process runs anything on it. Without nvidia-smi nothing is known, and
    nothing is refused.
    """
    used = re.match(r"\d+", _query_gpu(_BUSY).get(_BUSY, ""))
    if used and int(used[0]) > _IDLE_PERCENT:
        raise DeviceError(
            "the GPU before measuring",
            expected=f"idle: at most {_IDLE_PERCENT} % of the time in use",
            got=f"{used[0]} %",
            remedy="end the other programs that run on it (nvidia-smi lists them)",
        )


def _query_gpu(names: str) -> dict[str, str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader", f"--id={_gpu_id()}"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}  # no such tool: the numbers stand without it
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(names.split(","), values, strict=False))


def _gpu_id() -> str:
    """The GPU in use, in words of nvidia-smi, which counts GPUs otherwise than CUDA does: it knows
    neither CUDA_VISIBLE_DEVICES nor CUDA's order."""
    if not torch.cuda.is_available():
        return "0"
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def command_line(program: str) -> str:
    """The command that runs, to repeat it; of files that it writes the name alone, and so of what
    has an absolute path: where it lies on one machine means nothing on another.

    Args:
        program: what stands in front of the arguments.
    """
    given, named = [], False
    for argument in sys.argv[1:]:
        written = _WRITTEN.fullmatch(argument)
        if named or argument.startswith("/"):
            given.append(Path(argument).name)
        elif written:
            given.append(written[1] + Path(written[2]).name)
        else:
            given.append(argument)
        named = not named and argument in ("-o", "--output", "--figure")
    return f"{program} {shlex.join(given)}".strip()


def commit() -> str:
    """The commit of the checkout that runs, with "-dirty" when files differ.

    A tree that was copied without its history is named by FLASHRT_COMMIT; an installed package by
    its version; else "unknown".
    """
    if named := os.environ.get("FLASHRT_COMMIT"):
        return named
    here = Path(__file__).resolve()
    root = here.parent.parent.parent
    try:
        # Site-packages may lie inside of a checkout of something else, which does not track us.
        _git(root, "ls-files", "--error-unmatch", str(here.relative_to(root)))
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        return name + ("-dirty" if _git(root, "status", "--porcelain", "-uno", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return _installed()


def _installed() -> str:
    try:
        found = distribution("flashrt-ros")
        # What pip was given; of a repository it tells the commit.
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return "unknown"
    name = str(origin.get("vcs_info", {}).get("commit_id", ""))[:12]
    return name or f"flashrt-ros {found.version}, installed"


def _git(root: Path, *args: str) -> str:
    command = ["git", "-C", str(root), *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=True
    ).stdout.strip()
