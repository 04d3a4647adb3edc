"""A CUDA device without a GPU: the fake driver in place of the real one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from flashrt_core.devices import cuda, cuda_driver
from test.devices.fake_cuda import FakeCuda


class NoProducts:
    """In place of cuBLASLt: prepares and runs nothing, keeps choices."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], str] = {}

    def choice(self, key: str, kernels: str) -> str | None:
        return self._kept.get((key, kernels))

    def keep_choice(self, key: str, way: str, kernels: str, _: dict[str, float]) -> None:
        self._kept[key, kernels] = way

    def offers(self, *args: Any, prepare: bool) -> bool:
        return True

    def prepare(self, *args: Any) -> None: ...

    def run(self, *args: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Puts a fake driver, a fatbin and CUDA-capable torch in place."""

    def install(fake: FakeCuda) -> FakeCuda:
        bindings = ModuleType("cuda.bindings")
        bindings.driver = fake  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda name: None)
        fatbin = tmp_path / "kernels.fatbin"
        fatbin.write_bytes(b"machine code")
        monkeypatch.setenv("FLASHRT_KERNELS", str(fatbin))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        for name in ("init", "empty_cache", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, lambda: None)
        lt = SimpleNamespace(get_version=lambda: 130100)
        monkeypatch.setattr(cuda, "load_cublaslt", lambda: lt)
        monkeypatch.setattr(cuda, "CublasLt", lambda *args: NoProducts())
        return fake

    return install


@pytest.fixture
def whole(install: Any, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A fake driver on which plans can be captured and replayed; device memory is the host's."""
    fake: FakeCuda = install(FakeCuda(capability=(8, 0)))
    fake.any_kernel = True
    for name in ("zeros", "empty"):
        make = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, make=make, device=None, **k: make(*a, **k))
    return fake
