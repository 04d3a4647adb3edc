"""Dense products through cuBLASLt, the algorithm of every site chosen by timing at set-up.

One workspace, allocated once. Choices are kept in a file, keyed by the site's shape, the GPU and
the cuBLASLt version: one machine runs the same algorithms, and gives the same bits, every time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ..errors import DeviceError
from .algorithm_cache import read_cache, write_cache
from .cuda_driver import CudaDriver
from .cuda_graph import Timing
from .product_site import Operands, Site

WORKSPACE_BYTES = 32 << 20
#: Algorithms that are timed a site, best guess of the library first.
CANDIDATES = 24
_TRIALS, _FINALISTS, _ROUNDS = 2, 5, 6
#: Microseconds that a kernel more has to gain: sums that are split and added up by another kernel
#: often win by less than two timings differ, and by less in a stage than when timed apart.
_KERNEL_PRICE = 1.0
#: What costs more by less is as fast: timed another day, it may be the faster one.
_AS_FAST = 1.005
#: Weights are rotated over more bytes than any L2 cache holds, to be found cold.
_COLD_BYTES = 200 << 20
_MOST_PRODUCTS = 48  # in one timed graph
# CUDA_R_16BF, CUDA_R_32F, CUDA_R_8F_E4M3, CUBLAS_COMPUTE_32F
_BF16, _F32, _E4M3, _COMPUTE_F32 = 14, 0, 28, 68
_TORCH = {_BF16: torch.bfloat16, _F32: torch.float32, _E4M3: torch.float8_e4m3fn}


@dataclass
class _Plan:
    site: Site
    description: int
    layouts: tuple[int, int, int, int]  # weight, x, addend, out
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
        self._cached = read_cache(cache)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._handle = self._lt.create()
        self._plans: dict[Site, _Plan] = {}
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._refused: set[Site] = set()
        self._unit = torch.ones(1, device="cuda")  # the scale of what has none
        self.timed = 0

    @property
    def choices(self) -> dict[str, float]:
        """Microseconds of every site's chosen algorithm, when it was timed."""
        return {site.key: plan.microseconds for site, plan in self._plans.items()}

    def offers(self, site: Site, cold: tuple[int, int], *, prepare: bool) -> bool:
        """Whether the library has an algorithm for this site.

        With ``prepare`` what was not asked before is tried, as in :meth:`prepare`.
        """
        if prepare and site not in self._refused:
            try:
                self.prepare(site, cold)
            except (DeviceError, self._lt.cuBLASLtError):
                self._refused.add(site)
        return site in self._plans

    def prepare(self, site: Site, cold: tuple[int, int]) -> None:
        """Choose the algorithm of a site. Not while capturing.

        ``cold``: start and size of device memory that weights may be read from while timing.
        """
        if site in self._plans:
            return
        plan = self._describe(site)
        try:
            self._find(plan, cold)
        except DeviceError:
            self._discard(plan)
            raise
        self._plans[site] = plan

    def _find(self, plan: _Plan, cold: tuple[int, int]) -> None:
        """The algorithm that was chosen before, or a choice."""
        site = plan.site
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
            write_cache(self._cache_file, self._cached)

    def _discard(self, plan: _Plan) -> None:
        self._lt.matmul_desc_destroy(plan.description)
        for layout in plan.layouts:
            self._lt.matrix_layout_destroy(layout)

    def run(self, site: Site, operands: Operands) -> None:
        """Put a prepared product on the stream."""
        plan = self._plans[site]
        try:
            self._matmul(plan, operands, plan.algorithm)
        except self._lt.cuBLASLtError as error:
            places = ", ".join(f"{name} {place:#x}" for name, place in asdict(operands).items())
            raise DeviceError(
                f"product {site.key}", expected="cuBLASLt to run it", got=f"{error} ({places})"
            ) from error

    def choice(self, key: str, kernels: str) -> str | None:
        """What :meth:`keep_choice` kept under ``key`` for these kernels."""
        kept = self._cached.get(key, {})
        return str(kept["way"]) if kept.get("kernels") == kernels else None

    def keep_choice(self, key: str, way: str, kernels: str, microseconds: dict[str, float]) -> None:
        """Keep the fastest way to do something beside the algorithms, and what each one took.

        ``kernels``: digest of those that some ways launch; with others the race is another.
        """
        self._cached[key] = {"way": way, "kernels": kernels, "microseconds": microseconds}
        write_cache(self._cache_file, self._cached)

    def close(self) -> None:
        """Release handles and workspace."""
        for plan in self._plans.values():
            self._discard(plan)
        self._plans.clear()
        self._lt.destroy(self._handle)
        self._workspace = self._unit = torch.empty(0)

    def _matmul(self, plan: _Plan, operands: Operands, algorithm: Any) -> None:
        site = plan.site
        if site.bias:
            self._point(plan.description, "BIAS_POINTER", operands.bias)
        if site.narrow:
            unit = self._unit.data_ptr()
            self._point(plan.description, "A_SCALE_POINTER", operands.weight_scale or unit)
            self._point(plan.description, "B_SCALE_POINTER", operands.x_scale or unit)
        if site.quantised:
            self._point(plan.description, "D_SCALE_POINTER", operands.out_factor)
        weight, x, addend, out = plan.layouts
        self._lt.matmul(
            self._handle,
            plan.description,
            ctypes.addressof(self._one),
            operands.weight,
            weight,
            operands.x,
            x,
            ctypes.addressof(self._one if site.accumulate else self._zero),
            0 if site.quantised else operands.out,
            addend,
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
        operand, addend, result, bias = _formats(site)
        # Heuristics may refuse a null pointer; any aligned address will do until it runs.
        anywhere = self._workspace.data_ptr()
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
            self._set(description, attribute.BIAS_DATA_TYPE, bias, ctypes.c_int32)
            self._point(description, "BIAS_POINTER", anywhere)
        if site.narrow:
            self._set(description, attribute.FAST_ACCUM, 1, ctypes.c_int8)
            self._point(description, "A_SCALE_POINTER", anywhere)
            self._point(description, "B_SCALE_POINTER", anywhere)
        if site.quantised:
            self._point(description, "D_SCALE_POINTER", anywhere)
        layouts = (
            lt.matrix_layout_create(operand, site.depth, site.columns, site.depth),
            lt.matrix_layout_create(operand, site.depth, site.rows, site.x_stride),
            lt.matrix_layout_create(addend, site.columns, site.rows, site.out_stride),
            lt.matrix_layout_create(result, site.columns, site.rows, site.out_stride),
        )
        return _Plan(site, description, layouts, None, 0.0)

    def _point(self, description: int, attribute: str, address: int) -> None:
        self._set(
            description, getattr(self._lt.MatmulDescAttribute, attribute), address, ctypes.c_uint64
        )

    def _set(self, description: int, attribute: Any, value: int, kind: Any) -> None:
        buffer = kind(value)
        self._lt.matmul_desc_set_attribute(
            description, int(attribute), ctypes.addressof(buffer), ctypes.sizeof(buffer)
        )

    def _usable(self, plan: _Plan, words: Sequence[int]) -> bool:
        """Whether the library still takes a stored algorithm for this site."""
        algorithm = np.array(words, dtype=np.uint64)
        result = self._lt.MatmulHeuristicResult(1)
        try:
            self._lt.matmul_algo_check(
                self._handle,
                plan.description,
                *plan.layouts,
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
            whole = plan.site.depth % (16 if plan.site.narrow else 8) == 0
            aligned = ctypes.c_uint32(16 if whole else 8)
            lt.matmul_preference_set_attribute(
                preference,
                int(getattr(attribute, f"MIN_ALIGNMENT_{name}_BYTES")),
                ctypes.addressof(aligned),
                4,
            )
        results = np.zeros(CANDIDATES, dtype=lt.matmul_heuristic_result_dtype)
        count = ctypes.c_int32(0)
        try:
            lt.matmul_algo_get_heuristic(
                self._handle,
                plan.description,
                *plan.layouts,
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
        """Time all candidates in turn, then the best few; keep one that none is cheaper than."""
        site = plan.site
        operand, _, result, of_bias = (_TORCH[kind] for kind in _formats(site))
        x = torch.randn(site.rows * site.x_stride, device="cuda").to(operand)
        out = torch.zeros(site.rows * site.out_stride, device="cuda").to(result)
        bias = torch.zeros(site.columns, device="cuda", dtype=of_bias)
        unit = self._unit.data_ptr()
        torch.cuda.synchronize()
        products = [
            Operands(x.data_ptr(), weight, bias.data_ptr(), out.data_ptr(), out_factor=unit)
            for weight in _rotation(cold, site.columns * site.depth * x.element_size())
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
            chosen = _fastest(timings)
        plan.microseconds, plan.algorithm = chosen.best, chosen.algorithm


def _fastest(timings: Sequence[Timing]) -> Timing:
    """Of those that are as cheap as any the library's best guess, so that processes agree on it."""
    for _ in range(_TRIALS):  # in turn: clocks that change meet all of them
        for timing in timings:
            timing.measure(1)
    finalists = sorted(timings, key=_price)[:_FINALISTS]
    for _ in range(_ROUNDS):
        for timing in finalists:
            timing.measure(1)
    limit = min(_price(timing) for timing in finalists) * _AS_FAST
    return next(each for each in timings if each in finalists and _price(each) <= limit)


def _price(timing: Timing) -> float:
    return timing.best + _KERNEL_PRICE * timing.kernels


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


def _formats(site: Site) -> tuple[int, int, int, int]:
    """Of operands, addend, result and bias; the library wants a wide addend by an E4M3 result."""
    wide = _F32 if site.wide else _BF16
    result = _E4M3 if site.quantised else wide
    return _E4M3 if site.narrow else _BF16, wide, result, _BF16 if site.narrow else wide


def _rotation(cold: tuple[int, int], nbytes: int) -> Iterator[int]:
    """Addresses of weights one behind the other, over more memory than a cache holds."""
    start, size = cold
    step = -(-nbytes // 256) * 256
    count = min(_MOST_PRODUCTS, max(2, -(-_COLD_BYTES // step)))
    fits = max(1, (size - nbytes) // step + 1)
    for index in range(count):
        yield start + index % fits * step
