"""The CUDA device on machines without one: what it says, what it launches, what it gives back."""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashrt_core.contract import BufferSpec, DType, Role
from flashrt_core.devices import cuda, cuda_launcher, cuda_library, open_device
from flashrt_core.devices.cuda_driver import CudaDriver
from flashrt_core.devices.cuda_launcher import CudaLauncher
from flashrt_core.devices.cuda_library import KernelLibrary, Packed, sizes
from flashrt_core.devices.overlap import DEFAULT, Overlap
from flashrt_core.errors import CaptureError, ContractError, DeviceError, OptionError
from flashrt_core.kernels.launch import Float64
from test.devices.fake_cuda import FakeCuda, Result


def refusal(message: str) -> Any:
    """A DeviceError in one line that matches ``message``."""
    return pytest.raises(DeviceError, match=rf"\A[^\n]*{message}[^\n]*\Z")


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with refusal("no driver library.*install the NVIDIA driver"):
        open_device("cuda")


def test_no_bindings(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeCuda())
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with refusal(r"cuda-bindings.*pip install 'flashrt-ros\[cuda\]'"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (FakeCuda(version=12080), "NVIDIA driver: expected CUDA 13.0 or newer, got CUDA 12.8"),
        (FakeCuda(devices=0), "expected an NVIDIA GPU, got none visible"),
        (FakeCuda(capability=(7, 5)), "'Fake GPU': expected compute capability 8.0.*got 7.5"),
    ],
)
def test_unusable_machines(install: Any, fake: FakeCuda, message: str) -> None:
    install(fake)
    with refusal(message):
        open_device("cuda")
    assert not fake.opened


def test_hidden_gpu(install: Any) -> None:
    fake = install(FakeCuda())
    fake.failing["cuInit"] = Result.CUDA_ERROR_NO_DEVICE
    with refusal("none visible"):
        open_device("cuda")


def test_cpu_only_build(install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = install(FakeCuda())
    monkeypatch.delenv("FLASHRT_KERNELS")
    monkeypatch.setattr(cuda_library, "_PACKAGE", tmp_path / "flashrt_core")
    with refusal("got a CPU-only build"):
        open_device("cuda")
    assert not fake.opened


def test_kernels_of_another_gpu(install: Any) -> None:
    fake = install(FakeCuda())
    fake.failing["cuLibraryLoadData"] = Result.CUDA_ERROR_NO_BINARY_FOR_GPU
    with refusal("kernel library: expected machine code for this GPU.*NO_BINARY_FOR_GPU"):
        open_device("cuda")
    assert not fake.opened


def test_torch_without_cuda(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(FakeCuda())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refusal("expected torch with CUDA"):
        open_device("cuda")
    assert not fake.opened


def test_failure_behind_the_stream_closes_what_was_opened(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(FakeCuda())

    def broken(*args: Any) -> None:
        raise DeviceError("cuBLASLt", got="no memory for its workspace")

    monkeypatch.setattr(cuda, "CublasLt", broken)
    with refusal("workspace"):
        open_device("cuda")
    assert not fake.opened


def test_out_of_memory(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(FakeCuda())
    device = open_device("cuda")

    def full(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with refusal("memory of GPU 'Fake GPU'.*expected 4.00 GB free, got 2.00 of 8.00 GB"):
        device.allocate([BufferSpec("x", (1_000_000_000,), DType.F32, Role.STATIC)])
    device.close()
    device.close()
    assert not fake.opened


@pytest.fixture
def launcher(install: Any) -> Any:
    fake = install(FakeCuda())
    driver = CudaDriver()
    library = KernelLibrary(driver, b"code")

    def make(overlap: str | bool = True) -> CudaLauncher:
        gemm = SimpleNamespace(run=lambda site, addresses: None)
        allowed = Overlap.parse(overlap)
        made = CudaLauncher(driver, library, gemm, 7, overlap=allowed)  # type: ignore[arg-type]
        made.begin(planning=False)
        return made

    make.fake = fake  # type: ignore[attr-defined]
    return make


def test_only_a_kernel_behind_a_kernel_overlaps(launcher: Any) -> None:
    ours = launcher()
    for _ in range(2):
        ours.launch("known_kernel", (3, 2), 128, ())
    ours.launch("known_kernel", 1, 32, (), pdl=False)
    ours.boundary("stage")
    ours.launch("known_kernel", 1, 32, (), cluster=8)
    attributes = [entry[3] for entry in launcher.fake.launched]
    assert attributes == [(), (6,), (), (4,)]
    assert launcher.fake.launched[0][:2] == ((3, 2, 1), (128, 1, 1))


def test_nothing_starts_before_its_weights_are_expanded(launcher: Any) -> None:
    """Kernels fetch weights before they wait for those in front."""
    ours = launcher()
    ours._workspaces[True].append(torch.zeros(64, dtype=torch.bfloat16))
    for _ in range(2):
        ours.launch("known_kernel", 1, 32, ())
    ours.workspace(8, 8, weights=True)
    for _ in range(3):  # what expands, the product, what is behind
        ours.launch("known_kernel", 1, 32, ())
    assert [entry[3] for entry in launcher.fake.launched] == [(), (6,), (6,), (), (6,)]


def test_overlap_can_be_switched_off(launcher: Any) -> None:
    ours = launcher(overlap=False)
    for _ in range(3):
        ours.launch("known_kernel", 1, 32, ())
    assert [entry[3] for entry in launcher.fake.launched] == [(), (), ()]


@pytest.mark.parametrize(
    ("overlap", "overlapped"),
    [
        ("on", ["context kernel", "context product", "action kernel", "action product"]),
        ("off", []),
        ("action", ["action kernel", "action product"]),
        ("product", ["context product", "action product"]),
        ("context+kernel", ["context kernel"]),
        ("action,kernel", ["context kernel", "action kernel", "action product"]),
        ("action+product,context+kernel", ["context kernel", "action product"]),
        (DEFAULT, ["context kernel", "action kernel", "action product"]),
        ("context+action+kernel+product", [
            "context kernel", "context product", "action kernel", "action product",
        ]),
    ],
)  # fmt: skip
def test_overlap_by_class_of_boundary(launcher: Any, overlap: str, overlapped: list[str]) -> None:
    ours, found = launcher(overlap), []
    x = torch.zeros(8, 8, dtype=torch.bfloat16)
    for stage in ("context", "action"):
        ours.boundary(stage)
        ours.launch("known_kernel", 1, 32, ())
        for front in ("kernel", "product"):
            if front == "product":
                ours.matmul(x, x, None, x)
            ours.launch("known_kernel", 1, 32, ())
            if launcher.fake.launched[-1][3]:
                found.append(f"{stage} {front}")
    assert found == overlapped


@pytest.mark.parametrize(
    "bad", ["", "on+off", "kernel+", "a b", "off+kernel", "action,", "action,on"]
)
def test_unreadable_overlap(bad: str) -> None:
    with pytest.raises(OptionError, match="option 'overlap': expected on, off"):
        Overlap.parse(bad)


def test_planning_launches_nothing(launcher: Any) -> None:
    ours = launcher()
    ours.begin(planning=True)
    ours.launch("known_kernel", 1, 32, (1, 2.0, None))
    assert not launcher.fake.launched and not ours.launched


def test_large_shared_memory_is_asked_for_once(launcher: Any) -> None:
    ours = launcher()
    for size in (1024, 100_000, 100_000, 200_000):
        ours.launch("known_kernel", 1, 32, (), shared_bytes=size)
    assert launcher.fake.shared == [100_000, 200_000]


def test_a_carveout_is_asked_for_once(launcher: Any) -> None:
    ours = launcher()
    for carveout in (None, 58, 58):
        ours.launch("known_kernel", 1, 32, (), carveout=carveout)
    assert launcher.fake.carved == [58]
    assert not launcher.fake.shared


def test_the_fastest_way_is_timed_once_and_kept(
    launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, kept, timed, done = launcher(), {}, [], []

    class Clock:
        def __init__(self, driver: Any, stream: Any, name: str, calls: Any) -> None:
            timed.append(name)
            for call in calls:
                call()
            self.best = {"slow": 9.0, "fast": 3.0}[name]

        def measure(self, rounds: int) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(cuda_launcher, "Timing", Clock)
    ours._gemm = SimpleNamespace(
        choice=lambda key, kernels: kept.get(key, {}).get(kernels),
        keep_choice=lambda key, way, kernels, times: kept.update(
            {key: {kernels: way, "us": times}}
        ),
    )
    overlapping, given = [], []

    def way(name: str, x: torch.Tensor, into: torch.Tensor) -> None:
        done.append(name)
        given.append(into.data_ptr() == out.data_ptr() and x.data_ptr() == values.data_ptr())
        assert into.stride() == out.stride()
        if not ours._planning:
            overlapping.append(not ours._boundary)
            ours._boundary = False  # as a launch leaves it

    ways = {name: partial(way, name) for name in ("slow", "fast")}
    values, out = torch.zeros(4), torch.zeros(4, 8)[:, :4]
    for planning in (True, False, True):
        ours.begin(planning=planning)
        ours.fastest("op 4 4", ways, values, out)
    times = {"slow": 9.0, "fast": 3.0}
    assert kept == {"op 4 4": {ours._library.digest: "fast", "us": times}}
    assert given == [False] * (len(given) - 3) + [True] * 3, "a race writes to other memory"
    assert timed == ["slow", "fast"]
    raced = cuda_launcher._REPEATS
    assert done == ["slow", "fast", *["slow"] * raced, *["fast"] * raced, "fast", "fast", "fast"]
    assert not any(overlapping[: 2 * raced]), "a way must not overlap with its own repetition"


def test_what_is_stored_in_e4m3_is_multiplied_by_the_inverse_scale(launcher: Any) -> None:
    ours, done = launcher(), []
    ours._gemm = SimpleNamespace(prepare=lambda *args: None, run=lambda *args: done.append(args))
    narrow = torch.float8_e4m3fn
    x, weight = torch.zeros(4, 16, dtype=narrow), torch.zeros(32, 16, dtype=narrow)
    out, scale = torch.zeros(4, 32, dtype=narrow), torch.zeros(1)
    for value in (0.25, 4.0):  # what is planned next may have its scale at the same address
        scale.fill_(value)
        for planning in (True, False):
            ours.begin(planning=planning)
            ours.matmul(x, weight, None, out, out_scale=scale)
    factors = [ctypes.c_float.from_address(given.out_factor).value for _, given in done]
    assert factors == [4.0, 0.25]
    assert all(site.narrow and site.quantised for site, _ in done)


def test_scales_of_every_layer_are_handed_on_aligned(launcher: Any) -> None:
    ours, done = launcher(), []
    ours._gemm = SimpleNamespace(prepare=lambda *args: None, run=lambda *args: done.append(args))
    narrow = torch.float8_e4m3fn
    x, weight = torch.zeros(4, 16, dtype=narrow), torch.zeros(32, 16, dtype=narrow)
    out, scales = torch.zeros(4, 32, dtype=torch.bfloat16), torch.tensor([0.5, 0.25, 2.0, 8.0])
    for planning in (True, False):
        ours.begin(planning=planning)
        for layer in range(3):
            both = {"x_scale": scales[layer : layer + 1], "weight_scale": scales[3:]}
            ours.matmul(x, weight, None, out, **both)
    places = [place for _, given in done for place in (given.x_scale, given.weight_scale)]
    assert not any(place % 16 for place in places)
    values = [ctypes.c_float.from_address(place).value for place in places]
    assert values == [0.5, 8.0, 0.25, 8.0, 2.0, 8.0]


def test_unknown_kernel(launcher: Any) -> None:
    with refusal("kernel 'nonsense': expected an entry of the kernel library"):
        launcher().launch("nonsense", 1, 32, ())


def test_workspace_does_not_grow_while_capturing(launcher: Any) -> None:
    with pytest.raises(CaptureError, match="workspace"):
        launcher().workspace(4, 4)


def test_arguments_are_laid_out_for_the_driver(launcher: Any) -> None:
    tensor = torch.zeros(4)
    packed = Packed(SimpleNamespace(), (tensor, None, -3, 1.5, Float64(2.5)))  # type: ignore[arg-type]
    table = (ctypes.c_void_p * 5).from_address(packed.address)
    assert ctypes.c_uint64.from_address(table[0]).value == tensor.data_ptr()
    assert ctypes.c_uint64.from_address(table[1]).value == 0
    assert ctypes.c_int32.from_address(table[2]).value == -3
    assert ctypes.c_float.from_address(table[3]).value == 1.5
    assert ctypes.c_double.from_address(table[4]).value == 2.5


@pytest.mark.parametrize("bad", [2**31, "text"])
def test_bad_arguments(bad: Any) -> None:
    with pytest.raises(ContractError, match="kernel argument 0"):
        Packed(SimpleNamespace(), (bad,))  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, (1, 2, 3, 4), ()])
def test_bad_sizes(bad: Any) -> None:
    with pytest.raises(ContractError, match="launch size"):
        sizes(bad)
