"""Copies that are planned: what is to be copied is in a parameter or a graph, so that starting it
says no more.

Between memory of the device our own kernel copies: a launch of it asks less of the driver than that
of a graph does. To and from the host the copy engines copy, in a graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .cuda_driver import CudaDriver
from .cuda_graph import captured, instantiate
from .cuda_library import KernelLibrary
from .transfer import Piece, Rows, Transfer, pieces

#: What the kernel takes; csrc/ops/copy_pieces.cu has the same numbers.
MOST_PIECES = 8
MOST_BYTES = (1 << 32) - 1
THREADS = 512
_LAUNCH = "cuLaunchKernel"
_BLOCKS = 2  # a multiprocessor: enough loads under way to fill the memory of any of them


class _Piece(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_uint64) for name in Piece._fields]


class _Plan(ctypes.Structure):
    _fields_: ClassVar = [("pieces", _Piece * MOST_PIECES), ("count", ctypes.c_uint64)]


@dataclass(frozen=True)
class CudaTransfer(Transfer):
    """Copies behind one driver call.

    Attributes:
        call, args: its name and arguments.
        windows: whether a window is among their buffers.
        executable: the graph; None where the kernel copies.
        parameters: of the kernel, where it does.
    """

    call: str
    args: tuple[Any, ...] = field(repr=False)
    windows: bool
    executable: Any = None
    parameters: Any = field(default=None, repr=False)


class Parameters:
    """The pieces of a launch where the driver reads them; it does so before the call returns."""

    def __init__(self, found: Sequence[Piece]) -> None:
        self.plan = _Plan(count=len(found))
        for place, piece in zip(self.plan.pieces, found, strict=False):
            for name, value in zip(Piece._fields, piece, strict=True):
                setattr(place, name, value)
        self._table = (ctypes.c_void_p * 1)(ctypes.addressof(self.plan))
        self.address = ctypes.addressof(self._table)


class Copier:
    """Copies on one stream, most of them by the kernel ``copy_pieces``.

    Args:
        driver, library: of the GPU, and of the kernel.
        stream: where copies go.
        aside: where a launch that copies nothing goes, which the others then do not wait for.

    Attributes:
        function: handle of the kernel.
        blocks: of a launch, THREADS threads each.
        idle: one block that finds nothing to copy.
    """

    def __init__(self, driver: CudaDriver, library: KernelLibrary, stream: Any, aside: Any) -> None:
        self._driver = driver
        self._stream = stream
        self.function = library.function("copy_pieces")
        self.blocks = _BLOCKS * driver.multiprocessors
        nothing = Parameters(())
        args = self._args(nothing, 1, aside)
        self.idle = CudaTransfer((), _LAUNCH, args, False, parameters=nothing)
        driver.call(_LAUNCH, *args)  # the first launch loads the machine code

    def plan(
        self,
        copies: Sequence[Rows],
        in_window: Callable[[int], bool],
        on_host: Callable[[int], bool],
    ) -> CudaTransfer:
        """Make copies ready: the kernel's, or a graph where memory of the host is among them.

        Args:
            copies: what is to be copied.
            in_window, on_host: whether an address is a window's, or one of pinned memory.
        """
        found = pieces(copies)
        places = [buffer.data_ptr() for each in copies for buffer in (each.target, each.source)]
        windows = any(map(in_window, places))
        fits = len(found) <= MOST_PIECES and all(p.width * p.rows <= MOST_BYTES for p in found)
        if fits and not any(map(on_host, places)):
            parameters = Parameters(found)
            args = self._args(parameters, self.blocks, self._stream)
            return CudaTransfer(tuple(copies), _LAUNCH, args, windows, parameters=parameters)
        executable = _capture(self._driver, self._stream, found, on_host)
        args = (executable, self._stream)
        return CudaTransfer(tuple(copies), "cuGraphLaunch", args, windows, executable)

    def _args(self, parameters: Parameters, blocks: int, stream: Any) -> tuple[Any, ...]:
        sizes = (blocks, 1, 1, THREADS, 1, 1)
        return (self.function, *sizes, 0, stream, parameters.address, 0)


def _capture(
    driver: CudaDriver, stream: Any, found: Sequence[Piece], on_host: Callable[[int], bool]
) -> Any:
    """The executable graph of some copies, on the device before it is launched.

    Args:
        driver, stream: where it is captured, and where it will be launched.
        found: the copies.
        on_host: whether an address is one of the host's pinned memory.
    """
    with captured(driver, stream) as graph:
        for piece in found:
            driver.call("cuMemcpy2DAsync", _described(driver, piece, on_host), stream)
    executable, _ = instantiate(driver, graph)
    try:
        driver.call("cuGraphUpload", executable, stream)
    except BaseException:
        driver.call("cuGraphExecDestroy", executable)
        raise
    return executable


def _described(driver: CudaDriver, piece: Piece, on_host: Callable[[int], bool]) -> Any:
    """A piece as the driver takes it.

    Pinned memory is named as the host's, not as unified: in a graph, some GPUs refuse the latter.
    """
    kinds = driver.api.CUmemorytype
    copy = driver.api.CUDA_MEMCPY2D()
    if on_host(piece.source):
        copy.srcMemoryType, copy.srcHost = kinds.CU_MEMORYTYPE_HOST, piece.source
    else:
        copy.srcMemoryType, copy.srcDevice = kinds.CU_MEMORYTYPE_DEVICE, piece.source
    if on_host(piece.target):
        copy.dstMemoryType, copy.dstHost = kinds.CU_MEMORYTYPE_HOST, piece.target
    else:
        copy.dstMemoryType, copy.dstDevice = kinds.CU_MEMORYTYPE_DEVICE, piece.target
    copy.srcPitch, copy.dstPitch = piece.source_pitch, piece.target_pitch
    copy.WidthInBytes, copy.Height = piece.width, piece.rows
    return copy
