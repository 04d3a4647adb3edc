"""Builds csrc/abi/*.cpp into libflashrt.so, the C interface, with the machine's C++ compiler.

CMake builds the same library beside the package; this tool serves a checkout, and installs without
CMake (FLASHRT_CORE_ONLY=1). Needs the standard library alone, and no GPU. By hand, in a checkout:
``python tools/build_abi.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc" / "abi"
HEADERS = ROOT / "csrc" / "include"
OUTPUT = ROOT / "build" / "libflashrt.so"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
LIBRARIES = ("-Wl,-z,defs", "-ldl", "-lpthread")


def find_compiler() -> list[str] | None:
    """CXX, or c++, g++ or clang++ from PATH; None where there is none."""
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    found = (shutil.which(name) for name in ("c++", "g++", "clang++"))
    return next(([path] for path in found if path), None)


def content_hash(compiler: list[str], flags: tuple[str, ...]) -> str:
    """Digest of everything that the library depends on."""
    total = hashlib.sha256(repr((compiler, flags)).encode())
    for path in sorted([*SOURCES.iterdir(), *HEADERS.iterdir()]):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def build(output: Path, compiler: list[str], *, flags: tuple[str, ...] = ()) -> None:
    """The library at ``output``, unless it is there already, from the same sources.

    SystemExit with the compiler's words where it fails.
    """
    flags = (*FLAGS, *WARNINGS, *flags)
    key, stamp = content_hash(compiler, flags), output.with_suffix(".so.hash")
    if output.is_file() and stamp.is_file() and stamp.read_text() == key:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(f".{os.getpid()}.part")
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    command = [*compiler, *flags, *sources, *LIBRARIES, "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    partial.replace(output)
    stamp.write_text(key)


def main() -> int:
    """Command line; 0 when built or when there is no compiler and that is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--if-available", action="store_true", help="no compiler is no error")
    options = parser.parse_args()
    compiler = find_compiler()
    if compiler is None:
        told = "flashrt: no C++ compiler found"
        if options.if_available:
            print(f"{told}, so this build has no C interface")
            return 0
        print(f"{told}; install g++, or set CXX to one", file=sys.stderr)
        return 2
    try:
        build(options.output, compiler)
    except OSError as error:
        print(f"flashrt: {error}", file=sys.stderr)
        return 1
    print(f"flashrt: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
