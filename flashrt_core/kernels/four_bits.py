"""Weights of four bits: rne(w / scale) + 8 in 0..15, a scale for each run of a row; two in a byte.

What they stand for is (n - 8) scale in float32, and products are sums of that: a kernel multiplies
whole numbers and scales its float32 sums, run by run.

Where a weight's rows are a multiple of 64 and its runs 128 long, it lies in tiles, as the products
of few rows read it: 64 rows by 64 columns, tiles of the same rows behind each other. A tile is 16
bytes of each of 128 threads; of thread (slab, g, t), 4 x 8 x 4 of them, word w holds columns
16 w + 8 b + 2 t + e of rows 16 slab + 2 g and the next one, in the halves of byte 2 e + b. Its
scales lie in the same tiles of rows, 64 a run. Any other weight lies as its rows do, the even
column in the low half of a byte.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .quantised import scale_of

#: What a weight in tiles has: a multiple of so many rows, and runs of so many columns.
TILE_ROWS, TILE_RUN = 64, 128
#: Shares of a run's largest number that its scale may be made of.
_SHARES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72)


def in_tiles(weight: Tensor, scale: Tensor) -> bool:
    """Whether a packed weight [N, K/2] with scales [N, K/run] lies in tiles."""
    return _tiled(weight.shape[0], 2 * weight.shape[1] // scale.shape[1])


def quantise_runs(
    weight: Tensor, run: int, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights [N, K] in four bits: uint8 [N, K/2], and float32 scales [N, K/run], as they lie.

    Of a few scales a run gets the one with the least error. Columns whose inputs are large count
    more: an error is weighed with the mean square of what it is multiplied by.

    Args:
        weight: float; computed where it lies.
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
        tried = scale_of(amax * share, 7.0)
        error = (_whole(runs, tried) * tried[..., None] - runs).square_().mul_(weighed).sum(2)
        better = error < best
        scale, best = torch.where(better, tried, scale), torch.where(better, error, best)
    whole = (_whole(runs, scale) + 8).to(torch.uint8).flatten(1)
    if not _tiled(whole.shape[0], run):
        return whole[:, 0::2] | (whole[:, 1::2] << 4), scale
    low, high = _parts(whole).unbind(-1)
    of_rows = scale.unflatten(0, (-1, TILE_ROWS)).transpose(1, 2).reshape(scale.shape)
    return (low | (high << 4)).reshape(len(whole), -1), of_rows


def four_bit_values(weight: Tensor, scale: Tensor) -> Tensor:
    """What :func:`quantise_runs` stands for: [N, K] float32."""
    whole = torch.stack((weight & 15, weight >> 4), dim=2)
    (rows, half), tiles = weight.shape, in_tiles(weight, scale)
    if tiles:
        each = (rows // TILE_ROWS, half // 32, 4, 8, 4, 4, 2, 2, 2)
        whole = whole.view(each).permute(0, 2, 3, 8, 1, 5, 7, 4, 6)  # undoes _parts
        scale = scale.view(rows // TILE_ROWS, -1, TILE_ROWS).transpose(1, 2).reshape(scale.shape)
    values = whole.reshape(rows, scale.shape[1], -1).float() - 8.0
    return (values * scale[..., None]).flatten(1)


def _tiled(rows: int, run: int) -> bool:
    return run == TILE_RUN and rows % TILE_ROWS == 0


def _parts(whole: Tensor) -> Tensor:
    """[N, K] -> the halves of every byte in the order of the tiles [N/64, K/64, .., 2]."""
    rows, columns = whole.shape
    # Rows: tile, slab, g, half; columns: tile, w, b, t, e.
    each = whole.view(rows // TILE_ROWS, 4, 8, 2, columns // 64, 4, 2, 4, 2)
    return each.permute(0, 4, 1, 2, 7, 5, 8, 6, 3)


def _whole(runs: Tensor, scale: Tensor) -> Tensor:
    return torch.round(runs / scale[..., None]).clamp_(-8, 7)
