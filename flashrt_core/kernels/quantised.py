"""What every low-bit reference does to a number, and how weights come to their scales.

E4M3 holds q = rne(clamp(x / scale, +-448)): 3 bits behind the leading one, full precision down to
2^-6, then even steps of 2^-9. int8, for weights alone, holds rne(x / scale) in +-127. Of four bits
see four_bits.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX, INT8_MAX = 448.0, 127.0


def quantise(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale, saturated and rounded once to E4M3; NaN stays.

    Args:
        x: float.
        scale: float32, > 0, of a shape that broadcasts with ``x``.
    """
    return (x.float() / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3)


def quantise_rows(weight: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """Weights [N, K] in E4M3 or int8 with one scale a row, float32 [N].

    The largest number of a row becomes 448, or 127; a row of zeros has the scale 1.
    """
    weight = weight.float()
    scale = scale_of(weight.abs().amax(dim=1), INT8_MAX if dtype is torch.int8 else E4M3_MAX)
    if dtype is torch.int8:
        whole = torch.round(weight / scale[:, None])  # to even
        return whole.clamp_(-INT8_MAX, INT8_MAX).to(dtype), scale
    return quantise(weight, scale[:, None]), scale


def quantise_whole(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [N, K] in E4M3 with one scale for all, float32 [1]; as :func:`quantise_rows`."""
    weight = weight.float()
    scale = scale_of(weight.abs().amax().view(1), E4M3_MAX)
    return quantise(weight, scale), scale


def scale_of(amax: Tensor, largest: float) -> Tensor:
    """The scale that makes ``amax`` the largest number of a format; 1 for 0."""
    return torch.where(amax > 0, amax / largest, torch.ones_like(amax))


def store(value: Tensor, out: Tensor, scale: Tensor | None) -> None:
    """Writes float32 ``value`` to ``out`` with one rounding: through ``scale`` where it has one."""
    out.copy_(value if scale is None else quantise(value, scale))


def rescaled(product: Tensor, x_scale: Tensor | None, weight_scale: Tensor | None) -> Tensor:
    """A float32 product of quantised operands [M, N] times their scales, in place.

    Args:
        product: of the stored numbers.
        x_scale: [1], None for an input that is not quantised.
        weight_scale: [N] or [1], likewise.
    """
    if weight_scale is None:
        return product
    return product.mul_(weight_scale if x_scale is None else x_scale * weight_scale)


def given(**scales: Tensor | None) -> dict[str, Tensor]:
    """Those of an op's scales that there are: an op without any is issued as it always was."""
    return {name: scale for name, scale in scales.items() if scale is not None}
