"""What a CUDA launcher of an op may use, and the checks that all launchers share.

Launchers run while a stage is captured, never at replay. They get the same arguments as the op's
reference; tensors are views of the device's buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import ContractError
from .low_bit import NO_KERNEL_REMEDY
from .op import Op
from .quantised import E4M3

Size = int | tuple[int, ...]
Way = Callable[[Tensor, Tensor], None]  # launches all of an op; input, output


@dataclass(frozen=True)
class Float64:
    """A ``double`` argument; plain floats are passed as ``float``."""

    value: float


@dataclass(frozen=True)
class TensorMap:
    """A tile map for the bulk copy engine, passed by value.

    Attributes:
        base: device address of the first element, 16-byte aligned.
        rows, columns: elements of the matrix; rows outside read as zero.
        stride: elements between rows.
        box_rows, box_columns: elements of a tile; 128 or 64 bytes of columns, swizzled over them.
        element_bytes: 2 for bf16, 1 for 8-bit formats.
        outer: further dimensions, the innermost first: size, elements between neighbours, and how
            many of them a tile holds.
    """

    base: int
    rows: int
    columns: int
    stride: int
    box_rows: int
    box_columns: int
    element_bytes: int = 2
    outer: tuple[tuple[int, int, int], ...] = ()


class Launcher(Protocol):
    """Puts kernels on the stream that is being captured."""

    architecture: int  # compute capability, 90 for 9.0
    multiprocessors: int

    def launch(
        self,
        kernel: str,
        grid: Size,
        block: Size,
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        cluster: Size | None = None,
        pdl: bool = True,
        carveout: int | None = None,
    ) -> None:
        """Launch an entry of the kernel library.

        Args:
            kernel: name of the ``extern "C"`` entry.
            grid, block: sizes in blocks and threads.
            args: tensors (their address), None (a null pointer), ints (int32), floats (float32), or
                one of the types above.
            shared_bytes: dynamic shared memory.
            cluster: blocks of a cluster.
            pdl: may start before the kernel in front has finished; the kernel must then call
                ``pdl_wait()`` before it touches what others write.
            carveout: percent of a multiprocessor's own memory that should be shared memory, the
                rest being its cache; the same in all launches of a kernel. None: as the driver
                thinks best for this kernel alone. Kernels that are to lie side by side agree.
        """

    def matmul(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        gelu: bool = False,
        accumulate: bool = False,
        x_scale: Tensor | None = None,
        weight_scale: Tensor | None = None,
        out_scale: Tensor | None = None,
    ) -> None:
        """out = act(x W^T + b), plus what ``out`` held when ``accumulate``.

        x and W are bf16; out and b are both bf16 or both float32. Or x and W are E4M3 and b is
        bf16: the product is multiplied by ``x_scale`` [1] and ``weight_scale`` [1] where given, and
        out may be E4M3 with ``out_scale`` [1], which takes a product that it :meth:`finishes`.
        """

    def finishes(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        gelu: bool = False,
        accumulate: bool = False,
    ) -> bool:
        """Whether :meth:`matmul` can do all of a product of E4M3 operands."""

    def fastest(self, key: str, ways: Mapping[str, Way], x: Tensor, out: Tensor) -> None:
        """Do ``ways[..](x, out)`` in the way that was fastest at set-up.

        Args:
            key: names the op and its shape; the choice is kept under it, with what each way took.
            ways: by name; each launches everything the op needs. While they are timed, ``x`` and
                ``out`` are other tensors of the same layout.
            x, out: the op's input and output.
        """

    def workspace(self, *shape: int, weights: bool = False) -> Tensor:
        """bf16 scratch memory that the next call of this method hands out again.

        That for expanded ``weights`` is apart from that for everything else. The kernel that is
        launched next fills it, and has finished when the one behind it starts.
        """


def refuse_low_bit(op: Op, args: Iterable[Any]) -> None:
    """ContractError when a tensor is quantised and the op's launcher takes none such yet."""
    found = [a.dtype for a in args if isinstance(a, Tensor) and a.dtype in (E4M3, torch.int8)]
    if found and not op.low_bit:
        raise ContractError(
            f"op {op.name!r} on device 'cuda'",
            expected="bfloat16 arguments",
            got=f"{str(found[0]).removeprefix('torch.')}, for which it has no kernel yet",
            remedy=NO_KERNEL_REMEDY,
        )


def output_suffix(op: str, out: Tensor) -> str:
    """ "fp8" or "bf16": what a kernel writes; ContractError on another format."""
    if out.dtype is not E4M3:
        require_bf16(op, out=out)
        return "bf16"
    strides = out.stride()[:-1]
    if out.data_ptr() % 8 or out.shape[-1] % 8 or any(stride % 8 for stride in strides):
        raise ContractError(
            f"{op}: argument 'out' on device 'cuda'",
            expected="8-byte aligned rows of a multiple of 8 values",
            got=f"{list(out.shape)}, strides {out.stride()}",
        )
    return "fp8"


def require_bf16(op: str, **tensors: Tensor | None) -> None:
    """ContractError unless every tensor is bf16 in rows of whole, aligned 16-byte vectors."""
    for name, value in tensors.items():
        if value is None:
            continue
        _require_format(op, name, value)
        strides = value.stride()[:-1]
        aligned = value.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in strides)
        if not aligned or value.shape[-1] % 8:
            raise ContractError(
                f"{op}: argument '{name}' on device 'cuda'",
                expected="16-byte aligned rows of a multiple of 8 values",
                got=f"{list(value.shape)}, strides {value.stride()}",
            )


def require_bf16_rows(op: str, **tensors: Tensor | None) -> None:
    """ContractError unless every tensor is bf16; rows may have any width."""
    for name, value in tensors.items():
        if value is not None:
            _require_format(op, name, value)


def require_packed(op: str, **tensors: Tensor | None) -> None:
    """ContractError unless every tensor is 16-byte aligned and without gaps."""
    for name, value in tensors.items():
        if value is not None and (value.data_ptr() % 16 or not value.is_contiguous()):
            raise ContractError(
                f"{op}: argument '{name}' on device 'cuda'",
                expected="16-byte aligned numbers without gaps",
                got=f"{list(value.shape)}, strides {value.stride()}",
            )


def stream_suffix(op: str, name: str, value: Tensor) -> str:
    """ "f32" or "bf16" for a residual stream, which may be either; ContractError on another."""
    if value.dtype is torch.float32 and value.data_ptr() % 16 == 0 and value.stride(0) % 4 == 0:
        return "f32"
    require_bf16(op, **{name: value})
    return "bf16"


def _require_format(op: str, name: str, value: Tensor) -> None:
    if value.dtype is not torch.bfloat16:
        raise ContractError(
            f"{op}: argument '{name}' on device 'cuda'",
            expected="bfloat16",
            got=str(value.dtype).removeprefix("torch."),
            remedy="set precision to 'bf16'",
        )


def row_threads(op: str, width: int) -> int:
    """Threads of a block that holds a row in registers, eight values a thread."""
    threads = -(-width // 256) * 32
    if threads > 1024:
        raise ContractError(f"{op}: width on device 'cuda'", expected="at most 8192", got=width)
    return threads


def blocks(items: int, each: int) -> int:
    """Blocks that cover ``items`` when one takes ``each``."""
    return -(-items // each)
