"""The argument check that all ops share: symbolic sizes, formats, devices, aliasing.

Runs at capture only, never at replay.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import ContractError

F32 = (torch.float32,)
I32 = (torch.int32,)
U8 = (torch.uint8,)
#: Formats that activations and weights of a stage may have.
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class ArgCheck:
    """Checks the tensors of one call; sizes given by a letter must agree between tensors.

    Every refusal is a ContractError that names the op, the argument, what it takes and what came.
    """

    def __init__(self, op: str) -> None:
        self.op = op
        self.sizes: dict[str, int] = {}
        self._device: torch.device | None = None

    def tensor(
        self,
        name: str,
        value: Tensor,
        shape: tuple[int | str, ...],
        dtypes: Iterable[torch.dtype] = FLOATS,
    ) -> Tensor:
        """Checks one tensor and binds the letters of its shape.

        Args:
            name: argument name, for the message.
            value: the tensor; its last dimension must be contiguous.
            shape: sizes; a string is a letter that takes the size at its first use.
            dtypes: formats that the op takes here.
        """
        where = f"{self.op}: argument '{name}'"
        if not isinstance(value, Tensor):
            raise ContractError(where, expected="a tensor", got=type(value).__name__)
        allowed = tuple(dtypes)
        if value.dtype not in allowed:
            raise ContractError(where, expected=_names(allowed), got=_names((value.dtype,)))
        if value.dim() != len(shape) or not self._match(tuple(value.shape), shape):
            raise ContractError(where, expected=self._describe(shape), got=list(value.shape))
        if value.dim() and value.stride(-1) != 1 and value.shape[-1] > 1:
            raise ContractError(
                where, expected="a contiguous last dimension", got=f"strides {value.stride()}"
            )
        if self._device is None:
            self._device = value.device
        elif value.device != self._device:
            raise ContractError(where, expected=f"on {self._device}", got=f"on {value.device}")
        return value

    def require(self, holds: bool, what: str, *, expected: object, got: object) -> None:
        """Raises ContractError unless ``holds``; for what a shape letter cannot say."""
        if not holds:
            raise ContractError(f"{self.op}: {what}", expected=expected, got=got)

    def apart(self, name: str, value: Tensor, other_name: str, other: Tensor) -> None:
        """Raises ContractError when two arguments overlap in memory."""
        if value.device.type == "meta":  # sizes only, no memory
            return
        first, second = _byte_range(value), _byte_range(other)
        if first[0] < second[1] and second[0] < first[1]:
            raise ContractError(
                f"{self.op}: argument '{name}'",
                expected=f"memory of its own, apart from '{other_name}'",
                got="overlapping buffers",
            )

    def _match(self, sizes: tuple[int, ...], shape: tuple[int | str, ...]) -> bool:
        found: dict[str, int] = {}
        for size, want in zip(sizes, shape, strict=True):
            if isinstance(want, int):
                if size != want:
                    return False
            elif found.setdefault(want, self.sizes.get(want, size)) != size:
                return False
        self.sizes.update(found)
        return True

    def _describe(self, shape: tuple[int | str, ...]) -> str:
        parts = [
            f"{want}={self.sizes[want]}" if isinstance(want, str) and want in self.sizes else want
            for want in shape
        ]
        return "[" + ", ".join(str(part) for part in parts) + "]"


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _byte_range(value: Tensor) -> tuple[int, int]:
    """First and one-past-last byte that the tensor touches (holes of strided views included)."""
    start = value.data_ptr()
    if value.numel() == 0:
        return start, start
    last = sum(
        (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    return start, start + (last + 1) * value.element_size()
