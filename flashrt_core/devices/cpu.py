"""The CPU device: the same stages on the torch references of every op, wherever torch can run.

Capture runs a stage body once and keeps the calls it issues; replay makes those calls again on the
same buffers. So a CPU run follows exactly the rules of a captured GPU run: fixed addresses, no
Python decision of the stage repeated at replay.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BufferSpec
from ..errors import CaptureError, DeviceError, FlashRTError
from ..kernels.maths import in_float32
from ..kernels.op import Op
from .arena import ALIGNMENT, placed, views
from .base import Native, NativeProgram, Program, Segment
from .transfer import Rows, Transfer, pieces


@dataclass
class CpuProgram:
    """Recorded calls, grouped by segment."""

    calls: list[tuple[str, list[partial[None]]]]
    last_ms: dict[str, float] = field(default_factory=dict)

    @property
    def segments(self) -> tuple[str, ...]:
        """Names in replay order."""
        return tuple(name for name, _ in self.calls)


@dataclass(frozen=True)
class CpuTransfer(Transfer):
    """Copies as tensors: what goes where."""

    views: tuple[tuple[Tensor, Tensor], ...] = field(repr=False)


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[partial[None]] = []

    def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
        self.calls.append(partial(op.reference, *args, **kwargs))


class CpuDevice:
    """Executes ops by their references in this process.

    Args:
        threads: torch intra-op threads; 0 leaves torch's own choice. Process-wide, as torch has it,
            but every replay has those that there were here: in how many pieces torch adds up a sum
            depends on them, and so do the last bits.
        place: where torch computes. On a GPU this is a slow device that shares no kernel with the
            real one: what qualification at true size compares with.
    """

    def __init__(self, threads: int = 0, place: str = "cpu") -> None:
        if threads > 0:
            torch.set_num_threads(threads)
        in_float32(place)
        self._threads = torch.get_num_threads()
        self._place = torch.device(place)
        self.name = "cpu" if self._place.type == "cpu" else f"reference_{self._place.type}"
        self.arch = f"{self._place.type}-{platform.machine()}"
        self.library = f"torch-{torch.__version__}"
        self.execution: Mapping[str, str] = {}
        if self._place.type == "cpu":
            instructions = torch.backends.cpu.get_cpu_capability()
            self.execution = {"threads": str(self._threads), "instructions": instructions}
        self.idle: Transfer = CpuTransfer((), ())
        self._arena: Tensor | None = None
        self._host_arena: Tensor | None = None

    def allocate(self, specs: Iterable[BufferSpec]) -> dict[str, Tensor]:
        """Zeroed, 256-byte aligned views of one arena; DeviceError when memory does not suffice."""
        self._arena, buffers = self._carve(self._arena, specs, self._place)
        return buffers

    def allocate_host(self, specs: Iterable[BufferSpec]) -> dict[str, Tensor]:
        """The same in an arena of its own, in this process's memory."""
        self._host_arena, buffers = self._carve(self._host_arena, specs, torch.device("cpu"))
        return buffers

    def _carve(
        self, arena: Tensor | None, specs: Iterable[BufferSpec], place: torch.device
    ) -> tuple[Tensor, dict[str, Tensor]]:
        specs = list(specs)
        if arena is not None:
            raise DeviceError(
                f"device {self.name!r}", expected="one allocation a device", got="a second one"
            )
        offsets, size = placed(specs)
        try:
            arena = torch.zeros(size + ALIGNMENT, dtype=torch.uint8, device=place)
        except (RuntimeError, MemoryError) as error:
            raise DeviceError(
                f"memory of device {self.name!r} for the policy's buffers",
                expected=f"{size / 1e9:.2f} GB free",
                got=str(error).splitlines()[0],
                remedy="choose a smaller preset or a bf16 precision plan",
            ) from error
        base = -arena.data_ptr() % ALIGNMENT
        return arena, views(arena[base:], specs, offsets)

    def capture(self, segments: Sequence[Segment]) -> CpuProgram:
        """Record each body's calls; CaptureError names the segment that failed."""
        calls = []
        for name, body in segments:
            recorder = _Recorder()
            try:
                body(recorder)
            except FlashRTError:
                raise
            except Exception as error:
                raise CaptureError(
                    f"stage {name!r} could not be captured", got=repr(error)
                ) from error
            calls.append((name, recorder.calls))
        return CpuProgram(calls)

    def replay(
        self,
        program: Program,
        *,
        outputs: Sequence[Tensor] = (),
        meanwhile: Callable[[], object] | None = None,
        wait: bool = True,
    ) -> None:
        """Make the recorded calls again, in order; this process is the device, so what is to be
        done meanwhile follows, and there is nothing to wait for.
        """
        if not isinstance(program, CpuProgram):
            raise DeviceError(
                f"device {self.name!r}",
                expected="a program it captured",
                got=type(program).__name__,
            )
        with _threads(self._threads), torch.inference_mode():
            for name, calls in program.calls:
                start = perf_counter()
                for call in calls:
                    call()
                self.synchronize()
                program.last_ms[name] = (perf_counter() - start) * 1e3
        if meanwhile is not None:
            meanwhile()

    def rehearse(self, programs: Iterable[Program]) -> None:
        """Nothing: no call is faster the second time, once the libraries are set up."""

    def elapsed_ms(self, program: Program) -> dict[str, float]:
        """Wall-clock milliseconds of each segment in the last replay."""
        if not isinstance(program, CpuProgram):
            raise DeviceError(
                f"device {self.name!r}",
                expected="a program it captured",
                got=type(program).__name__,
            )
        return dict(program.last_ms)

    def write(self, target: Tensor, value: np.ndarray[Any, Any]) -> None:
        """Copy host values into a buffer, or to the start of one of one dimension."""
        if target.dim() == 1:
            target = target[: value.size]
        if target.device.type == "cpu":
            np.copyto(target.numpy(), value, casting="no")
        else:
            target.copy_(torch.from_numpy(np.array(value, order="C")))

    def prepare(self, target: Tensor, value: np.ndarray[Any, Any]) -> None:
        """There is nothing to copy ahead."""

    def read(self, source: Tensor) -> np.ndarray[Any, Any]:
        """A host copy; bf16 and narrower floats come as float32."""
        if source.dtype in (torch.bfloat16, torch.float8_e4m3fn):
            return source.float().cpu().numpy()
        return source.cpu().numpy().copy()

    def plan(self, copies: Sequence[Rows]) -> CpuTransfer:
        """Views of what is copied."""
        pieces(copies)  # which checks them, as on any device
        return CpuTransfer(
            tuple(copies),
            tuple(
                (
                    _rows(each.target, each, each.target_offset, each.target_pitch),
                    _rows(each.source, each, each.source_offset, each.source_pitch),
                )
                for each in copies
            ),
        )

    def transfer(self, planned: Transfer) -> None:
        """Copy what was planned."""
        if not isinstance(planned, CpuTransfer):
            raise DeviceError(
                f"device {self.name!r}", expected="copies it planned", got=type(planned).__name__
            )
        for target, source in planned.views:
            target.copy_(source)

    def copy(self, target: Tensor, source: Tensor, nbytes: int) -> None:
        """Copy from the start of one buffer to that of another."""
        self.transfer(self.plan([Rows(target, source, nbytes)]))

    def synchronize(self) -> None:
        """On the CPU everything is done when it returns."""
        if self._place.type != "cpu":
            torch.cuda.synchronize(self._place)

    def lend(self) -> Native:
        """There is nothing to wait for; DeviceError where torch computes elsewhere."""
        if self._place.type != "cpu":
            raise DeviceError(
                f"export on device {self.name!r}",
                expected="device 'cpu' or 'cuda'",
                got="torch's references on a GPU",
            )
        return Native("cpu")

    def native(self, program: Program | Transfer) -> NativeProgram:
        """Nothing: a program is calls of Python, and anybody can copy."""
        return NativeProgram()

    def take_back(self) -> None:
        """Nothing is kept of the buffers."""

    def close(self) -> None:
        """Drop the arenas; views that are still held keep them alive."""
        self._arena = self._host_arena = None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads of torch, whoever calls: a thread that is new to torch would begin with as
    many as the machine has.
    """
    before = torch.get_num_threads()  # which makes torch known to the calling thread
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rows(buffer: Tensor, copy: Rows, offset: int, pitch: int) -> Tensor:
    flat = buffer.view(-1).view(torch.uint8)
    return flat.as_strided((copy.rows, copy.row_bytes), (pitch, 1), flat.storage_offset() + offset)
