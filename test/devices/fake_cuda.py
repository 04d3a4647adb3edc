"""A CUDA driver that is not there: answers as told, and remembers what is open."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803


class Attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class Record(SimpleNamespace):
    """A struct of the driver: any field can be set."""


class FakeCuda(ModuleType):
    """Stands in for ``cuda.bindings.driver``.

    Attributes:
        opened: open handles, as (kind, handle).
        copied: memory types of every 2D copy, from and to.
        uploaded: executable graphs that were sent to the device ahead of their launch.
        launched: (grid, block, shared bytes, attribute ids) of every launch.
        failing: call name -> result it gives instead of success.
        any_kernel: every kernel is in the library, and graphs can be captured and replayed: their
            kernels do nothing, their copies do; "device" memory is this process's own.
    """

    CUresult = Result
    CUdevice_attribute = Attribute
    CUlaunchConfig = Record
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=0)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_HOST=1, CU_MEMORYTYPE_DEVICE=2)
    CUDA_MEMCPY2D = Record
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT=9,
    )
    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION=4,
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6,
    )

    def __init__(self, *, version: int = 13000, devices: int = 1, capability: Any = (9, 0)) -> None:
        super().__init__("cuda.bindings.driver")
        self.version, self.devices, self.capability = version, devices, capability
        self.entries = {"known_kernel", "copy_pieces"}
        self.opened: set[tuple[str, int]] = set()
        self.launched: list[tuple[Any, ...]] = []
        self.copied: list[tuple[int, int]] = []
        self.shared: list[int] = []
        self.carved: list[int] = []
        self.failing: dict[str, Result] = {}
        self.any_kernel = False
        self._memory: dict[int, Any] = {}
        self.uploaded: set[int] = set()
        self._capturing: list[Record] | None = None
        self._graphs: dict[int, list[Record]] = {}  # copies of graphs, and of executable ones
        self._next = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name in object.__getattribute__(self, "failing"):
            return lambda *args: (object.__getattribute__(self, "failing")[name], None)
        return object.__getattribute__(self, name)

    @staticmethod
    def CUlaunchAttribute() -> Record:  # noqa: N802
        return Record(value=Record(clusterDim=Record()))

    def _open(self, kind: str) -> tuple[Result, int]:
        self._next += 1
        self.opened.add((kind, self._next))
        return Result.CUDA_SUCCESS, self._next

    def _close(self, kind: str, handle: int) -> tuple[Result]:
        self.opened.remove((kind, handle))
        return (Result.CUDA_SUCCESS,)

    def cuInit(self, flags: int) -> Any:  # noqa: N802
        return (Result.CUDA_SUCCESS,)

    def cuDriverGetVersion(self) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, self.version

    def cuDeviceGetCount(self) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, self.devices

    def cuDeviceGet(self, ordinal: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, ordinal

    def cuDeviceGetName(self, size: int, device: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, b"Fake GPU\0\0"

    def cuDeviceGetAttribute(self, attribute: Attribute, device: int) -> Any:  # noqa: N802
        values = (132, *self.capability)
        return Result.CUDA_SUCCESS, values[list(Attribute).index(attribute)]

    def cuGetErrorString(self, code: Result) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, code.name.lower().replace("_", " ").encode()

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:  # noqa: N802
        return self._open("context")

    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:  # noqa: N802
        self.opened = {entry for entry in self.opened if entry[0] != "context"}
        return (Result.CUDA_SUCCESS,)

    def cuCtxSetCurrent(self, context: int) -> Any:  # noqa: N802
        return (Result.CUDA_SUCCESS,)

    def cuLibraryLoadData(self, image: bytes, *options: Any) -> Any:  # noqa: N802
        return self._open("library")

    def cuLibraryUnload(self, library: int) -> Any:  # noqa: N802
        return self._close("library", library)

    def cuLibraryGetKernel(self, library: int, name: bytes) -> Any:  # noqa: N802
        if not self.any_kernel and name.decode() not in self.entries:
            return Result.CUDA_ERROR_NOT_FOUND, None
        return Result.CUDA_SUCCESS, name

    def cuKernelGetFunction(self, kernel: bytes) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, kernel

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> Any:  # noqa: N802
        (self.shared if attribute == 8 else self.carved).append(value)
        return (Result.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags: int) -> Any:  # noqa: N802
        return self._open("stream")

    def cuStreamDestroy(self, stream: int) -> Any:  # noqa: N802
        return self._close("stream", stream)

    def cuStreamSynchronize(self, stream: int) -> Any:  # noqa: N802
        return (Result.CUDA_SUCCESS,)

    def cuMemGetInfo(self) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, int(2e9), int(8e9)

    def cuLaunchKernelEx(self, config: Record, function: Any, params: int, extra: int) -> Any:  # noqa: N802
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        kinds = tuple(attribute.id for attribute in config.attrs)
        self.launched.append((grid, block, config.sharedMemBytes, kinds))
        return (Result.CUDA_SUCCESS,)

    def cuLaunchKernel(self, function: bytes, *args: Any) -> Any:  # noqa: N802
        """Our kernel that copies; no other is launched this way."""
        *sizes, shared, _, table, extra = args
        assert function == b"copy_pieces" and shared == extra == 0 and min(sizes) > 0
        words = ctypes.cast(table, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))[0]
        for piece in range(words[6 * 8]):
            to, source, width, rows, to_pitch, pitch = words[6 * piece : 6 * piece + 6]
            for row in range(rows):
                ctypes.memmove(to + row * to_pitch, source + row * pitch, width)
        return (Result.CUDA_SUCCESS,)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:  # noqa: N802
        memory = ctypes.create_string_buffer(nbytes)
        self._memory[ctypes.addressof(memory)] = memory
        self.opened.add(("host memory", ctypes.addressof(memory)))
        return Result.CUDA_SUCCESS, ctypes.addressof(memory)

    def cuMemFreeHost(self, address: int) -> Any:  # noqa: N802
        del self._memory[address]
        return self._close("host memory", address)

    def cuMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> Any:  # noqa: N802
        ctypes.memmove(to, source, nbytes)
        return (Result.CUDA_SUCCESS,)

    cuMemcpyDtoHAsync = cuMemcpyAsync = cuMemcpyHtoDAsync  # noqa: N815

    def cuMemcpy2DAsync(self, copy: Record, stream: int) -> Any:  # noqa: N802
        self.copied.append((copy.srcMemoryType, copy.dstMemoryType))
        if self._capturing is None:
            self._copy(copy)
        else:
            self._capturing.append(copy)
        return (Result.CUDA_SUCCESS,)

    def _copy(self, copy: Record) -> None:
        on_host = self.CUmemorytype.CU_MEMORYTYPE_HOST
        to = copy.dstHost if copy.dstMemoryType == on_host else copy.dstDevice
        source = copy.srcHost if copy.srcMemoryType == on_host else copy.srcDevice
        assert min(copy.dstPitch, copy.srcPitch) >= copy.WidthInBytes, "as the real one"
        for row in range(copy.Height):
            place = to + row * copy.dstPitch, source + row * copy.srcPitch
            ctypes.memmove(*place, copy.WidthInBytes)

    def cuStreamBeginCapture(self, stream: int, mode: int) -> Any:  # noqa: N802
        self._capturing = []
        return (Result.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream: int) -> Any:  # noqa: N802
        code, graph = self._open("graph")
        self._graphs[graph], self._capturing = self._capturing or [], None
        return code, graph

    def cuGraphDestroy(self, graph: int) -> Any:  # noqa: N802
        return self._close("graph", graph)

    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:  # noqa: N802
        code, executable = self._open("executable graph")
        self._graphs[executable] = self._graphs[graph]
        return code, executable

    def cuGraphExecDestroy(self, graph: int) -> Any:  # noqa: N802
        return self._close("executable graph", graph)

    def cuGraphGetNodes(self, graph: int, count: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, [], 0

    def cuGraphUpload(self, graph: int, stream: int) -> Any:  # noqa: N802
        self.uploaded.add(graph)
        return (Result.CUDA_SUCCESS,)

    def cuGraphLaunch(self, graph: int, stream: int) -> Any:  # noqa: N802
        for copy in self._graphs[graph]:
            self._copy(copy)
        return (Result.CUDA_SUCCESS,)

    def cuEventCreate(self, flags: int) -> Any:  # noqa: N802
        return self._open("event")

    def cuEventDestroy(self, event: int) -> Any:  # noqa: N802
        return self._close("event", event)

    def cuEventRecord(self, event: int, stream: int) -> Any:  # noqa: N802
        return (Result.CUDA_SUCCESS,)

    def cuEventRecordWithFlags(self, event: int, stream: int, flags: int) -> Any:  # noqa: N802
        return (Result.CUDA_SUCCESS,)

    def cuEventElapsedTime(self, start: int, end: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, 0.5
