"""Set up .venv for `make demo` and `make test`, .venv-jazzy for the tests that run on Jazzy too.

What is missing or out of date is done, and nothing else.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ((3, 11), (3, 13))  # the ROS 2 wheels end at 3.13

PINNED = "requirements/runtime.txt"
PINNED_DEV = "requirements/dev.txt"
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


@dataclass(frozen=True)
class Environment:
    """A virtual environment with one ROS 2 in it: wheels of two would overwrite each other."""

    ros: str
    venv: Path

    @property
    def state(self) -> Path:
        """Folder of the stamps and of the log."""
        return self.venv / "setup"

    @property
    def log(self) -> Path:
        """What the steps printed."""
        return self.state / "setup.log"

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.venv / "bin" / "python")

    @property
    def ros_file(self) -> str:
        """Pinned wheels of its ROS 2."""
        return f"requirements/ros-{self.ros}.txt"


# Each is whole, torch included: pip's cache spares the second download, and what is left is seconds
# of unpacking. A .venv-jazzy that borrowed from .venv would see Kilted's wheels as well, since they
# lie among the rest, under the very names of its own.
KILTED = Environment("kilted", ROOT / ".venv")
JAZZY = Environment("jazzy", ROOT / ".venv-jazzy")
ENVIRONMENTS = {each.ros: each for each in (KILTED, JAZZY)}


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


def child_environment(target: Environment) -> dict[str, str]:
    """Environment of every step: the target first on the path, nothing of another ROS 2 in it."""
    env = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}
    env["VIRTUAL_ENV"] = str(target.venv)
    env["PATH"] = f"{target.venv / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return env


def call(target: Environment, command: list[str], *, show: str = "$.", **variables: str) -> None:
    """Run a command into the log; lines that match ``show`` go to the terminal too.

    Raises:
        SystemExit: it failed; the end of the log is printed first.
    """
    with target.log.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=child_environment(target) | variables,
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
        raise SystemExit(f"[setup] failed: {' '.join(command)}; whole log: {target.log}")


def install(target: Environment, *files: str, packages: Iterable[str] = ()) -> None:
    """pip install of pinned requirement files, then a check that they fit together.

    For Jazzy without bytecode: its few tests compile what they import, a tenth of what there is.
    """
    arguments = [*(word for file in files for word in ("-r", file)), *packages]
    if target.ros == "jazzy":
        arguments = ["--no-compile", *arguments]
    pip = [target.python, "-m", "pip"]
    call(target, [*pip, "install", *arguments], show=r"Downloading .* MB|^Installing")
    call(target, [*pip, "check"])


def create_venv(target: Environment) -> None:
    """A new, empty environment in place of whatever lies there."""
    if target.venv.exists():
        shutil.rmtree(target.venv)
    environment = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}
    # Captured: there is no folder for a log yet, and an interrupted venv prints its traceback.
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(target.venv)],
        env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if made.returncode:
        print(made.stdout, end="")
        raise SystemExit(f"[setup] failed: {sys.executable} -m venv {target.venv}")
    target.state.mkdir()
    # colcon would take every package of the environment for one of the workspace.
    (target.venv / "COLCON_IGNORE").touch()


def cuda_packages() -> list[str]:
    """The extra `cuda`: ranges, as torch's CUDA build fixes the versions of NVIDIA's packages."""
    import tomllib  # a Python without it is told so by check_system

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["cuda"])


def check_torch(target: Environment) -> None:
    """Refuse a torch that cannot use a GPU.

    Raises:
        SystemExit: it is built for the CPU, or for another CUDA.
    """
    ask = "import torch; print(torch.__version__, torch.version.cuda)"
    command = [target.python, "-c", ask]
    done = subprocess.run(
        command, env=child_environment(target), capture_output=True, text=True, check=False
    )
    version, _, cuda = done.stdout.strip().partition(" ")
    if cuda.split(".")[0] != CUDA:
        raise SystemExit(
            f"[setup] torch: expected one built for CUDA {CUDA}, got {version or 'none'} (CUDA "
            f"{cuda or 'unknown'}); install the same version from torch's CUDA {CUDA} index with "
            f"{target.venv / 'bin' / 'pip'}, then run make again"
        )


def build_interfaces(target: Environment) -> None:
    """Generate, compile and install messages and services into the environment."""
    for folder in ("share/flashrt_ros", "include/flashrt_ros"):
        shutil.rmtree(target.venv / folder, ignore_errors=True)
    for generated in target.venv.glob("lib/python3*/site-packages/flashrt_ros"):
        shutil.rmtree(generated)
    for library in target.venv.glob("lib/libflashrt_ros__*.so"):
        library.unlink()
    build = target.state / "interfaces"
    options = ["--build-dir", str(build), "--prefix", str(target.venv)]
    call(target, [target.python, "tools/interfaces.py", *options])
    shutil.rmtree(build)


def link_project(target: Environment) -> None:
    """Put the checkout on the path of the environment, with its console scripts and metadata.

    "compat" asks for a plain path entry. The default, an import hook, would come second to the
    generated flashrt_ros folder in site-packages.
    """
    pip = [target.python, "-m", "pip"]
    options = ["--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=compat"]
    call(target, [*pip, "install", *options, "-e", "."], FLASHRT_CORE_ONLY="1")


def step(target: Environment, name: str, key: str, text: str, action: Callable[[], None]) -> None:
    """Run ``action`` unless the stamp of this step already holds ``key``."""
    stamp = target.state / name
    if stamp.is_file() and stamp.read_text() == key:
        return
    say(text)
    began = time.monotonic()
    unfinished = target.state / "unfinished"
    if target.state.is_dir():
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


def set_up(target: Environment, *, dev: bool, gpu: bool = False) -> None:
    """Bring the target up to date; ``dev`` adds what tests need, ``gpu`` what a GPU does.

    SystemExit where a step fails, or where torch cannot use a GPU that is to be used.
    """
    take = partial(step, target)
    if (target.state / "unfinished").is_file():
        left = (target.state / "unfinished").read_text()
        name = target.venv.name
        say(f"an earlier set-up was cut off in step '{left}'; starting again from an empty {name}")
        shutil.rmtree(target.venv)
    python = digest((), salt=f"{sys.version} {os.path.realpath(sys.executable)} {ROOT}")
    take(
        "python",
        python,
        f"creating {target.venv.name} with Python {sys.version.split()[0]}",
        lambda: create_venv(target),
    )
    install_packages(target, python, dev=dev, gpu=gpu)
    take(
        "interfaces",
        digest((*INTERFACE_SOURCES, target.ros_file), salt=python),
        "building messages and services (about half a minute)",
        lambda: build_interfaces(target),
    )
    if target is KILTED:  # it goes into the checkout, and knows no ROS
        take(
            "c-interface",
            digest(ABI_SOURCES, salt=python),
            "building the library of the C interface",
            lambda: call(target, [target.python, "tools/build_abi.py"]),
        )
    take(
        "project",
        digest(PROJECT_SOURCES, salt=python),
        "linking this checkout into the environment",
        lambda: link_project(target),
    )


def install_packages(target: Environment, python: str, *, dev: bool, gpu: bool) -> None:
    """The steps of pip; ``python`` is the key of the interpreter."""
    take = partial(step, target)
    pinned = (PINNED, target.ros_file)
    with_dev = (*pinned, PINNED_DEV)
    # One call of pip: a second one would first go through all that the first installed.
    name, files = ("dev-packages", with_dev) if dev else ("packages", pinned)
    take(
        name,
        digest(files, salt=python),
        f"installing pinned packages and ROS 2 {target.ros.title()} wheels (torch makes this the "
        "long step)",
        lambda: install(target, *files),
    )
    if gpu:
        packages = cuda_packages()
        take(
            "cuda-packages",
            digest(with_dev, salt=f"{python} {packages}"),
            f"installing {', '.join(packages)}",
            lambda: install(target, *with_dev, packages=packages),
        )
        check_torch(target)


def main() -> None:
    """Set up or bring up to date an environment of this checkout."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dev", action="store_true", help="with the tools that `make test` needs")
    parser.add_argument("--gpu", action="store_true", help="the same, with the CUDA device")
    parser.add_argument("--ros", choices=ENVIRONMENTS, default="kilted", help="which ROS 2")
    arguments = parser.parse_args()
    target = ENVIRONMENTS[arguments.ros]
    if Path(sys.prefix).resolve() in [each.venv.resolve() for each in ENVIRONMENTS.values()]:
        # Run from one that is activated and may have to go: continue on the Python that made it.
        base: str = sys._base_executable  # type: ignore[attr-defined]
        os.execve(base, [base, *sys.argv], child_environment(target))
    check_system()
    # Two `make` at once: the second waits, then finds everything done.
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        set_up(target, dev=arguments.dev or arguments.gpu, gpu=arguments.gpu)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\n[setup] interrupted; run make again", flush=True)
        sys.exit(130)
