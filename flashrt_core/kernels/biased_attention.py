"""Kernels of attention whose keys count as a bias says, for heads of 128 numbers; no op.

Sources: csrc/ops/attention_biased_sm90.cu, csrc/ops/attention_heads.cu.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .launch import Launcher, TensorMap, blocks, output_suffix
from .skinny import LARGE_CLUSTERS

#: Shared memory of the kernels of keys that count differently: of a block, of one of a cluster, and
#: in front of the biases of the one for Hopper, which has 4 bytes a key and as many a block of 64.
_BIASED_SHARED, _SPLIT_SHARED, _BIASED_SM90_SHARED = 70_144, 113_552, 147_600
_MOST_SHARED = 232_448
#: Keys that the form of the latter for few of them takes, and what is in front of its biases.
_SHORT_KEYS, _SHORT_SHARED = 128, 82_000
#: The latter in front of the biases of the form that splits keys over two blocks of 128 rows.
_HALVES_SHARED = 199_696
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
    into, forms = output_suffix("attention", out), launcher.forms.kernels
    if _by_warpgroups(launcher, q, k, v, out, out_scale, key_bias, segments, scale, kept, fresh):
        return
    rows, keys, heads = q.shape[0] // segments, k.shape[0] // segments, q.shape[1]
    strides = (q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    sizes = (rows, keys, heads // k.shape[1], *strides, scale)
    tensors = (q, k, v, out, out_scale, key_bias)
    every: tuple[Any, ...] = (*tensors, *sizes)
    kernel, tall = f"attention_heads_d128_biased_{into}", blocks(rows, 16)
    able = launcher.architecture // 10 in LARGE_CLUSTERS
    if able and keys >= _MANY_KEYS and heads * segments * tall <= launcher.multiprocessors:
        grid = (_SPLIT * tall, heads, segments)
        split = f"{kernel}_cluster"
        if split in forms and (fresh is not None or "kept" not in forms[split]):
            split, count = forms[split], 0 if fresh is None else len(fresh)
            every = (*tensors, fresh, count, *sizes)
        launcher.launch(split, grid, 128, every, shared_bytes=_SPLIT_SHARED, cluster=_SPLIT)
        return
    if kernel in forms and kept and fresh is None:
        kernel = forms[kernel]
    launcher.launch(kernel, (tall, heads, segments), 128, every, shared_bytes=_BIASED_SHARED)


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
    kept: bool,
    fresh: Tensor | None,
) -> bool:
    """Launches kernels for Hopper, where they fit. Whether they do."""
    into, forms = output_suffix("attention", out), launcher.forms.kernels
    (rows, heads, dim), (keys, kv_heads, _) = q.shape, k.shape
    rows, keys = rows // segments, keys // segments
    padded = blocks(keys, 64) * 64
    kernel = f"attention_biased_d128_{into}_sm90"
    short = kernel in forms and keys <= _SHORT_KEYS and kept and fresh is None
    shared = (_SHORT_SHARED if short else _BIASED_SM90_SHARED) + padded * 4 + padded // 64 * 4
    fits = heads == kv_heads and shared <= _MOST_SHARED
    able = launcher.architecture == 90 and fits and rows > 32
    if not able or (keys < _MANY_KEYS and not short):
        return False
    maps = tuple(
        TensorMap(each.data_ptr(), each.shape[0], heads * dim, each.stride(0), 64, 64)
        for each in (q, k, v)
    )
    args: tuple[Any, ...] = (*maps, key_bias, out, out_scale, rows, keys, out.stride(0), scale)
    grid = (blocks(rows, 64), heads, segments)
    pairs = grid[0] % 2 == 0 and not short
    if pairs:
        kernel = f"attention_biased_d128_shared_{into}_sm90"
        if kernel in forms:
            args = (*args, k, v, k.stride(0), v.stride(0))
    if short or pairs:
        kernel = forms.get(kernel, kernel)
    if "_split_" in kernel:
        shared += _HALVES_SHARED - _BIASED_SM90_SHARED
    launcher.launch(kernel, grid, 384, args, shared_bytes=shared, cluster=2 if pairs else None)
    return True
