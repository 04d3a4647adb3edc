"""The kernel build: what it refuses, and what the machine code of every architecture must hold."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import build_kernels  # noqa: E402  (tools/ is no package)

from test.kernels.signatures import declared  # noqa: E402
from test.machine_code import (  # noqa: E402
    LOCAL,
    PROMISES,
    Code,
    broken_promises,
    disassemble,
    disassembler,
    uses,
)

LOG = """
ptxas info    : Compiling entry function 'good' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 31 registers, used 1 barriers
ptxas info    : Compiling entry function 'bad' for 'sm_90a'
    64 bytes stack frame, 40 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""
SERIAL = (
    "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
)

#: Kernels that use local memory. rope_rows and grid_rope reduce large double angles with a table on
#: the stack, once a prompt or a pass; of the others tools/build_kernels.py says why.
KNOWN_LOCAL = {"rope_rows_f32", "grid_rope_f32", *build_kernels.SPILL_ALLOWANCE}

nvcc = build_kernels.find_nvcc()
needs_nvcc = pytest.mark.skipif(nvcc is None, reason="no CUDA compiler")


def test_resources_are_read_from_the_log() -> None:
    good, bad = build_kernels.parse_resources(LOG)
    assert (good.kernel, good.registers, good.stack, good.spill) == ("good", 31, 0, 0)
    assert (bad.kernel, bad.architecture, bad.stack, bad.spill) == ("bad", "sm_90a", 64, 64)


def test_spills_are_refused_beyond_their_allowance() -> None:
    with pytest.raises(build_kernels.BuildError, match="kernel bad.*at most 0 bytes.*got 64"):
        build_kernels.check_log(LOG, {})
    assert len(build_kernels.check_log(LOG, {"bad": 64})) == 2


def test_serialised_wgmma_is_refused() -> None:
    with pytest.raises(build_kernels.BuildError, match="C7510"):
        build_kernels.check_log(SERIAL, {})


def test_no_compiler_is_said_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "build_kernels.py"), "--if-available"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "x.fatbin")],
        env={"PATH": str(tmp_path), "PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "flashrt: no CUDA compiler (nvcc) found, so this is a CPU-only build"
    ]
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[build_kernels.Resources]:
    """The whole build; unchanged sources come from the user's cache."""
    assert nvcc is not None
    output = tmp_path_factory.mktemp("kernels") / "all.fatbin"
    found = build_kernels.build(nvcc, output)
    assert output.stat().st_size > 100_000
    return found


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_architecture_builds(kernels: list[build_kernels.Resources]) -> None:
    built: dict[str, set[str]] = {}
    for kernel in kernels:
        built.setdefault(kernel.architecture, set()).add(kernel.kernel)
    assert set(built) == {f"sm_{name}" for name in build_kernels.ARCHITECTURES}
    hopper = {name for name in declared() if name.endswith(("_sm90", "_hopper"))}
    clusters = {name for name in declared() if name.endswith("_cluster")}
    assert built["sm_90a"] == set(declared())
    for architecture, names in built.items():
        without = clusters if architecture in ("sm_80", "sm_89") else set()
        if architecture != "sm_90a":
            assert names == set(declared()) - hopper - without


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with pytest.raises(build_kernels.BuildError, match="/proc/none.*; set XDG_CACHE_HOME"):
        build_kernels.build(Path(shutil.which("true") or "true"), tmp_path / "out")


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_local_memory_is_used_where_it_is_known(kernels: list[build_kernels.Resources]) -> None:
    assert {kernel.kernel for kernel in kernels if kernel.stack} <= KNOWN_LOCAL


@pytest.fixture(scope="module")
def code(kernels: list[build_kernels.Resources]) -> dict[str, dict[str, Code]]:
    """Architecture -> kernel -> instructions."""
    tool = disassembler()
    if tool is None:
        pytest.skip("no disassembler (nvdisasm)")
    assert nvcc is not None
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    folder = build_kernels.cache_folder() / build_kernels.content_hash(version)
    return {
        architecture: disassemble(tool, folder / f"sm_{architecture}.cubin")
        for architecture in build_kernels.ARCHITECTURES
    }


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_machine_code_keeps_its_promises(code: dict[str, dict[str, Code]]) -> None:
    for architecture, found in code.items():
        assert list(broken_promises(architecture, found)) == []
    for promise in PROMISES:  # each is about something
        assert any(re.fullmatch(promise.kernels, name) for name in code["90a"]), promise


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_machine_code_uses_local_memory_where_it_is_known(code: dict[str, dict[str, Code]]) -> None:
    for architecture, found in code.items():
        using = {name for name, instructions in found.items() if uses(instructions, LOCAL)}
        assert using <= KNOWN_LOCAL, f"sm_{architecture}"


GOOD = ["LDG.E.128.CONSTANT.LTC256B R4, [R2]", "PREEXIT ", "@P0 ACQBULK ", "HMMA.16816.F32.BF16 R8"]


@pytest.mark.parametrize(
    ("instructions", "said"),
    [
        (GOOD, ""),
        ([*GOOD[1:3], GOOD[0], GOOD[3]], "weights are on their way"),
        ([GOOD[0], *GOOD[2:]], "expected PREEXIT, got none"),
        ([GOOD[0], GOOD[2], GOOD[1], GOOD[3]], "expected PREEXIT before ACQBULK"),
        ([GOOD[3], *GOOD[:3]], "behind ACQBULK"),
        (GOOD[:3], "tensor cores"),
        ([*GOOD, "MEMBAR.ALL.GPU "], "all it has under way"),
        ([], "waits for those in front"),
    ],
)
def test_broken_promises_are_seen(instructions: Code, said: str) -> None:
    name = "linear_gated_residual_k2048_16_bf16_cluster"
    found = list(broken_promises("90a", {name: instructions}))
    assert bool(found) == bool(said)
    assert any(said in line for line in found) or not said
