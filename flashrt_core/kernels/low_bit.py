"""What the CUDA launchers of products with low-bit operands share."""

from __future__ import annotations

from torch import Tensor

from ..errors import ContractError
from .quantised import E4M3

#: What can be done where a product has no kernel in its format.
NO_KERNEL_REMEDY = (
    "give the product's site another format in the precision plan ('bf16' always runs), or set "
    "device to 'cpu'"
)


def no_kernel(op: str, *, expected: str, got: object) -> ContractError:
    """The refusal of operands that no kernel of an op takes."""
    return ContractError(
        f"{op} on device 'cuda'",
        expected=expected,
        got=str(got).removeprefix("torch."),
        remedy=NO_KERNEL_REMEDY,
    )


def require_e4m3(op: str, x: Tensor, weight: Tensor) -> None:
    """ContractError unless both operands are E4M3 in rows that library products take."""
    for name, value in (("x", x), ("weight", weight)):
        if value.dtype is not E4M3:
            raise no_kernel(
                op, expected=f"float8_e4m3fn '{name}' beside an 8-bit operand", got=value.dtype
            )
        if value.data_ptr() % 16 or value.shape[1] % 16 or value.stride(0) % 16:
            raise no_kernel(
                op,
                expected=f"16-byte aligned rows of a multiple of 16 values in '{name}'",
                got=f"{list(value.shape)}, strides {value.stride()}",
            )
