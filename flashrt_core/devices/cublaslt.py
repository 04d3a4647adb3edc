"""Dense products through cuBLASLt, the algorithm of every site chosen by timing at set-up.

One workspace, allocated once. Choices are kept in a file, keyed by the site's shape, the GPU and
the cuBLASLt version: one machine runs the same algorithms, and gives the same bits, every time.
"""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ..errors import DeviceError
from .cuda_driver import CudaDriver
from .cuda_graph import Timing

WORKSPACE_BYTES = 32 << 20
#: Algorithms that are timed a site, best guess of the library first.
CANDIDATES = 24
_FINALISTS, _ROUNDS = 5, 6
#: Weights are rotated over more bytes than any L2 cache holds, to be found cold.
_COLD_BYTES = 200 << 20
_MOST_PRODUCTS = 48  # in one timed graph
_BF16, _F32, _COMPUTE_F32 = 14, 0, 68  # CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F


@dataclass(frozen=True)
class Site:
    """What decides how fast a product runs.

    Attributes:
        rows, columns, depth: M, N, K of out [M, N] = x [M, K] W[N, K]^T.
        x_stride, out_stride: elements between rows.
        bias, gelu, accumulate: parts of the epilogue.
        wide: out and bias are float32, x and W still bf16.
    """

    rows: int
    columns: int
    depth: int
    x_stride: int
    out_stride: int
    bias: bool
    gelu: bool
    accumulate: bool
    wide: bool = False

    @property
    def key(self) -> str:
        """Name in the cache file."""
        return "-".join(str(int(part)) for part in astuple(self))


@dataclass(frozen=True)
class Operands:
    """Device addresses of one product."""

    x: int
    weight: int
    bias: int
    out: int


@dataclass
class _Plan:
    site: Site
    description: int
    layouts: tuple[int, int, int]  # weight, x, out
    algorithm: Any  # the 64 bytes of cublasLtMatmulAlgo_t
    microseconds: float


class CublasLt:
    """Products of one device on one stream.

    Args:
        driver: whose context is current.
        stream: where products go.
        cache: file of chosen algorithms; None times every site anew.
        cold: start and size of device memory that weights may be read from while timing.
    """

    def __init__(self, driver: CudaDriver, stream: Any, cache: Path | None) -> None:
        self._lt = load_cublaslt()
        self._driver = driver
        self._stream = stream
        self._cache_file = cache
        self._cached = _read_cache(cache)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._handle = self._lt.create()
        self._plans: dict[Site, _Plan] = {}
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self.timed = 0

    @property
    def choices(self) -> dict[str, float]:
        """Microseconds of every site's chosen algorithm, when it was timed."""
        return {site.key: plan.microseconds for site, plan in self._plans.items()}

    def prepare(self, site: Site, cold: tuple[int, int]) -> None:
        """Choose the algorithm of a site. Not while capturing.

        ``cold``: start and size of device memory that weights may be read from while timing.
        """
        if site in self._plans:
            return
        plan = self._describe(site)
        stored = self._cached.get(site.key)
        if stored and self._usable(plan, stored["algorithm"]):
            plan.algorithm = np.array(stored["algorithm"], dtype=np.uint64)
            plan.microseconds = float(stored["microseconds"])
        else:
            self._choose(plan, cold)
            self._cached[site.key] = {
                "algorithm": [int(word) for word in plan.algorithm],
                "microseconds": plan.microseconds,
            }
            _write_cache(self._cache_file, self._cached)
        self._plans[site] = plan

    def run(self, site: Site, operands: Operands) -> None:
        """Put a prepared product on the stream."""
        plan = self._plans[site]
        self._matmul(plan, operands, plan.algorithm)

    def choice(self, key: str) -> str | None:
        """What :meth:`keep_choice` kept under ``key``."""
        kept = self._cached.get(key)
        return None if kept is None else str(kept["way"])

    def keep_choice(self, key: str, way: str) -> None:
        """Keep the name of the fastest way to do something beside the algorithms."""
        self._cached[key] = {"way": way}
        _write_cache(self._cache_file, self._cached)

    def close(self) -> None:
        """Release handles and workspace."""
        for plan in self._plans.values():
            self._lt.matmul_desc_destroy(plan.description)
            for layout in plan.layouts:
                self._lt.matrix_layout_destroy(layout)
        self._plans.clear()
        self._lt.destroy(self._handle)
        self._workspace = torch.empty(0)

    def _matmul(self, plan: _Plan, operands: Operands, algorithm: Any) -> None:
        if plan.site.bias:
            self._set(
                plan.description,
                self._lt.MatmulDescAttribute.BIAS_POINTER,
                operands.bias,
                ctypes.c_uint64,
            )
        weight, x, out = plan.layouts
        beta = self._one if plan.site.accumulate else self._zero
        self._lt.matmul(
            self._handle,
            plan.description,
            ctypes.addressof(self._one),
            operands.weight,
            weight,
            operands.x,
            x,
            ctypes.addressof(beta),
            operands.out,
            out,
            operands.out,
            out,
            algorithm.ctypes.data,
            self._workspace.data_ptr(),
            WORKSPACE_BYTES,
            int(self._stream),
        )

    def _describe(self, site: Site) -> _Plan:
        """Row-major out = x W^T is column-major out^T = W x^T with W transposed."""
        lt, attribute = self._lt, self._lt.MatmulDescAttribute
        result = _F32 if site.wide else _BF16
        description = lt.matmul_desc_create(_COMPUTE_F32, _F32)
        self._set(description, attribute.TRANSA, 1, ctypes.c_int32)
        kinds = lt.Epilogue
        epilogue = {
            (False, False): kinds.DEFAULT,
            (True, False): kinds.BIAS,
            (False, True): kinds.GELU,
            (True, True): kinds.GELU_BIAS,
        }[site.bias, site.gelu]
        self._set(description, attribute.EPILOGUE, int(epilogue), ctypes.c_uint32)
        if site.bias:
            self._set(description, attribute.BIAS_DATA_TYPE, result, ctypes.c_int32)
            # Heuristics may refuse a null bias; any aligned address will do until it runs.
            self._set(
                description, attribute.BIAS_POINTER, self._workspace.data_ptr(), ctypes.c_uint64
            )
        layouts = (
            lt.matrix_layout_create(_BF16, site.depth, site.columns, site.depth),
            lt.matrix_layout_create(_BF16, site.depth, site.rows, site.x_stride),
            lt.matrix_layout_create(result, site.columns, site.rows, site.out_stride),
        )
        return _Plan(site, description, layouts, None, 0.0)

    def _set(self, description: int, attribute: Any, value: int, kind: Any) -> None:
        buffer = kind(value)
        self._lt.matmul_desc_set_attribute(
            description, int(attribute), ctypes.addressof(buffer), ctypes.sizeof(buffer)
        )

    def _usable(self, plan: _Plan, words: Sequence[int]) -> bool:
        """Whether the library still takes a stored algorithm for this site."""
        algorithm = np.array(words, dtype=np.uint64)
        result = self._lt.MatmulHeuristicResult(1)
        weight, x, out = plan.layouts
        try:
            self._lt.matmul_algo_check(
                self._handle,
                plan.description,
                weight,
                x,
                out,
                out,
                algorithm.ctypes.data,
                result.ptr,
            )
        except self._lt.cuBLASLtError:
            return False
        return int(result.workspace_size) <= WORKSPACE_BYTES

    def _candidates(self, plan: _Plan) -> list[Any]:
        lt = self._lt
        preference = lt.matmul_preference_create()
        limit = ctypes.c_uint64(WORKSPACE_BYTES)
        attribute = lt.MatmulPreferenceAttribute
        lt.matmul_preference_set_attribute(
            preference, int(attribute.MAX_WORKSPACE_BYTES), ctypes.addressof(limit), 8
        )
        # What was allocated is 256-byte aligned, but rows need not be.
        for name in ("A", "B", "C", "D"):
            aligned = ctypes.c_uint32(16 if plan.site.depth % 8 == 0 else 8)
            lt.matmul_preference_set_attribute(
                preference,
                int(getattr(attribute, f"MIN_ALIGNMENT_{name}_BYTES")),
                ctypes.addressof(aligned),
                4,
            )
        results = np.zeros(CANDIDATES, dtype=lt.matmul_heuristic_result_dtype)
        count = ctypes.c_int32(0)
        weight, x, out = plan.layouts
        try:
            lt.matmul_algo_get_heuristic(
                self._handle,
                plan.description,
                weight,
                x,
                out,
                out,
                preference,
                CANDIDATES,
                results.ctypes.data,
                ctypes.addressof(count),
            )
        except lt.cuBLASLtError as error:
            raise DeviceError(
                f"product {plan.site}", expected="an algorithm of cuBLASLt", got=str(error)
            ) from error
        finally:
            lt.matmul_preference_destroy(preference)
        found = [results[i] for i in range(count.value) if results[i]["state"] == 0]
        if not found:
            raise DeviceError(
                f"product {plan.site}", expected="an algorithm of cuBLASLt", got="none"
            )
        return [np.array(result["algo"]["data_"], dtype=np.uint64) for result in found]

    def _choose(self, plan: _Plan, cold: tuple[int, int]) -> None:
        """Time every candidate once, the best few again in turn, and keep the fastest."""
        site = plan.site
        x = torch.randn(site.rows * site.x_stride, device="cuda").to(torch.bfloat16)
        result = torch.float32 if site.wide else torch.bfloat16
        out = torch.zeros(site.rows * site.out_stride, device="cuda", dtype=result)
        bias = torch.zeros(site.columns, device="cuda", dtype=result)
        torch.cuda.synchronize()
        products = [
            Operands(x.data_ptr(), weight, bias.data_ptr(), out.data_ptr())
            for weight in _rotation(cold, site.columns * site.depth * 2)
        ]
        timings: list[Timing] = []
        with ExitStack() as opened:
            for algorithm in self._candidates(plan):
                calls = [partial(self._matmul, plan, product, algorithm) for product in products]
                try:
                    timings.append(Timing(self._driver, self._stream, algorithm, calls))
                except self._lt.cuBLASLtError:  # a guess that does not run on these operands
                    continue
                opened.callback(timings[-1].close)
            if not timings:
                raise DeviceError(
                    f"product {site}",
                    expected="an algorithm that runs",
                    got="none of those offered",
                )
            self.timed += len(timings)
            for timing in timings:
                timing.measure(2)
            finalists = sorted(timings, key=lambda timing: timing.best)[:_FINALISTS]
            for _ in range(_ROUNDS):
                for timing in finalists:
                    timing.measure(1)
        best = min(finalists, key=lambda timing: timing.best)
        plan.microseconds, plan.algorithm = best.best, best.algorithm


def load_cublaslt() -> ModuleType:
    """``nvmath.bindings.cublasLt``; DeviceError when the package is missing."""
    try:
        from nvmath.bindings import cublasLt
    except ImportError as error:
        raise DeviceError(
            "device 'cuda'",
            expected="package nvmath-python",
            got=str(error),
            remedy="pip install 'flashrt-ros[cuda]', or set device to 'cpu'",
        ) from error
    return cublasLt


def cache_path(gpu: str, version: int) -> Path:
    """Where the chosen algorithms of this GPU and library version are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "flashrt" / f"cublaslt-{version}-{gpu.replace(' ', '_')}.json"


def _rotation(cold: tuple[int, int], nbytes: int) -> Iterator[int]:
    """Addresses of weights one behind the other, over more memory than a cache holds."""
    start, size = cold
    step = -(-nbytes // 256) * 256
    count = min(_MOST_PRODUCTS, max(2, -(-_COLD_BYTES // step)))
    fits = max(1, (size - nbytes) // step + 1)
    for index in range(count):
        yield start + index % fits * step


def _read_cache(path: Path | None) -> dict[str, Any]:
    if path is None or not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, OSError) as error:
        raise DeviceError(
            f"cache of algorithms {path}", expected="JSON", got=str(error), remedy="delete the file"
        ) from error


def _write_cache(path: Path | None, values: dict[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump(values, file, indent=1)
    Path(name).replace(path)
