"""Dense products through cuBLASLt, the algorithm of every site chosen by timing at set-up.

One workspace, allocated once. Choices are kept in a file, keyed by the site's shape, the GPU and
the cuBLASLt version: one machine runs the same algorithms, and gives the same bits, every time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DeviceError
from .algorithm_cache import read_cache, write_cache
from .cuda_driver import CudaDriver
from .cuda_graph import Timing
from .product_site import Operands, Scaling, Site

WORKSPACE_BYTES = 32 << 20
#: Algorithms that are timed a site, best guess of the library first.
CANDIDATES = 24
_FINALISTS, _ROUNDS = 5, 6
#: Weights are rotated over more bytes than any L2 cache holds, to be found cold.
_COLD_BYTES = 200 << 20
_MOST_PRODUCTS = 48  # in one timed graph
# CUDA_R_16BF, CUDA_R_32F, CUDA_R_8F_E4M3, CUBLAS_COMPUTE_32F
_BF16, _F32, _E4M3, _COMPUTE_F32 = 14, 0, 28, 68
_ON_DEVICE, _ALPHA_VECTOR = 1, 4  # cublasLtPointerMode_t


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
        self._cached = read_cache(cache)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._handle = self._lt.create()
        self._plans: dict[Site, _Plan] = {}
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._refused: set[Site] = set()
        # Where alpha and beta, or the scales of x's rows, are read on the device.
        self._zero_and_one = torch.tensor([0.0, 1.0], device="cuda")
        self._ones: list[Tensor] = []
        self.timed = 0

    @property
    def choices(self) -> dict[str, float]:
        """Microseconds of every site's chosen algorithm, when it was timed."""
        return {site.key: plan.microseconds for site, plan in self._plans.items()}

    def scaling(self, site: Site, cold: tuple[int, int], *, prepare: bool) -> Scaling | None:
        """The best way to multiply a product of E4M3 by a scale for each row of its weight.

        None where the library has none for this site. With ``prepare`` what was not asked before is
        tried, as in :meth:`prepare`.
        """
        for way in (Scaling.OUTER, Scaling.VECTOR):
            tried = replace(site, scaling=way)
            if prepare and tried not in self._plans and tried not in self._refused:
                try:
                    self.prepare(tried, cold)
                except (DeviceError, self._lt.cuBLASLtError):
                    self._refused.add(tried)
            if tried in self._plans:
                return way
        return None

    def prepare(self, site: Site, cold: tuple[int, int]) -> None:
        """Choose the algorithm of a site. Not while capturing.

        ``cold``: start and size of device memory that weights may be read from while timing.
        """
        if site in self._plans:
            return
        if site.scaling is Scaling.OUTER and (not self._ones or len(self._ones[-1]) < site.rows):
            # Graphs captured earlier hold the address of the shorter one, so that one stays.
            self._ones.append(torch.ones(site.rows, device="cuda"))
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
        self._matmul(plan, operands, plan.algorithm)

    def choice(self, key: str) -> str | None:
        """What :meth:`keep_choice` kept under ``key``."""
        kept = self._cached.get(key)
        return None if kept is None else str(kept["way"])

    def keep_choice(self, key: str, way: str) -> None:
        """Keep the name of the fastest way to do something beside the algorithms."""
        self._cached[key] = {"way": way}
        write_cache(self._cache_file, self._cached)

    def close(self) -> None:
        """Release handles and workspace."""
        for plan in self._plans.values():
            self._discard(plan)
        self._plans.clear()
        self._lt.destroy(self._handle)
        self._workspace = self._zero_and_one = torch.empty(0)
        self._ones.clear()

    def _matmul(self, plan: _Plan, operands: Operands, algorithm: Any) -> None:
        if plan.site.bias:
            self._point(plan.description, "BIAS_POINTER", operands.bias)
        alpha, beta = self._factors(plan, operands)
        weight, x, out = plan.layouts
        self._lt.matmul(
            self._handle,
            plan.description,
            alpha,
            operands.weight,
            weight,
            operands.x,
            x,
            beta,
            operands.out,
            out,
            operands.out,
            out,
            algorithm.ctypes.data,
            self._workspace.data_ptr(),
            WORKSPACE_BYTES,
            int(self._stream),
        )

    def _factors(self, plan: _Plan, operands: Operands) -> tuple[int, int]:
        """Addresses of alpha and beta; sets the pointers of scales."""
        site = plan.site
        beta = ctypes.addressof(self._one if site.accumulate else self._zero)
        if site.scaling is Scaling.OUTER:
            # Vectors for both operands or none: the rows of x share one scale, which goes to alpha.
            self._point(plan.description, "A_SCALE_POINTER", operands.weight_scale)
            self._point(plan.description, "B_SCALE_POINTER", self._ones[-1].data_ptr())
            return operands.x_scale, self._zero_and_one.data_ptr() + 4 * site.accumulate
        if site.scaling:
            self._point(plan.description, "B_SCALE_POINTER", operands.x_scale)
        if site.scaling is Scaling.VECTOR:
            return operands.weight_scale, beta
        return ctypes.addressof(self._one), beta

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
            kind = _BF16 if site.scaling else result
            self._set(description, attribute.BIAS_DATA_TYPE, kind, ctypes.c_int32)
            # Heuristics may refuse a null bias; any aligned address will do until it runs.
            self._point(description, "BIAS_POINTER", self._workspace.data_ptr())
        if site.scaling:
            self._describe_scaling(description, site.scaling)
        operand = _E4M3 if site.scaling else _BF16
        layouts = (
            lt.matrix_layout_create(operand, site.depth, site.columns, site.depth),
            lt.matrix_layout_create(operand, site.depth, site.rows, site.x_stride),
            lt.matrix_layout_create(result, site.columns, site.rows, site.out_stride),
        )
        return _Plan(site, description, layouts, None, 0.0)

    def _describe_scaling(self, description: int, scaling: Scaling) -> None:
        attribute, anywhere = self._lt.MatmulDescAttribute, self._workspace.data_ptr()
        self._set(description, attribute.FAST_ACCUM, 1, ctypes.c_int8)
        self._point(description, "B_SCALE_POINTER", anywhere)
        if scaling is Scaling.OUTER:
            mode = int(self._lt.MatmulMatrixScale.OUTER_VEC_32F)
            self._set(description, attribute.A_SCALE_MODE, mode, ctypes.c_int32)
            self._set(description, attribute.B_SCALE_MODE, mode, ctypes.c_int32)
            self._point(description, "A_SCALE_POINTER", anywhere)
        if scaling is not Scaling.SCALAR:
            place = _ON_DEVICE if scaling is Scaling.OUTER else _ALPHA_VECTOR
            self._set(description, attribute.POINTER_MODE, place, ctypes.c_int32)

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
            whole = plan.site.depth % (16 if plan.site.scaling else 8) == 0
            aligned = ctypes.c_uint32(16 if whole else 8)
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
        operand = torch.float8_e4m3fn if site.scaling else torch.bfloat16
        x = torch.randn(site.rows * site.x_stride, device="cuda").to(operand)
        result = torch.float32 if site.wide else torch.bfloat16
        out = torch.zeros(site.rows * site.out_stride, device="cuda", dtype=result)
        bias = torch.zeros(
            site.columns, device="cuda", dtype=torch.bfloat16 if site.scaling else result
        )
        scales = torch.ones(site.columns, device="cuda")
        torch.cuda.synchronize()
        products = [
            Operands(
                x.data_ptr(),
                weight,
                bias.data_ptr(),
                out.data_ptr(),
                scales.data_ptr(),
                scales.data_ptr(),
            )
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


def _rotation(cold: tuple[int, int], nbytes: int) -> Iterator[int]:
    """Addresses of weights one behind the other, over more memory than a cache holds."""
    start, size = cold
    step = -(-nbytes // 256) * 256
    count = min(_MOST_PRODUCTS, max(2, -(-_COLD_BYTES // step)))
    fits = max(1, (size - nbytes) // step + 1)
    for index in range(count):
        yield start + index % fits * step
