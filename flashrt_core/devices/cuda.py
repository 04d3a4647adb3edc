"""The CUDA device: stages captured into graphs over one arena, replayed in one driver call.

It owns an arena on the GPU, pinned staging for the windows, one stream, the kernel library and
cuBLASLt. Nothing is allocated, captured or compiled by write, replay, read, transfer and copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BufferSpec, Role
from ..errors import CaptureError, DeviceError, FlashRTError
from ..kernels.launch import refuse_low_bit
from ..kernels.op import Op
from .algorithm_cache import cache_path
from .arena import ALIGNMENT, placed, views
from .base import Native, NativeProgram, Program, Segment
from .cublaslt import CublasLt, load_cublaslt
from .cuda_driver import LIBRARY, CudaDriver
from .cuda_graph import captured, instantiate
from .cuda_launcher import CudaLauncher
from .cuda_library import KernelLibrary, find_fatbin
from .cuda_staging import Pinned, Staging, to_numpy
from .cuda_transfer import Copier, CudaTransfer
from .overlap import DEFAULT, Overlap
from .transfer import Rows, Transfer

_EVENT_IN_GRAPH = 1  # CU_EVENT_RECORD_EXTERNAL: a node of the graph, readable from outside


@dataclass
class CudaProgram:
    """One instantiated graph.

    Attributes:
        names: segments in replay order.
        executable: the graph.
        events: one before the first segment and one after each.
        kernels: kernel nodes of the graph.
        launches: our own kernels, in order; library products appear as "matmul".
    """

    names: tuple[str, ...]
    executable: Any
    events: list[Any]
    kernels: int
    launches: tuple[str, ...] = field(repr=False, default=())

    @property
    def segments(self) -> tuple[str, ...]:
        """Names in replay order."""
        return self.names


class _Lane:
    def __init__(self, launcher: CudaLauncher) -> None:
        self._launcher = launcher

    def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
        if op.launch is None:
            raise CaptureError(
                f"op {op.name!r}",
                expected="a CUDA kernel",
                got="none",
                remedy="set device to 'cpu'",
            )
        refuse_low_bit(op, (*args, *kwargs.values()))
        op.launch(self._launcher, *args, **kwargs)


class CudaDevice:
    """The first visible GPU.

    Args:
        overlap: where kernels may start before the one in front has finished (programmatic
            dependent launch), as :meth:`Overlap.parse` reads it. The bits are the same either way.

    Raises:
        DeviceError: no driver, driver too old, no GPU, a GPU too old, a CPU-only build, a missing
            package; one line each.
    """

    name = "cuda"

    def __init__(self, *, overlap: str | bool = DEFAULT) -> None:
        allowed = Overlap.parse(overlap)
        # Whatever fails from here on, what was opened before it is closed again.
        with ExitStack() as opened:
            self._open(opened, allowed)
            self._opened: ExitStack | None = opened.pop_all()
        self._arena: Tensor | None = None
        self._staging = Staging(self.driver, self._stream)
        self._pinned: Pinned | None = None
        self._programs: list[CudaProgram] = []
        self._executables: list[Any] = []  # of planned copies

    def _open(self, opened: ExitStack, overlap: Overlap) -> None:
        self.driver = CudaDriver()
        opened.callback(self.driver.close)
        image = find_fatbin().read_bytes()
        if not torch.cuda.is_available():
            raise DeviceError(
                "device 'cuda'",
                expected="torch with CUDA",
                got=f"torch {torch.__version__}",
                remedy="install torch from its CUDA index, or set device to 'cpu'",
            )
        version = int(load_cublaslt().get_version())
        try:
            torch.cuda.init()
        except RuntimeError as error:
            raise DeviceError(
                "device 'cuda'",
                expected="torch that can use this driver and GPU",
                got=str(error).strip().partition("\n")[0],
                remedy="install torch from its CUDA 13 index, or set device to 'cpu'",
            ) from error
        major, minor = self.driver.capability
        self.arch = f"sm_{major}{minor}"
        kernels = KernelLibrary(self.driver, image)
        opened.callback(kernels.close)
        self.library = f"{kernels.digest}-cublaslt-{version}"
        self.execution: Mapping[str, str] = {}
        flags = self.driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream, aside = (self.driver.stream(opened, int(flags)) for _ in range(2))
        self._copier = Copier(self.driver, kernels, self._stream, aside)
        self.idle: Transfer = self._copier.idle
        with self.driver.memory_errors("the workspace of products"):
            self.gemm = CublasLt(self.driver, self._stream, cache_path(self.driver.name, version))
        opened.callback(self.gemm.close)
        self.launcher = CudaLauncher(self.driver, kernels, self.gemm, self._stream, overlap=overlap)
        opened.callback(self.launcher.close)

    def allocate(self, specs: Iterable[BufferSpec]) -> dict[str, Tensor]:
        """Zeroed, 256-byte aligned views of one arena; DeviceError when memory does not suffice."""
        specs = list(specs)
        if self._arena is not None:
            raise _refused("one allocation a device", "a second one")
        self.driver.enter()
        # Windows are neighbours, so that one copy can serve several.
        offsets, size = placed(sorted(specs, key=lambda spec: spec.role is not Role.SWAP))
        self._arena = self._allocate_arena(size + ALIGNMENT)
        base = -self._arena.data_ptr() % ALIGNMENT
        self.launcher.memory = (self._arena.data_ptr() + base, size)
        buffers = views(self._arena[base:], specs, offsets)
        windows = [buffers[spec.name] for spec in specs if spec.role is Role.SWAP]
        self._staging = Staging(self.driver, self._stream, windows)
        return buffers

    def allocate_host(self, specs: Iterable[BufferSpec]) -> dict[str, Tensor]:
        """The same in one piece of pinned memory; neither torch nor the stages know of it."""
        specs = list(specs)
        if self._pinned is not None:
            raise _refused("one allocation a device", "a second one")
        self.driver.enter()
        offsets, size = placed(specs)
        self._pinned = Pinned(self.driver, size)  # whole pages: aligned
        return views(torch.from_numpy(self._pinned.view), specs, offsets)

    def capture(self, segments: Sequence[Segment]) -> CudaProgram:
        """Capture each body's kernels into one graph; CaptureError names a failed segment."""
        self.driver.enter()
        torch.cuda.synchronize()  # what torch has put into the buffers is complete
        names = tuple(name for name, _ in segments)
        events: list[Any] = []
        try:
            self.launcher.begin(planning=True)
            for name, body in segments:
                self._run_body(name, body)
            self.launcher.begin(planning=False)
            for _ in range(len(segments) + 1):
                events.append(self.driver.call("cuEventCreate", 0))
            with captured(self.driver, self._stream) as graph:
                self._record(events[0])
                for (name, body), event in zip(segments, events[1:], strict=True):
                    self._run_body(name, body)
                    self._record(event)
            executable, kernels = instantiate(self.driver, graph)
        except BaseException:
            for event in events:
                self.driver.call("cuEventDestroy", event)
            raise
        program = CudaProgram(names, executable, events, kernels, tuple(self.launcher.launched))
        self._programs.append(program)
        self.driver.call("cuGraphUpload", executable, self._stream)
        self.driver.call("cuStreamSynchronize", self._stream)
        return program

    def replay(
        self,
        program: Program,
        *,
        outputs: Sequence[Tensor] = (),
        meanwhile: Callable[[], object] | None = None,
        wait: bool = True,
    ) -> None:
        """Send the windows, launch the graph, fetch ``outputs``, and wait once for all of it."""
        self.driver.enter()
        staging = self._staging
        staging.send()
        self.driver.call("cuGraphLaunch", self._own(program).executable, self._stream)
        staging.outdate()
        if not wait:
            return
        for output in outputs:
            window = staging.window(output)
            if window is not None:
                staging.fetch(window)
        try:
            if meanwhile is not None:
                meanwhile()
        finally:
            staging.synchronize()

    def rehearse(self, programs: Iterable[Program]) -> None:
        """Launch each once: graphs that never ran make the kernels of all others start later."""
        self.driver.enter()
        for program in programs:
            self.driver.call("cuGraphLaunch", self._own(program).executable, self._stream)
        self.driver.call("cuStreamSynchronize", self._stream)

    def elapsed_ms(self, program: Program) -> dict[str, float]:
        """GPU milliseconds of each segment in the last replay, from events inside the graph."""
        own = self._own(program)
        return {
            name: float(self.driver.call("cuEventElapsedTime", start, end))
            for name, start, end in zip(own.names, own.events, own.events[1:], strict=False)
        }

    def write(self, target: Tensor, value: np.ndarray[Any, Any]) -> None:
        """Copy host values into a buffer; those of a window are kept for the next replay."""
        value = np.ascontiguousarray(value)
        self.driver.enter()
        staging = self._staging
        window = staging.window(target)
        room = target.nbytes if window is None else window.view.nbytes
        if value.nbytes > room or (value.nbytes < room and target.dim() != 1):
            raise DeviceError("write", expected=f"{room} bytes", got=f"{value.nbytes} bytes")
        if window is not None:
            staging.write(window, value)
            return
        if self._on_host(target.data_ptr()):
            staging.synchronize()  # a copy may still read it
            held = target.view(-1).view(torch.uint8).numpy()
            held[: value.nbytes] = value.reshape(-1).view(np.uint8)
            return
        staging.send()  # in the order of the calls, should the two overlap
        self.driver.call(
            "cuMemcpyHtoDAsync", target.data_ptr(), value.ctypes.data, value.nbytes, self._stream
        )
        staging.synchronize()
        staging.outdate()

    def prepare(self, target: Tensor, value: np.ndarray[Any, Any]) -> None:
        """Copy the bytes for a window to pinned memory, so that :meth:`write` need not."""
        self._staging.prepare(target, value)

    def read(self, source: Tensor) -> np.ndarray[Any, Any]:
        """A host copy of a contiguous buffer; bf16 comes as float32."""
        self.driver.enter()
        staging = self._staging
        window = staging.window(source)
        if window is not None and window.fetched:
            return to_numpy(window.view.copy(), source)
        if self._on_host(source.data_ptr()):
            staging.synchronize()  # a copy may still write it
            return to_numpy(source.view(-1).view(torch.uint8).numpy().copy(), source)
        staging.send()
        host = np.empty(source.nbytes, dtype=np.uint8)
        self.driver.call(
            "cuMemcpyDtoHAsync", host.ctypes.data, source.data_ptr(), host.nbytes, self._stream
        )
        staging.synchronize()
        return to_numpy(host, source)

    def plan(self, copies: Sequence[Rows]) -> CudaTransfer:
        """Make the parameters of one launch; a graph where the host's memory is among them."""
        self.driver.enter()
        planned = self._copier.plan(copies, self._staging.holds, self._on_host)
        if planned.executable is not None:
            self._executables.append(planned.executable)
        return planned

    def transfer(self, planned: Transfer) -> None:
        """Start planned copies: one driver call, in stream order."""
        if planned.__class__ is not CudaTransfer:
            raise _refused("copies it planned", type(planned).__name__)
        if planned.windows:
            self.driver.enter()
            self._staging.send()
            self._staging.outdate()
        driver = self.driver
        if get_ident() != driver.thread:
            driver.enter()
        # Not counted: a host waits with cold caches, where a count takes as long as the call.
        code = getattr(driver.api, planned.call)(*planned.args)[0]
        if code is not driver.success and code != driver.success:
            raise driver.error(f"CUDA call {planned.call}", code)

    def copy(self, target: Tensor, source: Tensor, nbytes: int) -> None:
        """Copy in one driver call, in stream order."""
        self.driver.enter()
        to, start = target.data_ptr(), source.data_ptr()
        if self._staging.holds(to) or self._staging.holds(start):
            self._staging.send()
            self._staging.outdate()
        self.driver.call("cuMemcpyAsync", to, start, nbytes, self._stream)

    def synchronize(self) -> None:
        """Wait for everything on the stream."""
        self.driver.enter()
        self._staging.synchronize()

    def lend(self) -> Native:
        """Send what waits in the windows, and wait."""
        self.driver.enter()
        self._staging.send()
        self._staging.synchronize()
        context, stream = int(self.driver.context), int(self._stream)
        copier = self._copier
        return Native("cuda", LIBRARY, context, stream, int(copier.function), copier.blocks)

    def native(self, program: Program | Transfer) -> NativeProgram:
        """Graph and events."""
        if isinstance(program, CudaTransfer):
            return NativeProgram(int(program.executable or 0))
        own = self._own(program)
        return NativeProgram(int(own.executable), tuple(int(event) for event in own.events))

    def take_back(self) -> None:
        """What was fetched of the windows is old."""
        self.driver.enter()
        self._staging.outdate()

    def close(self) -> None:
        """Release graphs, events, stream, library, pinned memory and arena."""
        if self._opened is None:
            return
        # The last one is called first. One that fails, after a fault on the GPU say, does not keep
        # the others from being called.
        opened, self._opened = self._opened, None
        opened.callback(torch.cuda.empty_cache)
        opened.callback(self._forget_arena)
        opened.callback(self._staging.close)
        if self._pinned is not None:
            opened.callback(self._pinned.close)
        for executable in self._executables:
            opened.callback(self.driver.call, "cuGraphExecDestroy", executable)
        for program in self._programs:
            opened.callback(self.driver.call, "cuGraphExecDestroy", program.executable)
            for event in program.events:
                opened.callback(self.driver.call, "cuEventDestroy", event)
        opened.callback(self._staging.synchronize)
        opened.callback(self.driver.enter)
        opened.close()

    def _forget_arena(self) -> None:
        self._programs.clear()
        self._executables.clear()
        self._arena = None
        self.launcher.memory = (0, 0)

    def _on_host(self, address: int) -> bool:
        return self._pinned is not None and self._pinned.holds(address)

    def _run_body(self, name: str, body: Any) -> None:
        self.launcher.boundary(name)
        try:
            with self.driver.memory_errors(f"what stage {name!r} needs beside its buffers"):
                body(_Lane(self.launcher))
        except FlashRTError:
            raise
        except Exception as error:
            raise CaptureError(f"stage {name!r} could not be captured", got=repr(error)) from error

    def _record(self, event: Any) -> None:
        self.driver.call("cuEventRecordWithFlags", event, self._stream, _EVENT_IN_GRAPH)

    def _own(self, program: Program | Transfer) -> CudaProgram:
        if not isinstance(program, CudaProgram):
            raise _refused("a program it captured", type(program).__name__)
        return program

    def _allocate_arena(self, size: int) -> Tensor:
        with self.driver.memory_errors("the policy's buffers", size):
            arena = torch.zeros(size, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
        return arena


def _refused(expected: str, got: str) -> DeviceError:
    return DeviceError("device 'cuda'", expected=expected, got=got)
