"""Planned copies as graphs: what is to be copied is in the graph, so that a launch says no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .cuda_driver import CudaDriver
from .cuda_graph import captured, instantiate
from .transfer import Piece, Transfer


@dataclass(frozen=True)
class CudaTransfer(Transfer):
    """Copies in one instantiated graph.

    Attributes:
        executable: the graph.
        windows: whether a window is among their buffers.
    """

    executable: Any
    windows: bool


def capture_pieces(
    driver: CudaDriver, stream: Any, pieces: tuple[Piece, ...], on_host: Callable[[int], bool]
) -> Any:
    """The executable graph of some copies, on the device before it is launched.

    Args:
        driver, stream: where it is captured, and where it will be launched.
        pieces: the copies.
        on_host: whether an address is one of the host's pinned memory.
    """
    with captured(driver, stream) as graph:
        for piece in pieces:
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
