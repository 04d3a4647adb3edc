"""A device of the tests: kernels of ``csrc/ops`` on the CPU, products by torch.

It does for single ops what ``CudaDevice`` does: captures bodies by calling the ops' CUDA launchers,
replays what they launched. Buffers are CPU tensors.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from flashrt_core.devices.cuda_library import Packed, sizes
from flashrt_core.devices.cuda_transfer import THREADS, CudaTransfer, Parameters
from flashrt_core.devices.transfer import Rows, pieces
from flashrt_core.kernels.launch import Size, Way, refuse_low_bit
from flashrt_core.kernels.maths import ACTIVATIONS
from flashrt_core.kernels.op import Op
from flashrt_core.kernels.quantised import store
from test.kernels.signatures import entries

from . import build

_MESSAGE = 4096


class EmulationError(Exception):
    """A kernel did what it may not do on a GPU; the message names it and the thread."""


class _TileMap(ctypes.Structure):
    """As ``TileMap`` of machine/machine.hpp."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("rank", "element_bytes", "swizzle", "unused")),
        ("size", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint32 * 5),
        ("stride", ctypes.c_uint64 * 4),
        ("rest", ctypes.c_byte * 32),
    )


class _Declared(ctypes.Structure):
    """As ``Declared`` of cuda/cuda_runtime.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
        ("parameters", ctypes.c_uint),
        ("most_threads", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
    )


class EmulatedDriver:
    """The part of the driver that packing arguments needs: encodes tile maps."""

    #: Element types stand for their bytes, swizzles too.
    api = SimpleNamespace(
        cuuint64_t=int,
        cuuint32_t=int,
        CUtensorMapSwizzle=SimpleNamespace(
            CU_TENSOR_MAP_SWIZZLE_NONE=0,
            CU_TENSOR_MAP_SWIZZLE_32B=32,
            CU_TENSOR_MAP_SWIZZLE_64B=64,
            CU_TENSOR_MAP_SWIZZLE_128B=128,
        ),
        CUtensorMapDataType=SimpleNamespace(
            CU_TENSOR_MAP_DATA_TYPE_BFLOAT16=2, CU_TENSOR_MAP_DATA_TYPE_UINT8=1
        ),
        CUtensorMapInterleave=SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0),
        CUtensorMapL2promotion=SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B=0),
        CUtensorMapFloatOOBfill=SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE=0),
    )
    device = None

    def call(self, name: str, *args: Any) -> Any:
        """``cuTensorMapEncodeTiled``, with the limits that the real one holds."""
        if name != "cuTensorMapEncodeTiled":
            raise EmulationError(f"{name}: expected cuTensorMapEncodeTiled")
        element, rank, base, size, stride, box, steps, _, swizzle, _, _ = args
        width = box[0] * element
        for wrong, what in (
            (not 1 <= rank <= 5, f"{rank} dimensions"),
            (base % 16, f"a base of {base:#x}, no multiple of 16"),
            (any(each % 16 or each >= 2**40 for each in stride), f"strides {stride} bytes"),
            (any(not 1 <= each <= 256 for each in box), f"a box of {box}"),
            (any(not 1 <= each <= 2**32 for each in size), f"a size of {size}"),
            (any(step != 1 for step in steps), f"steps {steps}"),
            (
                width % 16 or (swizzle and width > swizzle),
                f"rows of {width} bytes, swizzle {swizzle}",
            ),
        ):
            if wrong:
                raise EmulationError(f"tile map: {what}")
        tiles = _TileMap(base=base, rank=rank, element_bytes=element, swizzle=swizzle)
        tiles.size[:rank], tiles.box[:rank], tiles.stride[: rank - 1] = size, box, stride
        return SimpleNamespace(getPtr=lambda: ctypes.addressof(tiles), held=tiles)


@cache
def _machine() -> Any:
    """The machine, for all ops of the process."""
    loaded = ctypes.CDLL(str(build.machine()), mode=ctypes.RTLD_GLOBAL)
    launch = loaded.emulator_launch
    launch.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)),
        *(ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t),
    ]
    return launch


@cache
def _kernels(
    source: Path, architecture: int, changes: tuple[build.Change, ...]
) -> dict[str, _Declared]:
    """Entries of a library by name."""
    _machine()
    loaded = ctypes.CDLL(str(build.library(source, architecture, changes)))
    found, index = {}, 0
    table = ctypes.cast(loaded.emulator_declared, ctypes.POINTER(_Declared))
    while table[index].name:
        found[table[index].name.decode()] = table[index]
        index += 1
    return found


class EmulatedLauncher:
    """See :class:`flashrt_core.kernels.launch.Launcher`; keeps what is launched for replays.

    Attributes:
        sources: files whose kernels it has beside those of csrc/ops.
        changes: to the text of files, by their stem.
        steps: what a replay does, in order.
        launched: names of what was launched, products as "matmul".
        way: which of an op's ways :meth:`fastest` takes; the first where it has no such.
    """

    def __init__(self, architecture: int, workers: int, order: int) -> None:
        self.architecture = architecture
        self.sources: tuple[Path, ...] = ()
        self.changes: dict[str, tuple[build.Change, ...]] = {}
        self.multiprocessors = 132
        self.workers, self.order = workers, order
        self.steps: list[Callable[[], None]] = []
        self.launched: list[str] = []
        self.way = ""
        self._driver = EmulatedDriver()
        self._workspaces: dict[bool, Tensor] = {}

    def launch(
        self,
        kernel: str,
        grid: Size,
        block: Size,
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        cluster: Size | None = None,
        pdl: bool = True,
        carveout: int | None = None,
    ) -> None:
        declared = self._declared(kernel)
        fixed = tuple(declared.cluster)
        blocks = sizes(cluster) if cluster is not None else fixed if fixed[0] else (1, 1, 1)
        shape = (*sizes(grid), *sizes(block), *blocks)
        threads = prod(shape[3:6])
        for wrong, what in (
            (fixed[0] and fixed != blocks, f"a cluster of {blocks}, declared for {fixed}"),
            (
                any(a % b for a, b in zip(shape[:3], blocks, strict=True)),
                f"a grid of {grid}, clusters of {blocks}",
            ),
            (prod(blocks) > 8, f"a cluster of {blocks}"),
            (threads > declared.most_threads, f"{threads} threads, for {declared.most_threads}"),
            (shared_bytes > 232_448, f"{shared_bytes} bytes of shared memory"),
            (len(args) != declared.parameters, f"{len(args)} arguments for {declared.parameters}"),
        ):
            if wrong:
                raise EmulationError(f"kernel {kernel!r}: {what}")
        held = [
            arg if isinstance(arg, ctypes.Structure) else Packed(self._driver, [arg]).values[0]
            for arg in args
        ]
        table = (ctypes.c_void_p * max(1, len(held)))(*map(ctypes.addressof, held))
        kept = (held, *(arg for arg in args if isinstance(arg, Tensor)))
        numbers = (ctypes.c_uint * 9)(*shape)

        def step() -> None:
            message = ctypes.create_string_buffer(_MESSAGE)
            result = _machine()(
                declared.run, ctypes.addressof(table), numbers, shared_bytes,
                self.workers, self.order, message, _MESSAGE,
            )  # fmt: skip
            if result:
                raise EmulationError(f"kernel {kernel!r}: {message.value.decode()}")
            assert kept  # what the addresses are of lives as long as the step

        self._keep(kernel, step)

    def _declared(self, kernel: str) -> _Declared:
        known = entries().get(kernel)
        for source in (known,) if known else self.sources:
            changes = self.changes.get(source.stem, ())
            if kernel in (found := _kernels(source, self.architecture, changes)):
                return found[kernel]
        raise EmulationError(f"kernel {kernel!r}: no entry for architecture {self.architecture}")

    def matmul(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        gelu: bool = False,
        accumulate: bool = False,
        x_scale: Tensor | None = None,
        weight_scale: Tensor | None = None,
        out_scale: Tensor | None = None,
    ) -> None:
        def step() -> None:
            y = x.float() @ weight.float().T
            for scale in (x_scale, weight_scale):
                if scale is not None:
                    y.mul_(scale)
            if bias is not None:
                y.add_(bias)
            if gelu:
                y = ACTIVATIONS["gelu_tanh"](y)
            if accumulate:
                y.add_(out)
            store(y, out, out_scale)

        self._keep("matmul", step)

    def finishes(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        gelu: bool = False,
        accumulate: bool = False,
    ) -> bool:
        return bias is None or bias.dtype is torch.bfloat16

    def fastest(self, key: str, ways: Mapping[str, Way], x: Tensor, out: Tensor) -> None:
        ways.get(self.way, next(iter(ways.values())))(x, out)

    def workspace(self, *shape: int, weights: bool = False) -> Tensor:
        count, held = prod(shape), self._workspaces.get(weights)
        if held is None or held.numel() < count:
            held = self._workspaces[weights] = torch.full((count,), float("nan")).bfloat16()
        return held[:count].view(shape)

    def _keep(self, name: str, step: Callable[[], None]) -> None:
        self.steps.append(step)
        self.launched.append(name)


@dataclass(frozen=True)
class EmulatedProgram:
    """What one capture launched."""

    segments: tuple[str, ...]
    steps: tuple[Callable[[], None], ...]
    launches: tuple[str, ...]


class _Lane:
    def __init__(self, launcher: EmulatedLauncher) -> None:
        self._launcher = launcher

    def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
        assert op.launch is not None, f"op {op.name} has no CUDA launcher"
        refuse_low_bit(op, (*args, *kwargs.values()))
        op.launch(self._launcher, *args, **kwargs)


class EmulatedDevice:
    """One GPU that is none.

    Args:
        architecture: what kernels are compiled for and launchers choose by: 80, 90 or 100.
        workers: OS threads, each with a cluster of blocks.
        order: which warp runs until it has to wait: 0: the first that can, 1: the last, others: by
            chance, as copies arrive then.
    """

    name = "emulated"

    def __init__(
        self, *, architecture: int = 90, workers: int | None = None, order: int = 0
    ) -> None:
        if workers is None:  # tests side by side have a processor each
            workers = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1)
        self.launcher = EmulatedLauncher(architecture, workers, order)
        self.arch = f"sm_{architecture}"

    def capture(self, segments: Sequence[tuple[str, Callable[[Any], None]]]) -> EmulatedProgram:
        """What ``CudaDevice.capture`` gives; runs nothing."""
        launcher = self.launcher
        launcher.steps, launcher.launched = [], []
        for _, body in segments:
            body(_Lane(launcher))
        names = tuple(name for name, _ in segments)
        return EmulatedProgram(names, tuple(launcher.steps), tuple(launcher.launched))

    def replay(self, program: EmulatedProgram) -> None:
        """Runs what was captured, one launch after another."""
        for step in program.steps:
            step()

    def plan(self, copies: Sequence[Rows]) -> CudaTransfer:
        """What one launch of the kernel of copies takes."""
        parameters = Parameters(pieces(copies))
        return CudaTransfer(tuple(copies), "copy_pieces", (), False, parameters=parameters)

    def transfer(self, planned: CudaTransfer) -> None:
        """Copies, by a few blocks: the kernel takes any number."""
        self.launcher.launch("copy_pieces", 3, THREADS, (planned.parameters.plan,))
        self.launcher.steps[-1]()

    def synchronize(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""
