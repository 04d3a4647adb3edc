"""Softmax attention: full, segmented, or over a prefix of device-held length plus a suffix."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ContractError
from .attention_few_queries import few_queries
from .attention_heads import HEADS_SHARED, heads_kernel
from .biased_attention import biased_attention_launch
from .check import F32, I32, ArgCheck
from .launch import Launcher, TensorMap, blocks, output_suffix, require_bf16
from .op import Lane, Op
from .quantised import given, store


def attention_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    scale: float,
    segments: int = 1,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    causal: bool = False,
    kept: bool = False,
    fresh: Tensor | None = None,
    key_bias: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """Scores, softmax and weighted sum in float32, one rounding into ``out``."""
    M, heads, dim = q.shape
    N, kv_heads, _ = k.shape
    rows, keys, group = M // segments, N // segments, heads // kv_heads
    # [segment and kv head, rows and heads of the group, dim]: the query heads that share keys are
    # rows of one product.
    queries = q.float().view(segments, rows, kv_heads, group, dim).transpose(1, 2)
    queries = queries.reshape(segments * kv_heads, rows * group, dim)
    keys_t = k.float().view(segments, keys, kv_heads, dim).permute(0, 2, 3, 1).flatten(0, 1)
    values = v.float().view(segments, keys, kv_heads, dim).transpose(1, 2).flatten(0, 1)
    scores = torch.bmm(queries, keys_t).mul_(scale)
    if prefix_length is not None:
        hidden = torch.arange(prefix_rows, device=q.device) >= prefix_length
        scores[..., :prefix_rows].masked_fill_(hidden, float("-inf"))
        # A hidden row is never read, so whatever it holds (infinities too) cannot leak through 0*x.
        values = values.clone()
        values[:, :prefix_rows].masked_fill_(hidden[:, None], 0.0)
    if key_bias is not None:
        added = key_bias.view(segments, 1, keys).expand(-1, kv_heads, -1).reshape(-1, 1, keys)
        hidden = added == float("-inf")
        scores.add_(added).masked_fill_(hidden, float("-inf"))
        values = values.masked_fill(hidden.transpose(1, 2), 0.0)
    if causal:
        row = torch.arange(rows, device=q.device).repeat_interleave(group)
        ahead = torch.arange(keys, device=q.device) > row[:, None]
        scores.masked_fill_(ahead, float("-inf"))
    mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
    mixed = mixed.view(segments, kv_heads, rows, group, dim).transpose(1, 2)
    store(mixed.reshape(M, heads * dim), out, out_scale)


#: 64 queries, 256 keys and 256 values, in rows of 72 numbers.
_SEGMENT_SHARED = (64 + 256 + 256) * 72 * 2
#: Of the kernels for Hopper: 64 queries, 256 keys and 256 values in tiles of 64 columns and, of
#: wider heads, rows of 16 bytes, and what the two warpgroups tell each other.
_SEGMENT_SM90_SHARED = {64: 74_792, 72: 84_008}
#: 64 queries, and two stages of 64 keys and 64 values, in rows of 256 + 8 numbers.
_SHARED_KV_SHARED = (64 + 4 * 64) * 264 * 2
#: 64 queries and six frames of 64 keys or values, and their barriers.
_SHARED_KV_SM90_SHARED = 7 * 64 * 256 * 2 + 14 * 8


def _shared_kv_sm90(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    out_scale: Tensor | None,
    prefix_length: Tensor | None,
    scale: float,
) -> None:
    (rows, heads, dim), keys = q.shape, k.shape[0]
    maps = (
        TensorMap(q.data_ptr(), rows * heads, dim, dim, 64, 64),
        TensorMap(k.data_ptr(), keys, dim, k.stride(0), 64, 64),
        TensorMap(v.data_ptr(), keys, dim, v.stride(0), 64, 64),
    )
    launcher.launch(
        f"attention_shared_kv_d256_{output_suffix('attention', out)}_sm90",
        blocks(rows * heads, 64),
        384,
        (*maps, out, out_scale, prefix_length, rows * heads, keys, scale),
        shared_bytes=_SHARED_KV_SM90_SHARED,
    )


def attention_launch(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    scale: float,
    segments: int = 1,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    causal: bool = False,
    kept: bool = False,
    fresh: Tensor | None = None,
    key_bias: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """Tensor-core kernels for the widths that policies have, plain rows for any other."""
    require_bf16("attention", q=q, k=k, v=v)
    into, alike = output_suffix("attention", out), key_bias is None
    (rows, heads, dim), (keys, kv_heads, _) = q.shape, k.shape
    packed = q.stride() == k.stride() == v.stride() and q.stride(1) == dim
    runs = heads == kv_heads and packed and rows == keys == 256 * segments and not causal
    if dim in (64, 72) and runs and prefix_length is None and key_bias is None:
        _segments(launcher, q, k, v, out, out_scale, segments, scale)
        return
    if q.stride(1) != dim or (kv_heads > 1 and not k.stride(1) == v.stride(1) == dim):
        raise ContractError(
            "attention on device 'cuda'",
            expected="the heads of a row side by side",
            got=f"strides {q.stride()}, {k.stride()}, {v.stride()}",
        )
    shared = dim == 256 and kv_heads == 1 and segments == 1 and k.stride(0) == v.stride(0)
    if shared and not causal and alike:
        _shared_kv(launcher, q, k, v, out, out_scale, prefix_length, prefix_rows, scale)
        return
    sizes = (rows // segments, keys // segments, prefix_rows)
    strides = (q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    tensors = (q, k, v, out, out_scale, prefix_length)
    if key_bias is not None and dim == 128 and not causal and prefix_length is None:
        biased_attention_launch(launcher, *tensors[:5], key_bias, segments, scale, kept, fresh)
        return
    if dim in HEADS_SHARED and alike:
        kernel, shared_bytes = heads_kernel(dim, into, sizes[1])
        launcher.launch(
            kernel,
            (blocks(sizes[0], 16), heads, segments),
            128,
            (*tensors, *sizes, heads // kv_heads, int(causal), int(kept), *strides, scale),
            shared_bytes=shared_bytes,
        )
        return
    rest = (scale, segments, prefix_length, prefix_rows, causal, key_bias, out_scale)
    _plain_rows(launcher, q, k, v, out, *rest)


def _segments(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    out_scale: Tensor | None,
    segments: int,
    scale: float,
) -> None:
    """Runs of 256 rows."""
    _, heads, dim = q.shape
    kernel = f"attention_segments_d{dim}_{output_suffix('attention', out)}"
    grid, ends = (4, heads, segments), (out, out_scale)
    if launcher.architecture == 90:
        segments_sm90(launcher, f"{kernel}_sm90", q, k, v, None, *ends, segments, scale)
        return
    args = (q, k, v, *ends, q.stride(0), out.stride(0), scale)
    launcher.launch(kernel, grid, 128, args, shared_bytes=_SEGMENT_SHARED)


def segments_sm90(
    launcher: Launcher,
    kernel: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Tensor | None,
    out: Tensor,
    out_scale: Tensor | None,
    segments: int,
    scale: float,
) -> None:
    """Runs of 256 rows on Hopper; they turn first where ``rope`` is given."""
    count, heads, dim = q.shape
    maps = [
        TensorMap(part.data_ptr(), count, heads * dim, part.stride(0), rows, 64)
        for part, rows in ((q, 64), (k, 128), (v, 128))
    ]
    strides = (q.stride(0), 0 if rope is None else rope.stride(0), out.stride(0))
    args = (*maps, q, k, v, rope, out, out_scale, *strides, scale)
    shared, grid = _SEGMENT_SM90_SHARED[dim], (4, heads, segments)
    launcher.launch(kernel, grid, 256, args, shared_bytes=shared, cluster=2)


def _plain_rows(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    scale: float,
    segments: int,
    prefix_length: Tensor | None,
    prefix_rows: int,
    causal: bool,
    key_bias: Tensor | None,
    out_scale: Tensor | None,
) -> None:
    """A warp a row and head, of any width up to 768."""
    (rows, heads, dim), (keys, kv_heads, _) = q.shape, k.shape
    into = output_suffix("attention", out)
    if dim > 768:
        raise ContractError("attention on device 'cuda'", expected="heads of at most 768", got=dim)
    sizes = (rows // segments, keys // segments, prefix_rows)
    strides = (q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    plain = (rows, heads, kv_heads, dim, *sizes, int(causal), *strides, scale)
    args = (q, k, v, out, out_scale, prefix_length, *plain)
    grid = blocks(rows * heads, 4)
    if dim <= 256 and key_bias is None:
        launcher.launch(f"attention_rows_{into}", grid, 128, args)
        return
    kernel = f"attention_rows_biased_{'wide_' if dim > 256 else ''}{into}"
    launcher.launch(kernel, grid, 128, (*args, key_bias))


def _shared_kv(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    out_scale: Tensor | None,
    prefix_length: Tensor | None,
    prefix_rows: int,
    scale: float,
) -> None:
    """Heads of 256 numbers that share one head of keys and values."""
    (rows, heads, dim), keys, into = q.shape, k.shape[0], output_suffix("attention", out)
    contiguous = q.stride(0) == out.stride(0) == heads * dim
    few = rows <= 64 and contiguous and into == "bf16"
    if prefix_length is not None and prefix_rows < keys and few:
        few_queries(launcher, q, k, v, out, prefix_length, prefix_rows, scale)
        return
    whole = prefix_length is None or prefix_rows == keys
    if launcher.architecture == 90 and contiguous and whole:
        _shared_kv_sm90(launcher, q, k, v, out, out_scale, prefix_length, scale)
        return
    pointers = (q, k, v, out, out_scale, prefix_length)
    counts = (rows * heads, heads, keys, prefix_rows or keys)
    pitches = (q.stride(0), k.stride(0), out.stride(0))
    launcher.launch(
        f"attention_shared_kv_d256_{into}",
        blocks(rows * heads, 64),
        256,
        (*pointers, *counts, *pitches, scale),
        shared_bytes=_SHARED_KV_SHARED,
    )


ATTENTION = Op("attention", attention_ref, attention_launch, low_bit=True)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    segments: int,
    prefix_length: Tensor | None,
    prefix_rows: int,
    causal: bool,
    key_bias: Tensor | None,
    fresh: Tensor | None,
    out_scale: Tensor | None,
) -> None:
    check = ArgCheck("attention")
    check.tensor("q", q, ("M", "H", "d"))
    check.tensor("k", k, ("N", "Hkv", "d"))
    check.tensor("v", v, ("N", "Hkv", "d"))
    heads, kv_heads, dim = (check.sizes[letter] for letter in ("H", "Hkv", "d"))
    check.quantised("out", out, ("M", heads * dim), "out_scale", out_scale, (1,))
    check.require(heads % kv_heads == 0, "heads of 'q'", expected=f"n*{kv_heads}", got=heads)
    rows, keys = check.sizes["M"], check.sizes["N"]
    check.segments(segments, "rows of 'q' and 'k'", "M", "N")
    check.require(
        not causal or rows == keys,
        "rows of 'k'",
        expected=f"{rows} as of 'q', with causal",
        got=keys,
    )
    if prefix_length is not None:
        check.tensor("prefix_length", prefix_length, (1,), I32)
        check.require(
            segments == 1 and 0 < prefix_rows <= keys,
            "prefix_rows",
            expected=f"1..{keys} and one segment",
            got=f"{prefix_rows} and {segments} segments",
        )
    if key_bias is not None:
        check.tensor("key_bias", key_bias, ("N",), F32)
    if fresh is not None:
        check.tensor("fresh", fresh, ("F",), I32)
    for name, value in (("q", q), ("k", k), ("v", v)):
        check.apart("out", out, name, value)


def attention(
    lane: Lane,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    scale: float,
    segments: int = 1,
    prefix_length: Tensor | None = None,
    prefix_rows: int = 0,
    causal: bool = False,
    kept: bool = False,
    fresh: Tensor | None = None,
    key_bias: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """out[i, h] = softmax_j(scale * q[i, h] . k[j, h // G]) v[j, h // G], G = H / Hkv.

    Args:
        lane: where the op goes.
        q: [M, H, d] float.
        k: [N, Hkv, d] float; Hkv divides H (1: all query heads share one key head).
        v: [N, Hkv, d] float.
        out: [M, H d] float, apart from q, k and v.
        scale: factor on the scores.
        segments: rows and keys fall into this many equal runs; a row sees only the keys of its run.
        prefix_length: [1] int32, read when the op runs, at least 1 unless N > prefix_rows; keys
            j in [prefix_length, prefix_rows) are not read. None: every key counts.
        prefix_rows: rows kept for the prefix; keys from there on always count.
        causal: row i of a run sees no key behind i; needs as many keys as rows.
        kept: k, v and prefix_length are what an earlier stage left, and an op of this stage that
            holds the ones behind it back (``action_in``) is in front, so that a device may read
            them before the ops between have come to their end.
        fresh: [F] int32, with ``kept``: rows of k and v that are not, as an op of this stage writes
            them. The list itself is kept, and so is ``key_bias``.
        key_bias: [N] float32, added to the scores of each key, read when the op runs: the logarithm
            of how often a key counts, -inf for one that is not read. At least one of a run is.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    _check(q, k, v, out, segments, prefix_length, prefix_rows, causal, key_bias, fresh, out_scale)
    order = {name: True for name, is_so in (("causal", causal), ("kept", kept)) if is_so}
    lane.issue(
        ATTENTION,
        q,
        k,
        v,
        out,
        scale=scale,
        segments=segments,
        prefix_length=prefix_length,
        prefix_rows=prefix_rows,
        **order,
        **given(fresh=fresh, key_bias=key_bias, out_scale=out_scale),
    )
