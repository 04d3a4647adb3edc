"""Configure, build and install CMakeLists.txt with the Python and the ROS 2 found around it.

setup.py packs the result into a wheel; tools/environment.py runs this file to install the
interfaces straight into the development environment. Needs the standard library alone, since it
runs inside isolated pip builds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def ros_prefixes() -> list[str]:
    """Prefixes that hold ROS 2 CMake packages: sourced ones first, then that of the wheels."""
    found = [p for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    try:
        import rosidl_cmake
    except ImportError:
        pass  # no wheels; the check below speaks when nothing is sourced either
    else:
        # <prefix>/lib/python3.X/site-packages/rosidl_cmake/__init__.py; pip's isolated build
        # environments are prefixes of their own, so sys.prefix is not the answer.
        found.append(str(Path(rosidl_cmake.__file__).resolve().parents[4]))
    return list(dict.fromkeys(found))


def _environment(prefixes: list[str]) -> dict[str, str]:
    env = dict(os.environ)
    for name, values in (
        ("CMAKE_PREFIX_PATH", prefixes),
        ("AMENT_PREFIX_PATH", prefixes),
        ("LD_LIBRARY_PATH", [f"{p}/lib" for p in prefixes]),
    ):
        kept = [v for v in env.get(name, "").split(os.pathsep) if v]
        env[name] = os.pathsep.join(dict.fromkeys([*values, *kept]))
    return env


def build(build_dir: Path, prefix: Path, *, interfaces_only: bool) -> None:
    """Install the package under ``prefix``, or its messages and services alone.

    Raises:
        SystemExit: no ROS 2 found, no cmake, or a step failed; the message says which.
    """
    prefixes = ros_prefixes()
    if not prefixes:
        raise SystemExit(
            "no ROS 2 found to build the interfaces with: source a ROS 2 setup file, install the "
            "ros-kilted-* wheels, or set FLASHRT_CORE_ONLY=1 to install flashrt_core alone"
        )
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit(
            "cmake not found: pip install cmake ninja, or apt install cmake ninja-build"
        )
    # A cache left by an isolated build names an environment that is gone.
    shutil.rmtree(build_dir, ignore_errors=True)
    configure = [
        cmake,
        *("-S", str(ROOT), "-B", str(build_dir)),
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DCMAKE_PROJECT_INCLUDE={ROOT / 'cmake' / 'wheel_compat.cmake'}",
        f"-DFLASHRT_INTERFACES_ONLY={'ON' if interfaces_only else 'OFF'}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_TESTING=OFF",
        "-Wno-dev",
    ]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    parallel = str(os.cpu_count() or 1)
    env = _environment(prefixes)
    for step, command in (
        ("configure", configure),
        ("build", [cmake, "--build", str(build_dir), "--parallel", parallel]),
        ("install", [cmake, "--install", str(build_dir)]),
    ):
        done = subprocess.run(command, env=env, check=False)
        if done.returncode:
            raise SystemExit(f"interfaces: {step} failed ({done.returncode}): {' '.join(command)}")


def main() -> None:
    """Install the interfaces alone, from the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--prefix", type=Path, required=True)
    arguments = parser.parse_args()
    build(arguments.build_dir.resolve(), arguments.prefix.resolve(), interfaces_only=True)


if __name__ == "__main__":
    main()
