"""A host of the C interface in Python's clothes, and a CUDA device whose driver is not there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_core.c_interface import records
from flashrt_core.c_interface.export import Export
from flashrt_core.c_interface.library import load_library
from flashrt_core.devices import Program
from flashrt_core.devices.base import Native, NativeProgram
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.devices.transfer import Rows, Transfer

Array = np.ndarray[Any, Any]
KINDS = {"buffer": 1, "input": 2, "output": 3, "stage": 4, "region": 5, "slot": 6}
OK, ARGUMENT, STRUCT_SIZE, INDEX, BYTES, UNWRITTEN, NOT_MADE, FINGERPRINT, CLOSED, VERSION = range(
    0, -10, -1
)
INPUT, STALE, SHAPE, DEVICE, NUMERICS = -11, -12, -13, -20, -22
CAPSULE, CAPSULE_FULL, SESSION, SESSION_LIMIT, INTERNAL = -40, -41, -50, -51, -99


class RefusedError(AssertionError):
    """A call that was to succeed did not."""


class Host:
    """One handle. Methods named like the calls return their status; ``do`` insists on success."""

    def __init__(self, export: Export, handle: int | None = None) -> None:
        self.export = export
        self.library = load_library(export.library)
        self.handle = ctypes.c_void_p(export.handle if handle is None else handle)

    def call(self, name: str, *args: Any) -> int:
        """The status of ``flashrt_<name>`` with this handle first."""
        return int(getattr(self.library, f"flashrt_{name}")(self.handle, *args))

    def do(self, name: str, *args: Any) -> None:
        """The same, which must succeed."""
        if status := self.call(name, *args):
            raise RefusedError(f"{name}: {status}: {self.error()}")

    def error(self) -> str:
        """The text of this thread's last failure."""
        text = self.library.flashrt_last_error().decode()
        assert len(text.splitlines()) == 1
        return str(text)

    def find(self, kind: str, name: str) -> int:
        """The index of a record."""
        index = ctypes.c_uint32()
        self.do("find", KINDS[kind], name.encode(), ctypes.byref(index))
        return index.value

    def get(self, kind: type[records.Record], *index: int) -> Any:
        """A record of this kind."""
        name = {"fingerprintrecord": "fingerprint"}.get(
            kind.__name__.lower(), kind.__name__.lower()
        )
        record = kind()
        self.do(f"get_{name}", *index, ctypes.byref(record))
        return record

    def write(self, name: str, value: Array) -> int:
        """Status of a write."""
        value = np.ascontiguousarray(value)
        return self.call(
            "write_input",
            self.find("input", name),
            value.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint64(value.nbytes),
        )

    def run(self, stage: str, flags: int = 0) -> int:
        """Status of one stage."""
        return self.call("run_stage", self.find("stage", stage), flags, None)

    def decide(self) -> int:
        """Status of a decision."""
        return self.call("decide", None)

    def act(self, flags: int = 0) -> int:
        """Status of the last stage."""
        return self.call("act", flags, None)

    def read(self, shape: tuple[int, ...] = (2, 3), name: str = "actions") -> Array:
        """An output of float32."""
        status, value = self.try_read(shape, name)
        if status:
            raise RefusedError(f"read_output: {status}: {self.error()}")
        return value

    def try_read(
        self, shape: tuple[int, ...] = (2, 3), name: str = "actions", flags: int | None = None
    ) -> tuple[int, Array]:
        """Status of a read, and what was read: with flags where there are any."""
        value = np.zeros(shape, np.float32)
        place = value.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(value.nbytes)
        index = self.find("output", name)
        if flags is None:
            return self.call("read_output", index, *place), value
        return self.call("read_output_flags", index, ctypes.c_uint32(flags), *place), value

    def fork(self, name: str, capsule: str | None = None, into: Host | None = None) -> Host:
        """Another handle, of a session that goes on from here."""
        handle = ctypes.c_void_p()
        source = None if capsule is None else capsule.encode()
        target = None if into is None else into.handle
        self.do("fork", source, target, name.encode(), ctypes.byref(handle))
        return Host(self.export if into is None else into.export, handle.value)


class FakeCuda:
    """The driver of ``fake_cuda.c``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.fake_calls.restype = ctypes.c_char_p
        self.library.fake_current.restype = ctypes.c_void_p
        self.library.fake_set_current.argtypes = [ctypes.c_void_p]
        self.launched = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._launch)
        self._graphs: list[Callable[[], None]] = []
        self.reset()

    def reset(self) -> None:
        """Forget calls and failures."""
        self.library.fake_reset()

    def graph(self, does: Callable[[], None]) -> int:
        """A graph that does this when it is launched."""
        self._graphs.append(does)
        return len(self._graphs)

    def _launch(self, graph: int) -> None:
        self._graphs[graph - 1]()

    def calls(self) -> list[str]:
        """What was called since the last reset."""
        return str(self.library.fake_calls().decode()).split()

    def fail(self, name: str, code: int = 700) -> None:
        """Let one call fail from now on."""
        self.library.fake_fail(name.encode(), code)


class LentCuda(CpuDevice):
    """Computes on the CPU and says it is a GPU: the library goes through the fake driver."""

    def __init__(self, driver: FakeCuda, *, computes: bool = True) -> None:
        super().__init__(1)
        self._driver = driver
        driver.library.fake_on_launch(driver.launched if computes else None)

    def lend(self) -> Native:
        return Native("cuda", str(self._driver.path), 0x1000, 0x2000, 0x3000, 264)

    def native(self, program: Program | Transfer) -> NativeProgram:
        if isinstance(program, Transfer):
            if not any(map(self._on_host, program.rows)):
                return NativeProgram()  # the kernel's, which the fake driver has
            return NativeProgram(self._driver.graph(partial(self.transfer, program)))
        first = 0x100
        events = tuple(range(first, first + len(program.segments) + 1))
        return NativeProgram(self._driver.graph(partial(self.replay, program)), events)

    def _on_host(self, copy: Rows) -> bool:
        host = self._host_arena
        storages = {each.untyped_storage().data_ptr() for each in (copy.source, copy.target)}
        return host is not None and host.untyped_storage().data_ptr() in storages
