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
from torch import Tensor

from .cuda_driver import CudaDriver


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
    """

    buffer: Tensor
    host: int
    view: np.ndarray[Any, Any]
    changed: int = 0
    fetched: bool = False
    busy: int = -1


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
        self._block: Pinned | None = None
        self._windows: dict[int, Window] = {}  # by identity of the buffer, in order of address
        self._start = self._end = 0  # of the windows on the device
        buffers = sorted(windows, key=lambda buffer: buffer.data_ptr())
        if not buffers:
            return
        start = buffers[0].data_ptr()
        size = buffers[-1].data_ptr() + buffers[-1].nbytes - start
        self._start, self._end = start, start + size
        self._block = block = Pinned(driver, size)  # zeros, as in the windows
        for buffer in buffers:
            offset = buffer.data_ptr() - start
            view = block.view[offset : offset + buffer.nbytes]
            self._windows[id(buffer)] = Window(buffer, block.address + offset, view)

    def window(self, buffer: Tensor) -> Window | None:
        """The window of a buffer; None for a part of one and for other memory."""
        return self._windows.get(id(buffer))

    def holds(self, address: int) -> bool:
        """Whether an address of the device is one of the windows'."""
        return self._start <= address < self._end

    def write(self, window: Window, value: np.ndarray[Any, Any]) -> None:
        """Keep ``value``, contiguous and no larger than the window, until :meth:`send`."""
        if window.busy == self._waits:
            self.synchronize()  # a copy may still read it
        window.view[: value.nbytes] = value.reshape(-1).view(np.uint8)
        window.changed, window.fetched = max(window.changed, value.nbytes), False

    def send(self) -> None:
        """Start copies of what was written to the device."""
        run: list[Window] = []
        for window in self._windows.values():
            if window.changed:
                run.append(window)
            elif run:
                self._copy(run)
                run = []
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
        block, self._block = self._block, None
        if block is not None:
            block.close()

    def _copy(self, run: list[Window]) -> None:
        first, last = run[0], run[-1]
        size = last.host + last.changed - first.host
        address = first.buffer.data_ptr()
        self._driver.call("cuMemcpyHtoDAsync", address, first.host, size, self._stream)
        for window in run:
            window.changed, window.busy = 0, self._waits
