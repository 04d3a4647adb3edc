"""The argument check that all ops share: symbolic sizes, formats, devices, aliasing.

Runs at capture only, never at replay.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import ContractError

F32 = (torch.float32,)
F8 = (torch.float8_e4m3fn,)
I8 = (torch.int8,)
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

    def quantised(
        self,
        name: str,
        value: Tensor,
        shape: tuple[int | str, ...],
        scale_name: str,
        scale: Tensor | None,
        scale_shape: tuple[int | str, ...],
        dtypes: tuple[torch.dtype, ...] = F8,
    ) -> Tensor:
        """Checks a tensor that has a low-bit format exactly where it has a scale, and the scale.

        Args:
            name, value, shape: as of :meth:`tensor`.
            scale_name, scale, scale_shape: likewise, float32; None for a tensor without.
            dtypes: low-bit formats that the op takes here.
        """
        self.tensor(name, value, shape, (*FLOATS, *dtypes))
        self.require(
            (value.dtype in dtypes) == (scale is not None),
            f"argument '{scale_name}'",
            expected=f"a scale where '{name}' is {_names(dtypes)}, and only there",
            got=f"'{name}' of {_names((value.dtype,))}, {'no' if scale is None else 'a'} scale",
        )
        if scale is not None:
            self.tensor(scale_name, scale, scale_shape, F32)
        return value

    def operands(
        self,
        x: Tensor,
        weight: Tensor,
        x_scale: Tensor | None,
        weight_scale: Tensor | None,
        weight_shape: tuple[int | str, ...] = ("N", "K"),
        *,
        rows_scaled: bool = True,
    ) -> None:
        """Checks the operands of x W^T; the weight, or both, may be quantised.

        ``rows_scaled``: the op multiplies the product of two quantised operands by a scale for each
        row of the weight; else by one number.
        """
        self.quantised("x", x, ("M", "K"), "x_scale", x_scale, (1,))
        one = x_scale is not None and not rows_scaled
        self.weight(weight, x_scale, weight_scale, weight_shape, (1,) if one else None)

    def weight(
        self,
        weight: Tensor,
        x_scale: Tensor | None,
        weight_scale: Tensor | None,
        shape: tuple[int | str, ...],
        scale_shape: tuple[int | str, ...] | None = None,
    ) -> None:
        """Checks a weight [N, K], quantised where its input has a scale; None: a scale a row.

        A weight of four bits is uint8 [N, K/2] with scales [N, K/run].
        """
        if weight_scale is not None and isinstance(weight, Tensor) and weight.dtype in U8:
            rows, columns = shape
            width = self.sizes.get(str(columns), 0)
            self.tensor("weight", weight, (rows, width // 2), U8)
            self.tensor("weight_scale", weight_scale, (rows, "runs"), F32)
            whole = width % 2 == 0 and width % self.sizes["runs"] == 0
            self.require(whole, "runs of 'weight'", expected=f"a divisor of {width}", got="another")
            self.require(x_scale is None, "argument 'x_scale'", expected="none", got="one")
            return
        if x_scale is not None:
            self.tensor("x_scale", x_scale, (1,), F32)
        scale = (weight_scale, scale_shape or shape[:1])
        self.quantised("weight", weight, shape, "weight_scale", *scale, dtypes=(*F8, *I8))
        self.require(
            x_scale is None or weight.dtype in F8,
            "argument 'weight'",
            expected="float8_e4m3fn where 'x' is quantised",
            got=_names((weight.dtype,)),
        )

    def require(self, holds: bool, what: str, *, expected: object, got: object) -> None:
        """Raises ContractError unless ``holds``; for what a shape letter cannot say."""
        if not holds:
            raise ContractError(f"{self.op}: {what}", expected=expected, got=got)

    def affine(
        self, gain_name: str, gain: Tensor | None, shift_name: str, shift: Tensor | None
    ) -> None:
        """Checks gain and offset of a norm over rows [.., D], float32; there are both or none."""
        self.require(
            (gain is None) == (shift is None),
            f"arguments '{gain_name}' and '{shift_name}'",
            expected="both or none",
            got=[value is not None for value in (gain, shift)],
        )
        if gain is not None and shift is not None:
            self.tensor(gain_name, gain, ("D",), F32)
            self.tensor(shift_name, shift, ("D",), F32)

    def segments(self, segments: int, what: str, *letters: str) -> None:
        """Checks that the rows of each of these letters fall into that many equal runs."""
        counts = [self.sizes[letter] for letter in letters]
        self.require(
            segments >= 1 and all(count % segments == 0 for count in counts),
            what,
            expected=f"{'multiples' if len(counts) > 1 else 'a multiple'} of segments {segments}",
            got=" and ".join(map(str, counts)),
        )

    def choice(self, name: str, value: str, allowed: tuple[str, ...]) -> None:
        """Raises ContractError unless a setting is one of those that the op knows."""
        self.require(value in allowed, name, expected=" or ".join(allowed), got=value)

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
