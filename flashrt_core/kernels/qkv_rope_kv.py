"""Splits merged q|k|v rows, turns q and k by their rotary angles, writes k and v to the cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import ContractError
from .check import F32, I32, ArgCheck
from .launch import Launcher, blocks, require_bf16
from .low_bit import no_kernel
from .maths import split_qkv_rope
from .op import Lane, Op
from .quantised import given


def qkv_rope_kv_ref(
    qkv: Tensor,
    rope: Tensor,
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    *,
    head_dim: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    rows: Tensor | None = None,
    kept: bool = False,
) -> None:
    """Normalised and turned in float32, one rounding into each output."""
    split_qkv_rope(qkv.float(), rope, q, k, v, head_dim, q_norm, k_norm, eps, rows)


def qkv_rope_kv_launch(
    launcher: Launcher,
    qkv: Tensor,
    rope: Tensor,
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    *,
    head_dim: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    rows: Tensor | None = None,
    kept: bool = False,
) -> None:
    """One block a row, eight angles a thread; with norms of heads a warp a head."""
    whole = k_norm is not None and len(k_norm) != head_dim
    require_bf16("qkv_rope_kv", qkv=qkv, q=q, k=k, v=v)
    if head_dim % 16:
        raise ContractError(
            "qkv_rope_kv: head_dim on device 'cuda'", expected="a multiple of 16", got=head_dim
        )
    q_heads, kv_heads = (0 if q is None else q.shape[1] // head_dim), k.shape[1] // head_dim
    items = (q_heads + 3 * kv_heads) * head_dim // 16
    args = (qkv, rope, q, k, v, q_heads, kv_heads, head_dim, qkv.stride(0), rope.stride(0))
    strides = (0 if q is None else q.stride(0), k.stride(0), v.stride(0))
    if rows is not None or whole:
        _whole_rows(launcher, args, strides, q_norm, k_norm, rows, eps, kept)
        return
    if k_norm is not None:
        grid = (blocks(q_heads + 2 * kv_heads, 8), qkv.shape[0])
        normed = (*args[:2], q_norm, k_norm, *args[2:], *strides, eps)
        launcher.launch("qkv_norm_rope_kv_bf16", grid, 256, normed)
        return
    launcher.launch(
        "qkv_rope_kv_bf16", qkv.shape[0], min(1024, blocks(items, 32) * 32), (*args, *strides)
    )


def _whole_rows(
    launcher: Launcher,
    args: tuple[Any, ...],
    strides: tuple[int, ...],
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    rows: Tensor | None,
    eps: float,
    kept: bool,
) -> None:
    """One block holds a row of q and k; norms of heads are other kernels'."""
    qkv, rope, *outputs, q_heads, kv_heads, head_dim = args[:8]
    items = (q_heads + kv_heads) * head_dim // 16
    gains = ((q_heads, q_norm), (kv_heads, k_norm))
    fits = all(gain is None or len(gain) == heads * head_dim for heads, gain in gains)
    if items > 1024 or not fits:
        raise no_kernel(
            "qkv_rope_kv",
            expected="at most 16384 columns of q and k, and norms of whole rows or none",
            got=[16 * items, *(None if gain is None else len(gain) for gain in (q_norm, k_norm))],
        )
    sizes = (q_heads, kv_heads, head_dim, *args[8:], *strides, eps)
    every = (qkv, rope, q_norm, k_norm, rows, *outputs, *sizes)
    threads, kernel = blocks(items, 32) * 32, "qkv_row_norm_rope_kv_bf16"
    whole_warps = q_heads * head_dim % 512 == 0 and threads == items <= 512
    if kept and whole_warps and q_norm is not None and k_norm is not None:
        kernel = "qkv_row_norm_rope_kv_kept_bf16"
    launcher.launch(kernel, qkv.shape[0], threads, every)


QKV_ROPE_KV = Op("qkv_rope_kv", qkv_rope_kv_ref, qkv_rope_kv_launch)


def check_qkv_outputs(
    check: ArgCheck,
    rope: Tensor,
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    head_dim: int,
    *,
    cache_rows: str = "M",
) -> int:
    """Checks what every op that ends in a rotary split writes; returns the merged width.

    ``cache_rows``: the letter of how many rows k and v have.
    """
    check.tensor("rope", rope, ("M", head_dim), F32)
    check.tensor("k", k, (cache_rows, "Dkv"))
    check.tensor("v", v, (cache_rows, "Dkv"))
    if q is not None:
        check.tensor("q", q, ("M", "Dq"))
    check.require(head_dim % 2 == 0, "head_dim", expected="an even number", got=head_dim)
    for name in ("Dkv", "Dq"):
        width = check.sizes.get(name, 0)
        check.require(
            width % head_dim == 0, name, expected=f"a multiple of head_dim {head_dim}", got=width
        )
    return check.sizes.get("Dq", 0) + 2 * check.sizes["Dkv"]


def qkv_rope_kv(
    lane: Lane,
    qkv: Tensor,
    rope: Tensor,
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    *,
    head_dim: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    rows: Tensor | None = None,
    kept: bool = False,
) -> None:
    """q = rope(qkv[:, :Dq]), k = rope(the next Dkv columns), v = the last Dkv columns.

    With gains, each head of q and k is h / sqrt(mean(h^2) + eps) * gain before it turns; with gains
    as wide as q and k, all heads of a row at once.

    Args:
        lane: where the op goes.
        qkv: [M, Dq + 2 Dkv] float, heads side by side.
        rope: [M, head_dim] float32, cosines of a row's angles and then their sines, as of
            ``rope_rows``; half-split pairing.
        q: [M, Dq] float, or None where the rows hold k|v only.
        k: [M, Dkv] float, rows of the key cache; [P, Dkv] with ``rows``.
        v: as ``k``, of the value cache.
        head_dim: width of a head.
        q_norm: [head_dim] float32, gain of the norm of a head of q, or [Dq], of all; there where
            ``k_norm`` and ``q`` are. None: nothing is normalised.
        k_norm: [head_dim] or [Dkv] float32, likewise of k.
        eps: added to the mean square of a head, or of a row.
        rows: [M] int32, read when the op runs: the rows of the caches that are written, all
            different. None: the first M.
        kept: ``rope`` and ``rows`` may be read as early as what is ``kept`` of ``attention``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check, pool = ArgCheck("qkv_rope_kv"), "M" if rows is None else "P"
    width = check_qkv_outputs(check, rope, q, k, v, head_dim, cache_rows=pool)
    check.tensor("qkv", qkv, ("M", width))
    if rows is not None:
        check.tensor("rows", rows, ("M",), I32)
    check.require(
        (q_norm is None) == (k_norm is None or q is None),
        "arguments 'q_norm' and 'k_norm'",
        expected="both or none" if q is not None else "no 'q_norm' without 'q'",
        got=[gain is not None for gain in (q_norm, k_norm)],
    )
    norms: dict[str, Any] = {}
    if k_norm is not None:
        whole, norms = k_norm.shape != (head_dim,), {"eps": eps, "k_norm": k_norm}
        check.tensor("k_norm", k_norm, ("Dkv",) if whole else (head_dim,), F32)
        if q_norm is not None:
            norms["q_norm"] = q_norm
            check.tensor("q_norm", q_norm, ("Dq",) if whole else (head_dim,), F32)
    norms |= {**given(rows=rows), **({"kept": True} if kept else {})}
    lane.issue(QKV_ROPE_KV, qkv, rope, q, k, v, head_dim=head_dim, **norms)
