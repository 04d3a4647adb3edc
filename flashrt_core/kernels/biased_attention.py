"""Kernels of attention whose keys count as a bias says, for heads of 128 numbers; no op.

Sources: csrc/ops/attention_biased_sm90.cu, csrc/ops/attention_heads.cu.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .launch import Launcher, TensorMap, blocks, output_suffix
from .skinny import LARGE_CLUSTERS

#: Shared memory of the kernels of keys that count differently: of a block, of one of a cluster, and
#: in front of the biases of the one for Hopper, which has 4 bytes a key and as many a block of 64.
_BIASED_SHARED, _SPLIT_SHARED, _BIASED_SM90_SHARED = 70_144, 113_552, 147_600
_MOST_SHARED = 232_448
#: With norms in front; and where a warp has one tile of keys, of at most so many.
_NORMED_SHARED, _SHORT_NORMED_SHARED, _SHORT_KEYS = 74_496, 39_424, 64
#: Most keys that are read before the kernels in front have ended, if all are kept, and what is then
#: in front of the biases of the one for Hopper.
_KEPT_KEYS, _KEPT_SHARED = 128, 82_000
#: Blocks of a cluster that split the keys of few rows, and fewest keys of which that is worth it.
_SPLIT, _MANY_KEYS = 8, 256


def biased_attention_launch(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    out_scale: Tensor | None,
    key_bias: Tensor,
    segments: int,
    scale: float,
    kept: bool = False,
    fresh: Tensor | None = None,
) -> None:
    """As ``attention`` with a ``key_bias``, for heads of 128 numbers.

    Many rows over many keys run on Hopper's warpgroup products; few rows over many keys split these
    over clusters.
    """
    into, all_kept = output_suffix("attention", out), kept and fresh is None
    if _by_warpgroups(launcher, q, k, v, out, out_scale, key_bias, segments, scale, all_kept):
        return
    rows, keys, heads = q.shape[0] // segments, k.shape[0] // segments, q.shape[1]
    strides = (q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    sizes = (rows, keys, heads // k.shape[1], *strides, scale)
    tensors, count = (q, k, v, out, out_scale, key_bias, fresh), 0 if fresh is None else len(fresh)
    kernel, tall = f"attention_heads_d128_biased_{into}", blocks(rows, 16)
    able = launcher.architecture // 10 in LARGE_CLUSTERS
    if able and keys >= _MANY_KEYS and heads * segments * tall <= launcher.multiprocessors:
        grid = (_SPLIT * tall, heads, segments)
        args = (*tensors, count if kept else 0, int(kept), *sizes)
        split, shared = f"{kernel}_cluster", _SPLIT_SHARED
        launcher.launch(split, grid, 128, args, shared_bytes=shared, cluster=_SPLIT)
        return
    args = (*tensors, count, int(all_kept), *sizes)
    launcher.launch(kernel, (tall, heads, segments), 128, args, shared_bytes=_BIASED_SHARED)


@dataclass(frozen=True)
class RowNorm:
    """A norm of whole rows of q that their attention has in front.

    Attributes:
        squares: [M, runs] float32, sums of squares of runs of each row, as its product left them.
        weight: [H d] float32, stored around 0.
        eps: added to the mean square.
    """

    squares: Tensor
    weight: Tensor
    eps: float


def takes_norms(q: Tensor, k: Tensor, out: Tensor) -> bool:
    """Whether :func:`normed_attention_launch` takes these, behind a product that leaves sums."""
    wide = {q.dtype, k.dtype, out.dtype} == {torch.bfloat16}
    return wide and q.shape[2] == q.stride(1) == k.stride(1) == 128


def normed_attention_launch(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    key_bias: Tensor,
    segments: int,
    scale: float,
    kept: bool,
    norm: RowNorm,
) -> None:
    """As :func:`biased_attention_launch`, of rows of q that are normalised on their way."""
    rows, keys, heads = q.shape[0] // segments, k.shape[0] // segments, q.shape[1]
    short = keys <= _SHORT_KEYS
    kernel = f"attention_heads_d128_normed_{'short_' if short else ''}bf16_hopper"
    strides = (q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    sizes = (norm.squares.shape[1], int(kept), rows, keys, heads // k.shape[1], *strides)
    args = (q, k, v, out, key_bias, norm.squares, norm.weight, *sizes, scale, norm.eps)
    shared = _SHORT_NORMED_SHARED if short else _NORMED_SHARED
    launcher.launch(kernel, (blocks(rows, 16), heads, segments), 128, args, shared_bytes=shared)


def takes_new_keys(launcher: Launcher, rows: int, clusters: int) -> bool:
    """Whether :func:`pooled_attention_launch` takes runs of so many rows, and so many clusters."""
    return rows <= 16 and clusters <= launcher.multiprocessors


def pooled_attention_launch(
    launcher: Launcher,
    qkv: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    rope: Tensor,
    fresh: Tensor,
    key_bias: Tensor,
    norm: RowNorm,
    k_norm: Tensor,
    segments: int,
    scale: float,
    kept: bool,
) -> None:
    """As :func:`biased_attention_launch`, of merged rows that are normalised and turned on their
    way; their keys and values go to rows ``fresh`` of ``k`` and ``v``.

    ``norm``: of q; ``squares`` are those of q and then of k, whose weight is ``k_norm``: gains, not
    around 0.
    """
    rows, keys, heads = qkv.shape[0] // segments, k.shape[0] // segments, k.shape[1]
    pointers = (qkv, k, v, out, key_bias, norm.squares, norm.weight, k_norm, rope, fresh)
    counts = (len(fresh), norm.squares.shape[1] // 2, int(kept), rows, keys)
    strides = (qkv.stride(0), k.stride(0), v.stride(0), out.stride(0), rope.stride(0))
    launcher.launch(
        "attention_heads_d128_pooled_bf16_hopper",
        (_SPLIT, heads, segments),
        128,
        (*pointers, *counts, *strides, scale, norm.eps),
        shared_bytes=_SPLIT_SHARED,
        cluster=_SPLIT,
    )


def _by_warpgroups(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    out_scale: Tensor | None,
    key_bias: Tensor,
    segments: int,
    scale: float,
    all_kept: bool,
) -> bool:
    """Launches kernels for Hopper, where they fit. Whether they do."""
    into = output_suffix("attention", out)
    (rows, heads, dim), (keys, kv_heads, _) = q.shape, k.shape
    rows, keys = rows // segments, keys // segments
    padded = blocks(keys, 64) * 64
    few = keys <= _KEPT_KEYS and all_kept
    shared = (_KEPT_SHARED if few else _BIASED_SM90_SHARED) + padded * 4 + padded // 64 * 4
    fits = heads == kv_heads and shared <= _MOST_SHARED
    able = launcher.architecture == 90 and fits and rows > 32
    if not able or (keys < _MANY_KEYS and not few):
        return False
    maps = tuple(
        TensorMap(each.data_ptr(), each.shape[0], heads * dim, each.stride(0), 64, 64)
        for each in (q, k, v)
    )
    args = (*maps, key_bias, out, out_scale, rows, keys, out.stride(0), scale)
    grid = (blocks(rows, 64), heads, segments)
    pairs = grid[0] % 2 == 0 and not few
    kind = "kept_" if few else "shared_" if pairs else ""
    kernel = f"attention_biased_d128_{kind}{into}_sm90"
    launcher.launch(kernel, grid, 384, args, shared_bytes=shared, cluster=2 if pairs else None)
    return True
