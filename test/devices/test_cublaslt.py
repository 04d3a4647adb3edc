"""What is asked of cuBLASLt, without it: formats, epilogues and scales of products."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.devices import algorithm_cache, cublaslt
from flashrt_core.devices.algorithm_cache import read_cache
from flashrt_core.devices.cublaslt import CublasLt
from flashrt_core.devices.product_site import Operands, Site
from flashrt_core.errors import DeviceError, OptionError
from flashrt_core.scales import default_path

BF16, F32, E4M3 = 14, 0, 28
_SCALES = [f"{name}_SCALE_POINTER" for name in "ABD"]
_ATTRIBUTES = ["TRANSA", "EPILOGUE", "BIAS_DATA_TYPE", "BIAS_POINTER", "FAST_ACCUM", *_SCALES]
_ALIGNMENTS = [f"MIN_ALIGNMENT_{name}_BYTES" for name in "ABCD"]


class FakeLt(SimpleNamespace):
    """Remembers descriptions and products; has two algorithms for everything not refused."""

    cuBLASLtError = RuntimeError  # noqa: N815
    Epilogue = IntEnum("Epilogue", "DEFAULT BIAS GELU GELU_BIAS", start=1)
    MatmulDescAttribute = IntEnum("MatmulDescAttribute", _ATTRIBUTES, start=0)
    MatmulPreferenceAttribute = IntEnum("Preference", ["MAX_WORKSPACE_BYTES", *_ALIGNMENTS])
    matmul_heuristic_result_dtype = np.dtype([("algo", [("data_", "u8", 8)]), ("state", "i4")])

    def __init__(self) -> None:
        self.refused, self.layouts, self.done = False, [], []
        self.set: list[dict[str, int]] = []  # attributes of each description

    def create(self) -> int:
        return 1

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        self.set.append({})
        return len(self.set) - 1

    def matmul_desc_set_attribute(self, description: int, name: int, value: int, size: int) -> None:
        held = ctypes.string_at(value, size)
        key = self.MatmulDescAttribute(name).name
        self.set[description][key] = int.from_bytes(held, "little")

    def matrix_layout_create(self, kind: int, rows: int, columns: int, stride: int) -> int:
        self.layouts.append((kind, rows, columns, stride))
        return len(self.layouts) - 1

    def matmul_algo_get_heuristic(self, *args: Any) -> None:
        results, count = args[-2:]
        ctypes.c_int32.from_address(count).value = 0 if self.refused else 2
        assert results

    def matmul(self, *args: Any) -> None:
        self.done.append((*args, dict(self.set[args[1]])))

    def __getattr__(self, name: str) -> Any:
        return lambda *args: 0


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    fake = FakeLt()
    monkeypatch.setattr(cublaslt, "load_cublaslt", lambda: fake)
    for name in ("empty", "ones", "zeros", "randn"):
        make = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, make=make, device=None, **k: make(*a, **k))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    class Clock:
        best, kernels = 5.0, 1.0
        measured = iter(())  # else: of one algorithm after another

        def __init__(self, driver: Any, stream: Any, algorithm: Any, calls: Any) -> None:
            self.algorithm = algorithm
            self.best, self.kernels = next(self.measured, (self.best, self.kernels))
            calls[0]()

        def measure(self, rounds: int) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(cublaslt, "Timing", Clock)
    return fake


def products(cache: Path | None = None) -> CublasLt:
    return CublasLt(None, 7, cache)  # type: ignore[arg-type]


SITE = Site(32, 48, 64, 64, 48, bias=True, gelu=True, accumulate=False)
GIVEN = Operands(16, 32, 48, 64, x_scale=80, weight_scale=96, out_factor=112)


def test_bf16_products_have_no_scales(lt: FakeLt) -> None:
    products().prepare(SITE, (4096, 1 << 20))
    assert not {"FAST_ACCUM", *_SCALES} & set(lt.set[0])
    assert [kind for kind, *_ in lt.layouts] == [BF16] * 4


def test_fp8_products_into_fp8(lt: FakeLt) -> None:
    """The result is E4M3, what would be added and the bias bf16; no addend is read."""
    site = Site(32, 48, 64, 64, 48, True, True, False, narrow=True, quantised=True)
    ours = products()
    ours.prepare(site, (4096, 1 << 20))
    assert [kind for kind, *_ in lt.layouts] == [E4M3, E4M3, BF16, E4M3]
    ours.run(site, GIVEN)
    *args, told = lt.done[-1]
    assert told["BIAS_DATA_TYPE"] == BF16 and told["EPILOGUE"] == lt.Epilogue.GELU_BIAS
    scales = [GIVEN.weight_scale, GIVEN.x_scale, GIVEN.out_factor]
    assert [told[name] for name in _SCALES] == scales
    weight, x, addend, out = args[3], args[5], args[8], args[10]
    assert (weight, x, addend, out) == (GIVEN.weight, GIVEN.x, 0, GIVEN.out)


def test_fp8_products_into_a_stream(lt: FakeLt) -> None:
    site = Site(32, 48, 64, 64, 48, True, False, True, wide=True, narrow=True)
    ours = products()
    ours.prepare(site, (4096, 1 << 20))
    assert [kind for kind, *_ in lt.layouts] == [E4M3, E4M3, F32, F32]
    ours.run(site, Operands(16, 32, 48, 64, x_scale=80))
    *args, told = lt.done[-1]
    assert "D_SCALE_POINTER" not in told and told["BIAS_DATA_TYPE"] == BF16
    assert told["B_SCALE_POINTER"] == 80
    assert ctypes.c_float.from_address(told["A_SCALE_POINTER"]).value == 1.0
    assert ctypes.c_float.from_address(args[7]).value == 1.0  # beta
    assert args[8] == args[10] == 64


@pytest.mark.parametrize(("split", "kept"), [(4.2, 5.0), (3.8, 3.8)])
def test_a_kernel_more_has_to_gain_something(
    lt: FakeLt, monkeypatch: pytest.MonkeyPatch, split: float, kept: float
) -> None:
    monkeypatch.setattr(cublaslt.Timing, "measured", iter([(split, 2.0), (5.0, 1.0)]))
    ours = products()
    ours.prepare(SITE, (4096, 1 << 20))
    assert ours.choices[SITE.key] == kept


def test_what_is_not_offered_is_asked_for_once(lt: FakeLt) -> None:
    ours = products()
    assert not ours.offers(SITE, (4096, 1 << 20), prepare=False)
    lt.refused = True
    assert not ours.offers(SITE, (4096, 1 << 20), prepare=True)
    asked = len(lt.set)
    assert not ours.offers(SITE, (4096, 1 << 20), prepare=True) and len(lt.set) == asked
    with pytest.raises(DeviceError, match="expected an algorithm of cuBLASLt, got none"):
        ours.prepare(SITE, (4096, 1 << 20))


def clocks(times: Sequence[float], kernels: Sequence[int], measured: list[int]) -> list[Any]:
    """Timings of algorithms: how long each takes, and of how many kernels it is; says who ran."""

    class Clock:
        def __init__(self, place: int) -> None:
            self.place, self.kernels = place, kernels[place]

        def measure(self, rounds: int) -> None:
            measured.extend([self.place] * rounds)
            self.best = times[self.place]

    return [Clock(place) for place in range(len(times))]


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ((10.04, 10.0), 0),  # as fast: the library's guess
        ((10.06, 10.0), 1),
        ((10.0, 10.04), 0),
        ((12.0, 10.04, 11.0, 10.0, 10.02, 10.05, 13.0), 1),
        ((10.04, 10.0, 10.0, 10.0, 10.0, 10.0), 1),  # the first is not among those timed again
    ],
)
def test_algorithms_as_fast_as_each_other_are_the_first(
    times: tuple[float, ...], chosen: int
) -> None:
    measured: list[int] = []
    found: Any = cublaslt._fastest(clocks(times, [1] * len(times), measured))
    assert found.place == chosen
    count, again = len(times), min(len(times), 5)
    assert measured[: 2 * count] == [*range(count)] * 2, "in turn"
    assert len(measured) == 2 * count + 6 * again


@pytest.mark.parametrize(("split", "chosen"), [(9.1, 0), (8.9, 1)])
def test_a_kernel_more_has_to_gain_a_microsecond(split: float, chosen: int) -> None:
    found: Any = cublaslt._fastest(clocks((10.0, split), (1, 2), []))
    assert found.place == chosen


def test_choices_and_their_times_are_kept(lt: FakeLt, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    ours = products(path)
    times = {"fused": 60.0, "library": 75.5}
    ours.keep_choice("op 1 2", "fused", "abc", times)
    assert read_cache(path)["op 1 2"]["microseconds"] == times
    again = products(path)
    assert again.choice("op 1 2", "abc") == "fused"
    assert again.choice("op 1 2", "other kernels") is None
    path.write_text('{"op 1 2": {"way": "fused"}}')  # as it was kept before
    assert products(path).choice("op 1 2", "abc") is None


def test_choices_that_cannot_be_kept_hold_for_the_process(
    lt: FakeLt, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path("/proc/none/flashrt/kept.json")  # root may write anywhere but here
    ours = products(place)
    for way in ("fused", "library"):
        ours.keep_choice("op 1 2", way, "abc", {})
    assert ours.choice("op 1 2", "abc") == "library"
    (told,) = caplog.messages
    assert told.startswith(f"'{place}' cannot be written (") and "XDG_CACHE_HOME" in told
    (tmp_path / "folder.json").mkdir()
    assert read_cache(tmp_path / "folder.json") == {} and "cannot be read" in caplog.messages[-1]

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(algorithm_cache.json, "dump", full)
    products(tmp_path / "kept.json").keep_choice("op 1 2", "fused", "abc", {})
    assert "No space left" in caplog.messages[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert algorithm_cache.cache_path("GPU", 1) is None
    with pytest.raises(OptionError, match="got neither; set XDG_CACHE_HOME"):
        default_path({})


def test_a_product_that_does_not_run_is_named(lt: FakeLt) -> None:
    ours = products()
    ours.prepare(SITE, (4096, 1 << 20))

    def refuse(*args: Any) -> None:
        raise RuntimeError("NOT_SUPPORTED")

    lt.matmul = refuse
    with pytest.raises(DeviceError, match=rf"product {SITE.key}: .*NOT_SUPPORTED.*x 0x10, weight"):
        ours.run(SITE, GIVEN)
