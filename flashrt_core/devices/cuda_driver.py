"""The CUDA driver API behind checked, counted calls, and the search for a usable GPU.

Owns the primary context that torch uses too. Everything that can be wrong with the machine is found
here and told in one line.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from ..errors import DeviceError

#: CUDA 13.0, the oldest driver that loads machine code of the compiler the kernels are built with.
MIN_DRIVER = 13000
MIN_CAPABILITY = (8, 0)
#: File name of the driver.
LIBRARY = "libcuda.so.1"
_REMEDY_EXTRA = "pip install 'flashrt-ros[cuda]', or set device to 'cpu'"
_REMEDY_CPU = "set device to 'cpu'"
REMEDY_MEMORY = "stop other programs on it, or choose a smaller preset"


class CudaDriver:
    """One GPU through ``cuda.bindings.driver``.

    Attributes:
        api: the bindings module, for its types and constants.
        calls: driver calls made through :meth:`call`, by name.
        context: the primary one.
        name, capability, multiprocessors, version: of the GPU and its driver.
        thread: that has entered last.
        success: what a call gives that went well.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.api = load_bindings()
        self.calls: Counter[str] = Counter()
        self.success = self.api.CUresult.CUDA_SUCCESS
        self.thread = 0
        self._initialise()
        self.device = self._device(ordinal)
        self.name = self.call("cuDeviceGetName", 128, self.device).split(b"\0")[0].decode()
        attribute = self.api.CUdevice_attribute
        self.capability = (
            self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.multiprocessors = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        if self.capability < MIN_CAPABILITY:
            raise DeviceError(
                f"GPU {self.name!r}",
                expected="compute capability 8.0 or newer",
                got="{}.{}".format(*self.capability),
                remedy=_REMEDY_CPU,
            )
        self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
        try:
            self.enter()
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *args: Any) -> Any:
        """A driver call; its result (None, one value, or a tuple). DeviceError on failure."""
        self.calls[name] += 1
        code, *values = getattr(self.api, name)(*args)
        if code is not self.success and code != self.success:
            raise self.error(f"CUDA call {name}", code)
        return None if not values else values[0] if len(values) == 1 else tuple(values)

    def error(self, what: str, code: Any) -> DeviceError:
        """The DeviceError of a driver result code, with CUDA's own name and explanation."""
        _, text = self.api.cuGetErrorString(code)
        full = code == self.api.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        return DeviceError(
            what,
            got=f"{code.name}: {text.decode() if text else 'unknown error'}",
            remedy=REMEDY_MEMORY if full else None,
        )

    @contextmanager
    def memory_errors(self, what: str, size: int | None = None) -> Iterator[None]:
        """Turns torch's lack of GPU memory into a DeviceError; ``size`` in bytes, where known."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            free, total = self.call("cuMemGetInfo")
            raise DeviceError(
                f"memory of GPU {self.name!r} for {what}",
                expected=None if size is None else f"{size / 1e9:.2f} GB free",
                got=f"{free / 1e9:.2f} of {total / 1e9:.2f} GB",
                remedy=REMEDY_MEMORY,
            ) from error

    def attribute(self, attribute: Any) -> int:
        """A number that the driver tells of the GPU."""
        return int(self.call("cuDeviceGetAttribute", attribute, self.device))

    def stream(self, opened: ExitStack, flags: int) -> Any:
        """A new stream, given back with ``opened``."""
        stream = self.call("cuStreamCreate", flags)
        opened.callback(self.call, "cuStreamDestroy", stream)
        return stream

    def enter(self) -> None:
        """Make the context current in the calling thread."""
        thread = get_ident()
        if thread != self.thread:
            self.call("cuCtxSetCurrent", self.context)
            self.thread = thread

    def close(self) -> None:
        """Give the context back."""
        self.call("cuDevicePrimaryCtxRelease", self.device)

    def _initialise(self) -> None:
        result = self.api.CUresult
        try:
            code = self.api.cuInit(0)[0]
        except RuntimeError as error:  # the bindings raise it when libcuda cannot be opened
            raise no_driver() from error
        if code in (result.CUDA_ERROR_NO_DEVICE, result.CUDA_ERROR_INVALID_DEVICE):
            raise no_gpu()
        if code == result.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
            raise self.error("NVIDIA driver", code)
        if code != result.CUDA_SUCCESS:
            raise self.error("CUDA start", code)
        self.version = int(self.call("cuDriverGetVersion"))
        if self.version < MIN_DRIVER:
            raise DeviceError(
                "NVIDIA driver",
                expected=f"CUDA {MIN_DRIVER // 1000}.{MIN_DRIVER % 1000 // 10} or newer",
                got=f"CUDA {self.version // 1000}.{self.version % 1000 // 10}",
                remedy="update the driver, or set device to 'cpu'",
            )

    def _device(self, ordinal: int) -> Any:
        count = int(self.call("cuDeviceGetCount"))
        if count == 0:
            raise no_gpu()
        if not 0 <= ordinal < count:
            raise DeviceError(f"GPU number {ordinal}", expected=f"0..{count - 1}")
        return self.call("cuDeviceGet", ordinal)


def load_bindings() -> ModuleType:
    """``cuda.bindings.driver``; DeviceError when the driver library or the package is missing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise no_driver() from error
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            "device 'cuda'", expected="package cuda-bindings", got=str(error), remedy=_REMEDY_EXTRA
        ) from error
    return driver


def no_driver() -> DeviceError:
    """There is no NVIDIA driver on this machine."""
    return DeviceError(
        "device 'cuda'",
        expected="an NVIDIA GPU with its driver",
        got=f"no driver library ({LIBRARY}) on this machine",
        remedy="install the NVIDIA driver, or set device to 'cpu'",
    )


def no_gpu() -> DeviceError:
    """There is a driver, but no GPU it can use."""
    return DeviceError(
        "device 'cuda'", expected="an NVIDIA GPU", got="none visible", remedy=_REMEDY_CPU
    )
