"""Builds csrc/ops/*.cu into one fatbin, and refuses machine code that the design does not allow.

One translation unit holds every op, compiled once an architecture. Results are kept under a content
hash, so that unchanged sources cost nothing. cmake/cuda_kernels.cmake runs it; by hand, in a
checkout: ``python tools/build_kernels.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from flashrt_core.errors import FlashRTError  # noqa: E402  (neither needs what is not built yet)
from flashrt_core.outputs import check_output, write_text  # noqa: E402

SOURCES = ROOT / "csrc"
OUTPUT = ROOT / "build" / "flashrt_kernels.fatbin"
#: Machine code for these, and PTX that any later GPU can compile. The suffix "a" opens instructions
#: of one generation (wgmma on 90a), at the price of running on that generation only.
ARCHITECTURES = ("80", "89", "90a", "100a", "110a", "120a")
PTX = "80"
FLAGS = ("-DNDEBUG", "-O3", "-std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v")
#: Kernels that may spill, and how many bytes. The generic prefix attention holds 64 queries and
#: their outputs in registers; on sm_100a a few do not fit, outside its inner loop. The others leave
#: registers for the kernels before and after them on the same multiprocessor.
SPILL_ALLOWANCE: dict[str, int] = {
    "attention_shared_kv_d256_bf16": 96,
    "attention_shared_kv_d256_fp8": 96,
    "ada_rms_norm_geglu_62_bf16_cluster": 288,
    "linear_gated_residual_k2048_16_bf16_cluster": 16,
    "linear_gated_residual_k4096_16_bf16_cluster": 8,
}
#: ptxas advisories: wgmma serialised (C7510, C7512, C7518), setmaxnreg ignored (C7508).
FORBIDDEN = re.compile(r"\bC75(08|10|12|18)\b")
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USAGE = re.compile(r"Used (\d+) registers")


class BuildError(Exception):
    """A build that must not be shipped; the message says why."""


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel."""

    kernel: str
    architecture: str
    registers: int
    stack: int
    spill: int


def find_nvcc() -> Path | None:
    """nvcc from PATH, CUDA_HOME or the nvidia-cuda-nvcc wheel; None where there is none."""
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path)
    candidates = []
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home) / "bin" / "nvcc")
    candidates += [Path(entry) / "nvidia" / "cu13" / "bin" / "nvcc" for entry in sys.path if entry]
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def parse_resources(log: str) -> list[Resources]:
    """Registers, stack and spills of every kernel in the output of ``ptxas -v``."""
    found: list[Resources] = []
    entry: tuple[str, str] | None = None
    stack = spill = 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, stack, spill = (match[1], match[2]), 0, 0
        elif match := _SPILL.search(line):
            stack, spill = int(match[1]), int(match[2]) + int(match[3])
        elif (match := _USAGE.search(line)) and entry:
            found.append(Resources(*entry, int(match[1]), stack, spill))
            entry = None
    return found


def check_log(log: str, allowance: dict[str, int] | None = None) -> list[Resources]:
    """The kernels of a compiler log; BuildError on a spill or a broken wgmma chain."""
    allowance = SPILL_ALLOWANCE if allowance is None else allowance
    if match := FORBIDDEN.search(log):
        line = next(line for line in log.splitlines() if match[0] in line)
        raise BuildError(f"ptxas {match[0]}: {line.strip()}")
    kernels = parse_resources(log)
    for kernel in kernels:
        if kernel.spill > allowance.get(kernel.kernel, 0):
            raise BuildError(
                f"kernel {kernel.kernel} for {kernel.architecture}: expected at most "
                f"{allowance.get(kernel.kernel, 0)} bytes of register spills, got {kernel.spill}"
            )
    return kernels


def unity_source() -> str:
    """One file that includes every op."""
    ops = sorted((SOURCES / "ops").glob("*.cu"))
    return "".join(f'#include "ops/{path.name}"\n' for path in ops)


def content_hash(nvcc_version: str) -> str:
    """Digest of everything that the machine code depends on."""
    digest = hashlib.sha256(repr((FLAGS, nvcc_version)).encode())
    for path in sorted(SOURCES.glob("*/*.cu*")):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def cache_folder() -> Path:
    """Where compiled architectures are kept, under the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashrt" / "kernels"


def compile_one(nvcc: Path, architecture: str, kind: str, folder: Path) -> tuple[Path, str]:
    """Compiles for one architecture (kind "cubin" or "ptx"), unless the folder holds it already."""
    target = folder / f"sm_{architecture}.{kind}"
    log = target.with_suffix(f".{kind}.log")
    if target.is_file() and log.is_file():
        return target, log.read_text()
    code = f"sm_{architecture}" if kind == "cubin" else f"compute_{architecture}"
    generate = f"-gencode=arch=compute_{architecture},code={code}"
    source = folder / "all.cu"
    partial = target.with_suffix(f".{os.getpid()}.part")
    flags = [flag for flag in FLAGS if kind == "cubin" or flag not in ("-Xptxas", "-v")]
    command = [str(nvcc), f"-{kind}", *flags, generate, f"-I{SOURCES}", str(source)]
    command += ["-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise BuildError(f"nvcc failed for {code}:\n{output}")
    check_log(output)
    log.write_text(output)
    partial.replace(target)
    return target, output


def build(
    nvcc: Path, output: Path, architectures: tuple[str, ...] = ARCHITECTURES, *, ptx: bool = True
) -> list[Resources]:
    """Builds the fatbin at ``output``; the kernels' resources. BuildError when it must not ship."""
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    try:
        folder = cache_folder() / content_hash(version)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "all.cu").write_text(unity_source())
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise BuildError(
            f"folder of compiled kernels: expected one that can be written, got {error};"
            " set XDG_CACHE_HOME to a folder of yours"
        ) from error
    jobs = [(architecture, "cubin") for architecture in architectures]
    jobs += [(PTX, "ptx")] if ptx else []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(lambda job: compile_one(nvcc, job[0], job[1], folder), jobs))
    images = [
        f"--image3=kind={'elf' if kind == 'cubin' else 'ptx'},sm={architecture},file={path}"
        for (architecture, kind), (path, _) in zip(jobs, results, strict=True)
    ]
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(f".{os.getpid()}.part")
    fatbinary = nvcc.resolve().parent / "fatbinary"
    tool = str(fatbinary) if fatbinary.is_file() else shutil.which("fatbinary") or _beside(nvcc)
    subprocess.run([tool, f"--create={partial}", "-64", *images], check=True)
    partial.replace(output)
    return [kernel for _, log in results for kernel in check_log(log)]


def _beside(nvcc: Path) -> str:
    """fatbinary of the toolkit behind an nvcc that is a wrapper script."""
    command = [str(nvcc), "--dryrun", "-E", "-x", "cu", os.devnull]
    plan = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    match = re.search(r"^#\$ _HERE_=(.*)$", plan, re.MULTILINE)
    if not match:
        raise BuildError(f"fatbinary: expected beside {nvcc}, found nowhere")
    return str(Path(match[1]) / "fatbinary")


def main() -> int:
    """Command line; 0 when built or when there is no compiler and that is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--arch", action="append", help="only these, such as 90a (no PTX then)")
    parser.add_argument("--report", type=Path, help="write registers and spills as JSON")
    parser.add_argument("--find", action="store_true", help="print the path of nvcc and stop")
    parser.add_argument("--if-available", action="store_true", help="no compiler is no error")
    options = parser.parse_args()
    nvcc = find_nvcc()
    if options.find:
        print(nvcc or "")
        return 0 if nvcc else 1
    if nvcc is None:
        told = "flashrt: no CUDA compiler (nvcc) found"
        if options.if_available:
            print(f"{told}, so this is a CPU-only build")
            return 0
        print(f"{told}; install CUDA's toolkit, or set CUDA_HOME to it", file=sys.stderr)
        return 2
    try:
        check_output("--output", options.output)
        if options.report:
            check_output("--report", options.report)
        kernels = build(
            nvcc, options.output, tuple(options.arch or ARCHITECTURES), ptx=not options.arch
        )
        if options.report:
            write_text(json.dumps([vars(kernel) for kernel in kernels], indent=1), options.report)
    except FlashRTError as error:
        print(f"flashrt: error: {error}", file=sys.stderr)
        return 2
    except (BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"flashrt: {error}", file=sys.stderr)
        return 1
    size = options.output.stat().st_size
    print(f"flashrt: {len(kernels)} kernels in {options.output} ({size / 1024:.0f} KiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
