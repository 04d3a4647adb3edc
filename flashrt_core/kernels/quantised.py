"""What every low-bit reference does to a number, and how weights come to their scales.

E4M3 holds q = rne(clamp(x / scale, +-448)): 3 bits behind the leading one, full precision down to
2^-6, then even steps of 2^-9. int8, for weights alone, holds rne(x / scale) in +-127. Four bits,
for weights too, hold rne(x / scale) + 8 in 0..15, the even column of a pair in the low half of a
byte; each run of a row has a scale.
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
    scale = _scale(weight.abs().amax(dim=1), INT8_MAX if dtype is torch.int8 else E4M3_MAX)
    if dtype is torch.int8:
        whole = torch.round(weight / scale[:, None])  # to even
        return whole.clamp_(-INT8_MAX, INT8_MAX).to(dtype), scale
    return quantise(weight, scale[:, None]), scale


def quantise_whole(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [N, K] in E4M3 with one scale for all, float32 [1]; as :func:`quantise_rows`."""
    weight = weight.float()
    scale = _scale(weight.abs().amax().view(1), E4M3_MAX)
    return quantise(weight, scale), scale


#: Shares of a run's largest number that its scale may be made of.
_SHARES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72)


def quantise_runs(
    weight: Tensor, run: int, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights [N, K] in four bits: uint8 [N, K/2], and float32 scales [N, K/run].

    Of a few scales a run gets the one with the least error. Columns whose inputs are large count
    more: an error is weighed with the mean square of what it is multiplied by.

    Args:
        weight: float.
        run: weights that share a scale; divides K.
        importance: [K] float, mean square of each input; None: all alike.
    """
    runs = weight.float().unflatten(1, (-1, run))  # [N, K/run, run]
    weighed = torch.ones(1, 1, run) if importance is None else importance.float().view(1, -1, run)
    weighed = weighed.to(runs)
    amax = runs.abs().amax(dim=2)
    best = torch.full_like(amax, float("inf"))
    scale = torch.ones_like(amax)
    for share in _SHARES:
        tried = _scale(amax * share, 7.0)
        error = (_four_bits(runs, tried) * tried[..., None] - runs).square_().mul_(weighed).sum(2)
        better = error < best
        scale, best = torch.where(better, tried, scale), torch.where(better, error, best)
    whole = (_four_bits(runs, scale) + 8).to(torch.uint8).flatten(1)
    return whole[:, 0::2] | (whole[:, 1::2] << 4), scale


def _four_bits(runs: Tensor, scale: Tensor) -> Tensor:
    return torch.round(runs / scale[..., None]).clamp_(-8, 7)


def four_bit_values(weight: Tensor, scale: Tensor) -> Tensor:
    """What :func:`quantise_runs` stands for: [N, K] float32."""
    whole = torch.stack((weight & 15, weight >> 4), dim=2).flatten(1).float() - 8.0
    return (whole.unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1)


def _scale(amax: Tensor, largest: float) -> Tensor:
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
