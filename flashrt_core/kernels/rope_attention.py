"""Merged q|k|v rows turn and attend to each other, as one op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .attention import attention_launch, attention_ref, segments_sm90
from .check import F32, ArgCheck
from .launch import Launcher, blocks, output_suffix, require_bf16
from .op import Lane, Op
from .qkv_rope_kv import check_qkv_outputs, qkv_rope_kv_launch, qkv_rope_kv_ref
from .quantised import given
from .skinny import LARGE_CLUSTERS


def rope_attention_ref(
    qkv: Tensor,
    rope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    segments: int = 1,
    causal: bool = False,
    out_scale: Tensor | None = None,
) -> None:
    """The two ops in turn; q, k and v are rounded to their format between them."""
    norms: dict[str, Any] = {"q_norm": q_norm, "k_norm": k_norm, "eps": eps}
    qkv_rope_kv_ref(qkv, rope, q, k, v, head_dim=head_dim, **norms)
    queries, keys, values = (part.unflatten(1, (-1, head_dim)) for part in (q, k, v))
    settings: dict[str, Any] = {"segments": segments, "causal": causal, "out_scale": out_scale}
    attention_ref(queries, keys, values, out, scale=scale, **settings)


#: 64 queries, 256 keys and 256 values in rows of 72 numbers, and angles of 256 rows.
_TURNED_SHARED = (64 + 256 + 256) * 72 * 2 + 256 * (64 + 4) * 4


def rope_attention_launch(
    launcher: Launcher,
    qkv: Tensor,
    rope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    segments: int = 1,
    causal: bool = False,
    out_scale: Tensor | None = None,
) -> None:
    """One kernel for views of 256 rows and for few causal rows, where it pays; else the two ops."""
    rows, width = q.shape
    heads = width // head_dim
    views = rows == 256 * segments and head_dim == 64 and k.shape[1] == width
    plain = k_norm is None and not causal
    if views and plain and _turned(launcher, qkv, rope, out, out_scale, heads, segments, scale):
        return
    if causal and segments == 1 and head_dim == 128 and q_norm is not None and k_norm is not None:
        sizes, gains = (heads, k.shape[1] // head_dim), (q_norm, k_norm)
        if _causal_turned(launcher, qkv, rope, gains, out, out_scale, sizes, scale, eps):
            return
    norms: dict[str, Any] = {"q_norm": q_norm, "k_norm": k_norm, "eps": eps}
    qkv_rope_kv_launch(launcher, qkv, rope, q, k, v, head_dim=head_dim, **norms)
    queries, keys, values = (part.unflatten(1, (-1, head_dim)) for part in (q, k, v))
    settings: dict[str, Any] = {"segments": segments, "causal": causal, "out_scale": out_scale}
    attention_launch(launcher, queries, keys, values, out, scale=scale, **settings)


def _turned(
    launcher: Launcher,
    qkv: Tensor,
    rope: Tensor,
    out: Tensor,
    out_scale: Tensor | None,
    heads: int,
    segments: int,
    scale: float,
) -> bool:
    """Launches a kernel that turns rows on their way, where that pays. Whether it does."""
    kernel = f"attention_segments_turned_d64_{output_suffix('rope_attention', out)}"
    q, k, v = qkv.unflatten(1, (3, heads, 64)).unbind(1)
    if launcher.architecture == 90:
        require_bf16("rope_attention", qkv=qkv)
        ends = (out, out_scale, segments, scale)
        segments_sm90(launcher, f"{kernel}_sm90", q, k, v, rope, *ends)
        return True
    # A block turns all keys of its run, and has no room for another beside it.
    at_once = 4 * heads * segments <= launcher.multiprocessors
    if at_once and launcher.architecture // 10 in LARGE_CLUSTERS:
        require_bf16("rope_attention", qkv=qkv)
        strides = (qkv.stride(0), rope.stride(0), out.stride(0))
        args = (q, k, v, rope, out, out_scale, *strides, scale)
        launcher.launch(kernel, (4, heads, segments), 128, args, shared_bytes=_TURNED_SHARED)
        return True
    return False


#: The most rows of the kernel for causal rows; its shared memory for 32 queries, their weights of
#: as many keys and what each tile of keys says of them, and that of a key and a value.
_CAUSAL_ROWS, _CAUSAL_SHARED, _CAUSAL_SHARED_ROW = 256, 29_696, 544


def _causal_turned(
    launcher: Launcher,
    qkv: Tensor,
    rope: Tensor,
    gains: tuple[Tensor, Tensor],
    out: Tensor,
    out_scale: Tensor | None,
    heads: tuple[int, int],
    scale: float,
    eps: float,
) -> bool:
    """Launches the kernel that makes causal rows' queries and keys itself. Whether it does."""
    rows, (q_heads, kv_heads), tall = qkv.shape[0], heads, blocks(qkv.shape[0], 16)
    # A block makes all keys that its rows see, and has no room for another beside it.
    at_once = tall * q_heads // 2 <= launcher.multiprocessors
    able = launcher.architecture // 10 in LARGE_CLUSTERS and rows <= _CAUSAL_ROWS
    if not (able and at_once and q_heads % (2 * kv_heads) == 0):
        return False
    require_bf16("rope_attention", qkv=qkv)
    strides = (qkv.stride(0), rope.stride(0), out.stride(0))
    launcher.launch(
        f"attention_causal_turned_d128_{output_suffix('rope_attention', out)}",
        (tall, q_heads // (2 * kv_heads), kv_heads),
        256,
        (qkv, rope, *gains, out, out_scale, rows, *strides, scale, eps),
        shared_bytes=_CAUSAL_SHARED + 16 * tall * _CAUSAL_SHARED_ROW,
    )
    return True


ROPE_ATTENTION = Op("rope_attention", rope_attention_ref, rope_attention_launch, low_bit=True)


def rope_attention(
    lane: Lane,
    qkv: Tensor,
    rope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    segments: int = 1,
    causal: bool = False,
    out_scale: Tensor | None = None,
) -> None:
    """``qkv_rope_kv``, then ``attention`` of what it makes.

    Args:
        lane: where the op goes.
        qkv: [M, Dq + 2 Dkv] float, heads side by side.
        rope: [M, head_dim] float32, cosines of a row's angles and then their sines.
        q: [M, Dq] float: turned queries may be left here, or not.
        k: [M, Dkv] float, likewise keys.
        v: [M, Dkv] float, likewise values.
        out: [M, Dq] float, apart from all others.
        head_dim: width of a head.
        scale: factor on the scores.
        q_norm: [head_dim] float32, gain of an RMS norm of the heads of q before they turn, or None.
        k_norm: [head_dim] float32, likewise of k; None where ``q_norm`` is.
        eps: added to the mean square of a head.
        segments: rows fall into this many equal runs; a row sees only those of its run.
        causal: a row sees no row behind it.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("rope_attention")
    merged = check_qkv_outputs(check, rope, q, k, v, head_dim)
    check.tensor("qkv", qkv, ("M", merged))
    check.quantised("out", out, ("M", "Dq"), "out_scale", out_scale, (1,))
    heads, shared = check.sizes["Dq"], check.sizes["Dkv"]
    check.require(heads % shared == 0, "heads of 'q'", expected=f"n*{shared}", got=heads)
    check.segments(segments, "rows of 'q'", "M")
    options: dict[str, Any] = given(out_scale=out_scale)
    options |= _check_norms(check, q_norm, k_norm, head_dim, eps)
    if causal:
        options["causal"] = True
    for name, value in (("qkv", qkv), ("q", q), ("k", k), ("v", v)):
        check.apart("out", out, name, value)
    settings: dict[str, Any] = {"head_dim": head_dim, "scale": scale, "segments": segments}
    lane.issue(ROPE_ATTENTION, qkv, rope, q, k, v, out, **settings, **options)


def _check_norms(
    check: ArgCheck, q_norm: Tensor | None, k_norm: Tensor | None, head_dim: int, eps: float
) -> dict[str, Any]:
    """Checks the gains; as the op's settings."""
    check.require(
        (q_norm is None) == (k_norm is None),
        "arguments 'q_norm' and 'k_norm'",
        expected="both or none",
        got=[gain is not None for gain in (q_norm, k_norm)],
    )
    if q_norm is None or k_norm is None:
        return {}
    check.tensor("q_norm", q_norm, (head_dim,), F32)
    check.tensor("k_norm", k_norm, (head_dim,), F32)
    return {"q_norm": q_norm, "k_norm": k_norm, "eps": eps}
