"""What a device must be able to do for the engine: allocate once, capture, replay, copy.

The engine, the sessions and the stages know only this protocol. Buffers are torch tensors over
memory whose address never changes after :meth:`Device.allocate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ..contract import BufferSpec, DType
from ..errors import CaptureError
from ..kernels.op import Lane, Op
from ..kernels.row_moments import RowMoments
from .transfer import Rows, Transfer

Segment = tuple[str, Callable[[Lane], None]]  # name of the stage, its body


class Program(Protocol):
    """A captured sequence of segments, replayable as one."""

    @property
    def segments(self) -> tuple[str, ...]:
        """Names in replay order."""


@dataclass(frozen=True)
class Native:
    """What another driver of the device needs, as numbers that C can take.

    Attributes:
        kind: "cpu", where stages run in Python alone, or "cuda".
        driver: file name of the CUDA driver library.
        context, stream, copier: handles of the driver; the last of the kernel that copies pieces.
        copy_blocks: of its launches.
    """

    kind: str
    driver: str = ""
    context: int = 0
    stream: int = 0
    copier: int = 0
    copy_blocks: int = 0


@dataclass(frozen=True)
class NativeProgram:
    """A captured program or planned copies as handles of the driver; nothing on the CPU.

    Attributes:
        executable: the graph; 0 of copies that the kernel of :class:`Native` makes.
        events: one before the first segment and one after each; none of copies.
    """

    executable: int = 0
    events: tuple[int, ...] = ()


class Device(Protocol):
    """One execution target. Used by one thread at a time."""

    name: str  # as in the ``device`` option
    arch: str  # part of the fingerprint
    library: str  # digest of the kernels, part of the fingerprint
    execution: Mapping[str, str]  # what else bits depend on: further parts of the fingerprint
    idle: Transfer  # copies nothing, and nothing waits for it: to rehearse how one is started

    def allocate(self, specs: Iterable[BufferSpec]) -> dict[str, Tensor]:
        """Zeroed buffers at fixed addresses. DeviceError when memory does not suffice."""

    def allocate_host(self, specs: Iterable[BufferSpec]) -> dict[str, Tensor]:
        """Zeroed buffers at fixed addresses in the host's memory, pinned where that matters.

        For read, write and copies they are buffers like others; no stage may use them. At most
        once a device. DeviceError when memory does not suffice.
        """

    def capture(self, segments: Sequence[Segment]) -> Program:
        """Run each body once against a lane and keep what it issues. CaptureError on failure."""

    def replay(
        self,
        program: Program,
        *,
        outputs: Sequence[Tensor] = (),
        meanwhile: Callable[[], object] | None = None,
        wait: bool = True,
    ) -> None:
        """Run a captured program on what the buffers hold now, and wait for it.

        Args:
            program: what to run.
            outputs: windows that will be read next; their way to the host is part of the wait.
            meanwhile: called once while the device is busy.
            wait: False returns once it is started, and does nothing about the two before: whatever
                the device is asked for afterwards sees what it does. Its time is not known, and
                what fails in it is told by a later call.
        """

    def rehearse(self, programs: Iterable[Program]) -> None:
        """Run each once where that makes later replays faster. At configure.

        What the buffers hold then means nothing, and nothing is told of what was computed.
        """

    def elapsed_ms(self, program: Program) -> dict[str, float]:
        """Milliseconds of each segment in the last replay of ``program``."""

    def write(self, target: Tensor, value: np.ndarray[Any, Any]) -> None:
        """Copy host values of the same shape and type into a buffer.

        A buffer of one dimension takes fewer values too; they go to its start.
        """

    def prepare(self, target: Tensor, value: np.ndarray[Any, Any]) -> None:
        """Do what can be done for a :meth:`write` of this very array, which may follow or not.

        Until then nobody may change its values. No buffer changes.
        """

    def read(self, source: Tensor) -> np.ndarray[Any, Any]:
        """A host copy of a buffer; bf16 and narrower floats come as float32."""

    def plan(self, copies: Sequence[Rows]) -> Transfer:
        """Make copies ready to be started as one, as often as wanted. At configure."""

    def transfer(self, planned: Transfer) -> None:
        """Start planned copies.

        It may return before they are done: whatever the device is asked for afterwards sees them.
        """

    def copy(self, target: Tensor, source: Tensor, nbytes: int) -> None:
        """Copy the first ``nbytes`` of a buffer to the start of another; done as transfers are."""

    def synchronize(self) -> None:
        """Wait until everything that was asked for is done."""

    def lend(self) -> Native:
        """Let somebody else drive: what was written is on the device, and nothing is under way.

        Until :meth:`take_back` no other method is called. DeviceError where that cannot be done.
        """

    def native(self, program: Program | Transfer) -> NativeProgram:
        """The handles of a program, or of planned copies."""

    def take_back(self) -> None:
        """Whatever the buffers held before :meth:`lend` may have changed."""

    def close(self) -> None:
        """Release everything; a second call does nothing. Buffers must not be used afterwards."""


class AuditedLane:
    """Passes ops on to a lane after checking that a stage touches only what it declared.

    Every tensor argument must lie inside one buffer that the stage may use: this is what makes
    "fixed addresses" and "declared reads and writes" facts instead of promises.
    """

    def __init__(
        self, lane: Lane, stage: str, buffers: Mapping[str, Tensor], allowed: set[str]
    ) -> None:
        self._lane = lane
        self._stage = stage
        self._allowed = allowed
        self._spans = [
            (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name)
            for name, tensor in buffers.items()
        ]

    def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
        """Check every tensor of the call, then issue it."""
        for value in _tensors((*args, *kwargs.values())):
            name = self._owner(value)
            if name is None:
                raise CaptureError(
                    f"stage {self._stage!r}, op {op.name!r}",
                    expected="tensors inside declared buffers",
                    got=f"{list(value.shape)} {value.dtype} at another address",
                    remedy="declare a buffer for it in the policy's contract",
                )
            if name not in self._allowed:
                raise CaptureError(
                    f"stage {self._stage!r}, op {op.name!r}",
                    expected=f"only buffers it declares: {sorted(self._allowed)}",
                    got=repr(name),
                    remedy="add it to the stage's reads or writes",
                )
        self._lane.issue(op, *args, **kwargs)

    def _owner(self, value: Tensor) -> str | None:
        start = value.data_ptr()
        for first, end, name in self._spans:
            if first <= start < end:
                return name
        return None


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, RowMoments):
            yield value.values
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype("float32"),
    DType.F16: np.dtype("float16"),
    DType.U8: np.dtype("uint8"),
    DType.I32: np.dtype("int32"),
    DType.I64: np.dtype("int64"),
}
