"""Set up .venv for `make demo` and `make test`: what is missing or out of date, and nothing else.

Runs on the system's Python before anything is installed, so it uses the standard library alone.
Each step leaves a stamp holding the digest of what it was made from; a step runs again only when
that digest changes. Editing Python sources changes none: the environment runs the checkout.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STATE = VENV / "setup"
LOG = STATE / "setup.log"
SUPPORTED = ((3, 11), (3, 13))  # the ROS 2 wheels end at 3.13

PINNED = ("requirements/runtime.txt", "requirements/ros-kilted.txt")
PINNED_DEV = ("requirements/dev.txt",)
CUDA = "13"  # what torch must be built for, where a GPU is to be used
INTERFACE_SOURCES = ("CMakeLists.txt", "package.xml", "cmake", "msg", "srv", "tools/interfaces.py")
ABI_SOURCES = ("csrc/abi", "csrc/include", "tools/build_abi.py")
PROJECT_SOURCES = ("pyproject.toml", "setup.py", "tools/ros_build.py")

# Left by a sourced ROS 2 or by another environment of ROS 2 wheels, these would mix two
# installations in one process.
FOREIGN_VARIABLES = (
    "AMENT_PREFIX_PATH",
    "CMAKE_PREFIX_PATH",
    "COLCON_PREFIX_PATH",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "_ROS_WHEELS_BOOTSTRAP_COMPLETE",
)


def say(text: str) -> None:
    """One line of progress on the terminal."""
    print(f"[setup] {text}", flush=True)


def digest(paths: Iterable[str], *, salt: str = "") -> str:
    """SHA-256 over names and contents of files; a folder stands for the files in it."""
    total = hashlib.sha256(salt.encode())
    for name in paths:
        path = ROOT / name
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            total.update(f"\0{file.relative_to(ROOT)}\0".encode())
            total.update(file.read_bytes())
    return total.hexdigest()


def check_system() -> None:
    """Refuse a machine that lacks what pip cannot bring, in one line.

    Raises:
        SystemExit: the Python is too old or too new, or Debian packages are missing.
    """
    running = sys.version_info[:2]
    if not SUPPORTED[0] <= running <= SUPPORTED[1]:
        raise SystemExit(
            f"Python: expected 3.11 to 3.13, got {running[0]}.{running[1]} ({sys.executable}); "
            "name another one: make PYTHON=python3.11"
        )
    missing = []
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("python3-venv")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing.append("python3-dev")
    if shutil.which("g++") is None or shutil.which("gcc") is None:
        missing.append("g++")
    if missing:
        packages = " ".join(missing)
        raise SystemExit(
            f"missing: {packages}; run: apt-get update && apt-get install -y {packages}"
        )


def child_environment() -> dict[str, str]:
    """Environment of every step: .venv first on the path, nothing of another ROS 2 in it."""
    env = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}
    env["VIRTUAL_ENV"] = str(VENV)
    env["PATH"] = f"{VENV / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return env


def call(command: list[str], *, show: str = "$.", **variables: str) -> None:
    """Run a command into the log; lines that match ``show`` go to the terminal too.

    Raises:
        SystemExit: it failed; the end of the log is printed first.
    """
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=child_environment() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None  # PIPE was asked for
            tail: list[str] = []
            for line in process.stdout:
                log.write(line)
                tail = [*tail[-24:], line]
                if re.search(show, line):
                    print(f"        {line.strip()[:90]}", flush=True)
    if process.returncode:
        print("".join(tail), end="")
        raise SystemExit(f"[setup] failed: {' '.join(command)}; whole log: {LOG}")


def install(*files: str, packages: Iterable[str] = ()) -> None:
    """pip install of pinned requirement files, then a check that they fit together."""
    arguments = [*(word for file in files for word in ("-r", file)), *packages]
    python = str(VENV / "bin" / "python")
    call([python, "-m", "pip", "install", *arguments], show=r"Downloading .* MB|^Installing")
    call([python, "-m", "pip", "check"])


def create_venv() -> None:
    """A new .venv in place of whatever lies there."""
    if VENV.exists():
        shutil.rmtree(VENV)
    environment = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}
    # Captured: there is no folder for a log yet, and an interrupted venv prints its traceback.
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(VENV)],
        env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if made.returncode:
        print(made.stdout, end="")
        raise SystemExit(f"[setup] failed: {sys.executable} -m venv {VENV}")
    STATE.mkdir()
    # colcon would take every package of the environment for one of the workspace.
    (VENV / "COLCON_IGNORE").touch()


def cuda_packages() -> list[str]:
    """The extra `cuda`: ranges, as torch's CUDA build fixes the versions of NVIDIA's packages."""
    import tomllib  # a Python without it is told so by check_system

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["cuda"])


def check_torch() -> None:
    """Refuse a torch in .venv that cannot use a GPU.

    Raises:
        SystemExit: it is built for the CPU, or for another CUDA.
    """
    ask = "import torch; print(torch.__version__, torch.version.cuda)"
    command = [str(VENV / "bin" / "python"), "-c", ask]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False
    )
    version, _, cuda = done.stdout.strip().partition(" ")
    if cuda.split(".")[0] != CUDA:
        raise SystemExit(
            f"[setup] torch: expected one built for CUDA {CUDA}, got {version or 'none'} (CUDA "
            f"{cuda or 'unknown'}); install the same version from torch's CUDA {CUDA} index with "
            f"{VENV / 'bin' / 'pip'}, then run make again"
        )


def build_interfaces() -> None:
    """Generate, compile and install messages and services into .venv."""
    for folder in ("share/flashrt_ros", "include/flashrt_ros"):
        shutil.rmtree(VENV / folder, ignore_errors=True)
    for generated in VENV.glob("lib/python3*/site-packages/flashrt_ros"):
        shutil.rmtree(generated)
    for library in VENV.glob("lib/libflashrt_ros__*.so"):
        library.unlink()
    python = str(VENV / "bin" / "python")
    build = STATE / "interfaces"
    call([python, "tools/interfaces.py", "--build-dir", str(build), "--prefix", str(VENV)])
    shutil.rmtree(build)


def link_project() -> None:
    """Put the checkout on the path of .venv, with its console scripts and metadata.

    "compat" asks for a plain path entry. The default, an import hook, would come second to the
    generated flashrt_ros folder in site-packages.
    """
    python = str(VENV / "bin" / "python")
    options = ["--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=compat"]
    call([python, "-m", "pip", "install", *options, "-e", "."], FLASHRT_CORE_ONLY="1")


def step(name: str, key: str, text: str, action: Callable[[], None]) -> None:
    """Run ``action`` unless the stamp of this step already holds ``key``."""
    stamp = STATE / name
    if stamp.is_file() and stamp.read_text() == key:
        return
    say(text)
    began = time.monotonic()
    unfinished = STATE / "unfinished"
    if STATE.is_dir():
        unfinished.write_text(name)
        stamp.unlink(missing_ok=True)
    try:
        action()
    except SystemExit:
        # The tool itself reported a failure and tidied up; only a killed one leaves the mark.
        unfinished.unlink(missing_ok=True)
        raise
    stamp.write_text(key)
    unfinished.unlink(missing_ok=True)
    say(f"{name}: done in {time.monotonic() - began:.0f} s")


def set_up(*, dev: bool, gpu: bool = False) -> None:
    """Bring .venv up to date; ``dev`` adds what `make test` needs, ``gpu`` what a GPU does.

    SystemExit where a step fails, or where torch cannot use a GPU that is to be used.
    """
    if (STATE / "unfinished").is_file():
        left = (STATE / "unfinished").read_text()
        say(f"an earlier set-up was cut off in step '{left}'; starting again from an empty .venv")
        shutil.rmtree(VENV)
    python = digest((), salt=f"{sys.version} {os.path.realpath(sys.executable)} {ROOT}")
    step(
        "python", python, f"creating {VENV.name} with Python {sys.version.split()[0]}", create_venv
    )
    step(
        "packages",
        digest(PINNED, salt=python),
        "installing pinned packages and ROS 2 Kilted wheels (torch makes this the long step)",
        lambda: install(*PINNED),
    )
    if dev:
        step(
            "dev-packages",
            digest((*PINNED, *PINNED_DEV), salt=python),
            "installing ruff, mypy and pytest",
            lambda: install(*PINNED, *PINNED_DEV),
        )
    if gpu:
        packages = cuda_packages()
        step(
            "cuda-packages",
            digest((*PINNED, *PINNED_DEV), salt=f"{python} {packages}"),
            f"installing {', '.join(packages)}",
            lambda: install(*PINNED, *PINNED_DEV, packages=packages),
        )
        check_torch()
    step(
        "interfaces",
        digest((*INTERFACE_SOURCES, PINNED[1]), salt=python),
        "building messages and services (about half a minute)",
        build_interfaces,
    )
    step(
        "c-interface",
        digest(ABI_SOURCES, salt=python),
        "building the library of the C interface",
        lambda: call([str(VENV / "bin" / "python"), "tools/build_abi.py"]),
    )
    step(
        "project",
        digest(PROJECT_SOURCES, salt=python),
        "linking this checkout into the environment",
        link_project,
    )


def main() -> None:
    """Set up or bring up to date the environment of this checkout (.venv)."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dev", action="store_true", help="with the tools that `make test` needs")
    parser.add_argument("--gpu", action="store_true", help="the same, with the CUDA device")
    arguments = parser.parse_args()
    if Path(sys.prefix).resolve() == VENV.resolve():
        # Run from the activated .venv, which may have to go: continue on the Python that made it.
        base: str = sys._base_executable  # type: ignore[attr-defined]
        os.execve(base, [base, *sys.argv], child_environment())
    check_system()
    # Two `make` at once: the second waits, then finds everything done.
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        set_up(dev=arguments.dev or arguments.gpu, gpu=arguments.gpu)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\n[setup] interrupted; run make again", flush=True)
        sys.exit(130)
