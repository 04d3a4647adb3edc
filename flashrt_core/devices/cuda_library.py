"""The compiled kernels: where the fatbin is, how its entries are loaded and launched."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ..errors import ContractError, DeviceError
from ..kernels.launch import Float64, Size, TensorMap

FATBIN = "flashrt_kernels.fatbin"
_PACKAGE = Path(__file__).resolve().parent.parent


class Driver(Protocol):
    """The part of :class:`~flashrt_core.devices.cuda_driver.CudaDriver` that launching needs."""

    api: Any
    device: Any

    def call(self, name: str, *args: Any) -> Any: ...


def find_fatbin() -> Path:
    """The installed kernel library, or the one that a checkout has built.

    FLASHRT_KERNELS names another file. DeviceError when this is a CPU-only build.
    """
    if named := os.environ.get("FLASHRT_KERNELS"):
        if not Path(named).is_file():
            raise DeviceError("FLASHRT_KERNELS", expected="a file", got=named)
        return Path(named)
    for path in (_PACKAGE / "lib" / FATBIN, _PACKAGE.parent / "build" / FATBIN):
        if path.is_file():
            return path
    raise DeviceError(
        "device 'cuda'",
        expected="a build with the CUDA kernels",
        got="a CPU-only build",
        remedy="build where nvcc is found, or set device to 'cpu'",
    )


class KernelLibrary:
    """A fatbin loaded into the driver.

    Attributes:
        digest: SHA-256 of the file, 16 hex digits; part of every fingerprint.
    """

    def __init__(self, driver: Driver, image: bytes) -> None:
        self.digest = hashlib.sha256(image).hexdigest()[:16]
        self._driver = driver
        self._image = image  # the driver may read it lazily
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}
        try:
            self._library = driver.call("cuLibraryLoadData", image, None, None, 0, None, None, 0)
        except DeviceError as error:
            if error.remedy is not None:  # it is not the library's fault
                raise
            raise DeviceError(
                "kernel library",
                expected="machine code for this GPU",
                got=error.got,
                remedy="rebuild the package with this GPU's architecture",
            ) from error

    def function(self, name: str, shared_bytes: int = 0) -> Any:
        """The entry called ``name``, able to use that much dynamic shared memory."""
        if name not in self._functions:
            try:
                kernel = self._driver.call("cuLibraryGetKernel", self._library, name.encode())
            except DeviceError as error:
                raise DeviceError(
                    f"kernel {name!r}", expected="an entry of the kernel library", got=error.got
                ) from error
            self._functions[name] = self._driver.call("cuKernelGetFunction", kernel)
        function = self._functions[name]
        if shared_bytes > max(48 * 1024, self._shared.get(name, 0)):
            attribute = self._driver.api.CUfunction_attribute
            dynamic = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver.call("cuFuncSetAttribute", function, dynamic, shared_bytes)
            self._shared[name] = shared_bytes
        return function

    def close(self) -> None:
        """Unload."""
        self._functions.clear()
        self._driver.call("cuLibraryUnload", self._library)


class Packed:
    """Kernel arguments laid out for the driver; keeps them alive while it exists."""

    def __init__(self, driver: Driver, args: Sequence[Any]) -> None:
        self.values = [_value(driver, index, arg) for index, arg in enumerate(args)]
        pointers = [ctypes.addressof(value) for value in self.values]
        self._table = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        self.address = ctypes.addressof(self._table)


def _value(driver: Driver, index: int, arg: Any) -> Any:
    if isinstance(arg, Tensor):
        return ctypes.c_uint64(arg.data_ptr())
    if arg is None:
        return ctypes.c_uint64(0)
    if isinstance(arg, bool):
        return ctypes.c_int32(int(arg))
    if isinstance(arg, int):
        if not -(2**31) <= arg < 2**31:
            raise ContractError(f"kernel argument {index}", expected="an int32", got=arg)
        return ctypes.c_int32(arg)
    if isinstance(arg, float):
        return ctypes.c_float(arg)
    if isinstance(arg, Float64):
        return ctypes.c_double(arg.value)
    if isinstance(arg, TensorMap):
        return (ctypes.c_byte * 128).from_buffer_copy(_encode(driver, arg))
    raise ContractError(
        f"kernel argument {index}", expected="a tensor, int or float", got=type(arg).__name__
    )


def _encode(driver: Driver, tile: TensorMap) -> bytes:
    api = driver.api
    size, word = api.cuuint64_t, api.cuuint32_t
    swizzles = {
        128: api.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        64: api.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    }
    types = {
        2: api.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        1: api.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }
    width = tile.box_columns * tile.element_bytes
    if width not in swizzles:
        raise ContractError("bytes of a row of a tile map", expected="128 or 64", got=width)
    dimensions = ((tile.rows, tile.stride, tile.box_rows), *tile.outer)
    encoded = driver.call(
        "cuTensorMapEncodeTiled",
        types[tile.element_bytes],
        1 + len(dimensions),
        tile.base,
        [size(tile.columns), *(size(count) for count, _, _ in dimensions)],
        [size(stride * tile.element_bytes) for _, stride, _ in dimensions],
        [word(tile.box_columns), *(word(box) for _, _, box in dimensions)],
        [word(1)] * (1 + len(dimensions)),
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzles[width],
        api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(encoded.getPtr(), 128)


def sizes(size: Size) -> tuple[int, int, int]:
    """A grid, block or cluster size as three numbers."""
    parts = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(parts) <= 3 or any(part < 1 for part in parts):
        raise ContractError("launch size", expected="one to three positive numbers", got=size)
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def launch_config(
    driver: Driver,
    stream: Any,
    grid: Size,
    block: Size,
    *,
    shared_bytes: int,
    cluster: Size | None,
    pdl: bool,
) -> Any:
    """A ``CUlaunchConfig`` with the attributes asked for."""
    api = driver.api
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = sizes(grid)
    config.blockDimX, config.blockDimY, config.blockDimZ = sizes(block)
    config.sharedMemBytes = shared_bytes
    config.hStream = stream
    attributes = []
    kinds = api.CUlaunchAttributeID
    if pdl:
        attribute = api.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value = attribute.value
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        attributes.append(attribute)
    if cluster is not None:
        attribute = api.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        value = attribute.value
        dimension = value.clusterDim
        dimension.x, dimension.y, dimension.z = sizes(cluster)
        value.clusterDim = dimension
        attribute.value = value
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
