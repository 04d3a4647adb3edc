"""Pinned host memory, and the block of it behind the windows, laid out as they are on the device.

What the host writes waits in the block; before a replay all changed windows that are neighbours go
over in one copy. A result comes back behind the replay, under the same wait.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base import NUMPY_DTYPES
from .cuda_driver import CudaDriver

_NUMPY = {getattr(torch, kind.value): dtype for kind, dtype in NUMPY_DTYPES.items()}
#: From so many bytes on, a window has two places on the host.
_LARGE = 1 << 16


class Pinned:
    """Zeroed memory of the host that the GPU reads and writes at its full rate.

    Attributes:
        address: of its first byte.
        view: its bytes; not to be used after :meth:`close`.
    """

    def __init__(self, driver: CudaDriver, nbytes: int) -> None:
        self._driver = driver
        self.address = int(driver.call("cuMemHostAlloc", nbytes, 0))
        memory = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.view: np.ndarray[Any, Any] = np.ctypeslib.as_array(memory)
        self.view[:] = 0

    def holds(self, address: int) -> bool:
        """Whether it is one of its bytes."""
        return self.address <= address < self.address + self.view.nbytes

    def close(self) -> None:
        """Give the memory back; nothing may be in flight. A second call does nothing."""
        address, self.address = self.address, 0
        self.view = self.view[:0]
        if address:
            self._driver.call("cuMemFreeHost", address)


@dataclass
class Window:
    """One buffer's part of the block.

    Attributes:
        buffer: on the device.
        host, view: address and bytes on the host.
        changed: bytes at its start that the host wrote and the device does not have yet.
        fetched: the bytes on the host are those on the device.
        busy: number of the wait before which a copy from or to the host's bytes was started.
        spare: another such place of the host, where it has one: address, bytes, and its ``busy``.
        ahead: the value whose bytes are in the spare place already.
    """

    buffer: Tensor
    host: int
    view: np.ndarray[Any, Any]
    changed: int = 0
    fetched: bool = False
    busy: int = -1
    spare: tuple[int, np.ndarray[Any, Any], int] | None = None
    ahead: np.ndarray[Any, Any] | None = None


class Staging:
    """The block of one device.

    Args:
        driver, stream: where copies go.
        windows: the buffers, in one piece of the device's memory.
    """

    def __init__(self, driver: CudaDriver, stream: Any, windows: Iterable[Tensor] = ()) -> None:
        self._driver = driver
        self._stream = stream
        self._waits = 0  # for the stream
        self._blocks: list[Pinned] = []
        self._windows: dict[int, Window] = {}  # by identity of the buffer, in order of address
        self._start = self._end = 0  # of the windows on the device
        buffers = sorted(windows, key=lambda buffer: buffer.data_ptr())
        if not buffers:
            return
        start = buffers[0].data_ptr()
        size = buffers[-1].data_ptr() + buffers[-1].nbytes - start
        self._start, self._end = start, start + size
        block = Pinned(driver, size)  # zeros, as in the windows
        self._blocks.append(block)
        for buffer in buffers:
            offset = buffer.data_ptr() - start
            view = block.view[offset : offset + buffer.nbytes]
            self._windows[id(buffer)] = Window(buffer, block.address + offset, view)
        large = [each for each in self._windows.values() if each.view.nbytes >= _LARGE]
        if large:
            self._add_spares(large)

    def _add_spares(self, windows: list[Window]) -> None:
        block = Pinned(self._driver, sum(each.view.nbytes for each in windows))
        self._blocks.append(block)
        start = 0
        for each in windows:
            view = block.view[start : start + each.view.nbytes]
            each.spare = (block.address + start, view, -1)
            start += view.nbytes

    def window(self, buffer: Tensor) -> Window | None:
        """The window of a buffer; None for a part of one and for other memory."""
        return self._windows.get(id(buffer))

    def holds(self, address: int) -> bool:
        """Whether an address of the device is one of the windows'."""
        return self._start <= address < self._end

    def write(self, window: Window, value: np.ndarray[Any, Any]) -> None:
        """Keep ``value``, contiguous and no larger than the window, until :meth:`send`."""
        if window.ahead is value and window.spare is not None and not window.changed:
            here = (window.host, window.view, window.busy)
            (window.host, window.view, window.busy), window.spare = window.spare, here
            window.changed, window.fetched, window.ahead = value.nbytes, False, None
            return
        if window.busy == self._waits:
            self.synchronize()  # a copy may still read it
        window.view[: value.nbytes] = value.reshape(-1).view(np.uint8)
        window.changed, window.fetched = max(window.changed, value.nbytes), False

    def prepare(self, buffer: Tensor, value: np.ndarray[Any, Any]) -> None:
        """Copy ``value``, which may be written soon, to where no copy reads and nobody looks."""
        window = self.window(buffer)
        if window is None or window.spare is None or window.spare[2] == self._waits:
            return
        if not value.flags.c_contiguous or value.nbytes > window.view.nbytes:
            return
        window.spare[1][: value.nbytes] = value.reshape(-1).view(np.uint8)
        window.ahead = value

    def send(self) -> None:
        """Start copies of what was written to the device."""
        run: list[Window] = []
        for window in self._windows.values():
            if run and not (window.changed and _adjoins(run[-1], window)):
                self._copy(run)
                run = []
            if window.changed:
                run.append(window)
        if run:
            self._copy(run)

    def fetch(self, window: Window) -> None:
        """Start the copy of a window to the host; there after :meth:`synchronize`."""
        address, nbytes = window.buffer.data_ptr(), window.view.nbytes
        self._driver.call("cuMemcpyDtoHAsync", window.host, address, nbytes, self._stream)
        window.fetched, window.busy = True, self._waits

    def outdate(self) -> None:
        """The device may have written its windows."""
        for window in self._windows.values():
            window.fetched = False

    def synchronize(self) -> None:
        """Wait for everything on the stream."""
        self._driver.call("cuStreamSynchronize", self._stream)
        self._waits += 1

    def close(self) -> None:
        """Free the block; nothing may be in flight."""
        self._windows.clear()
        while self._blocks:
            self._blocks.pop().close()

    def _copy(self, run: list[Window]) -> None:
        first, last = run[0], run[-1]
        size = last.host + last.changed - first.host
        address = first.buffer.data_ptr()
        self._driver.call("cuMemcpyHtoDAsync", address, first.host, size, self._stream)
        for window in run:
            window.changed, window.busy = 0, self._waits


def _adjoins(first: Window, second: Window) -> bool:
    """Whether they lie on the host as on the device, so that one copy serves both."""
    apart = second.buffer.data_ptr() - first.buffer.data_ptr()
    return second.host - first.host == apart


def to_numpy(host: np.ndarray[Any, Any], source: Tensor) -> np.ndarray[Any, Any]:
    """Bytes of a tensor as an array of its shape; formats numpy lacks are widened to float32."""
    dtype = _NUMPY.get(source.dtype)
    if dtype is None:
        return torch.from_numpy(host).view(source.dtype).view(source.shape).float().numpy()
    return host.view(dtype).reshape(source.shape)
