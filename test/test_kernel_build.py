"""The kernel build: what it refuses, and what the machine code of every architecture must hold."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import build_kernels  # noqa: E402  (tools/ is no package)

from test.kernels.signatures import declared  # noqa: E402

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
    hopper = {name for name in declared() if name.endswith("_sm90")}
    clusters = {name for name in declared() if name.endswith("_cluster")}
    assert built["sm_90a"] == set(declared())
    for architecture, names in built.items():
        without = clusters if architecture in ("sm_80", "sm_89") else set()
        if architecture != "sm_90a":
            assert names == set(declared()) - hopper - without


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_local_memory_is_used_where_it_is_known(kernels: list[build_kernels.Resources]) -> None:
    # rope_rows reduces large double angles with a table on the stack, once a prompt.
    known = {"rope_rows_f32", *build_kernels.SPILL_ALLOWANCE}
    assert {kernel.kernel for kernel in kernels if kernel.stack} <= known


def disassembler() -> str | None:
    """nvdisasm from PATH or a wheel; None where there is none."""
    wheel = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    return shutil.which("nvdisasm") or (str(wheel) if wheel.is_file() else None)


@pytest.fixture(scope="module")
def hopper_code(kernels: list[build_kernels.Resources]) -> Iterator[dict[str, list[str]]]:
    """Instructions of every kernel for sm_90a, in program order."""
    tool = disassembler()
    if tool is None:
        pytest.skip("no disassembler (nvdisasm)")
    assert nvcc is not None
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    cubin = build_kernels.cache_folder() / build_kernels.content_hash(version) / "sm_90a.cubin"
    text = subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    yield {
        name: re.findall(r"^\s+(?:/\*\w+\*/)?\s*(.+?) ;", body, re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def first(code: list[str], instruction: str) -> int:
    """Index of the first use of an instruction; past the end where there is none."""
    return next((i for i, line in enumerate(code) if instruction in line), len(code))


def last(code: list[str], instruction: str) -> int:
    """Index of the last use of an instruction."""
    return max(i for i, line in enumerate(code) if instruction in line)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hopper_machine_code(hopper_code: dict[str, list[str]]) -> None:
    for name, code in hopper_code.items():
        # Every kernel may be started early, so every kernel has to wait.
        assert first(code, "ACQBULK") < len(code), f"{name} never waits for the kernel before it"
        # The first kernel of a step holds the others back: they read earlier stages without a wait.
        late = name.startswith("action_in")
        assert (first(code, "PREEXIT") > first(code, "ACQBULK")) == late, name
        known = {"rope_rows_f32", *build_kernels.SPILL_ALLOWANCE}
        assert not any(re.search(r"\b(LDL|STL)\b", line) for line in code) or name in known
    fetches = "LTC256B", "UBLKCP"
    skinny = ("ada_rms_norm_qkv", "ada_rms_norm_geglu", "linear_gated_residual_k")
    for name in (name for name in hopper_code if name.startswith(skinny) and "cluster" in name):
        code = hopper_code[name]
        # Weights are on their way before the wait, products come after it.
        assert min(first(code, fetch) for fetch in fetches) < first(code, "ACQBULK") < len(code), (
            name
        )
        assert first(code, "HMMA.16816.F32.BF16") > first(code, "ACQBULK"), name
    for name, code in hopper_code.items():
        if name.startswith("geglu_linear"):
            # Weights are on their way before the wait; the tokens are not.
            assert first(code, "UTMALDG.2D [") < last(code, "ACQBULK")
            assert any("HGMMA.64x" in line for line in code)
    assert any(
        "HGMMA.64x256x16" in line for line in hopper_code["attention_shared_kv_d256_bf16_sm90"]
    )
    assert any("HMMA.16816" in line for line in hopper_code["attention_segments_d72_bf16"])
