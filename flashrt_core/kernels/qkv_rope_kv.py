"""Splits merged q|k|v rows, turns q and k by their rotary angles, writes k and v to the cache."""

from __future__ import annotations

from torch import Tensor

from .check import F32, ArgCheck
from .maths import split_qkv_rope
from .op import Lane, Op


def qkv_rope_kv_ref(
    qkv: Tensor, rope: Tensor, q: Tensor | None, k: Tensor, v: Tensor, *, head_dim: int
) -> None:
    """Turned in float32, one rounding into each output."""
    split_qkv_rope(qkv.float(), rope, q, k, v, head_dim)


QKV_ROPE_KV = Op("qkv_rope_kv", qkv_rope_kv_ref)


def check_qkv_outputs(
    check: ArgCheck, rope: Tensor, q: Tensor | None, k: Tensor, v: Tensor, head_dim: int
) -> int:
    """Checks what every op that ends in a rotary split writes; returns the merged width."""
    check.tensor("rope", rope, ("M", head_dim), F32)
    check.tensor("k", k, ("M", "Dkv"))
    check.tensor("v", v, ("M", "Dkv"))
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
) -> None:
    """q = rope(qkv[:, :Dq]), k = rope(the next Dkv columns), v = the last Dkv columns.

    Args:
        lane: where the op goes.
        qkv: [M, Dq + 2 Dkv] float, heads side by side.
        rope: [M, head_dim] float32 rows of ``rope_rows``; half-split pairing.
        q: [M, Dq] float, or None where the rows hold k|v only.
        k: [M, Dkv] float, rows of the key cache.
        v: [M, Dkv] float, rows of the value cache.
        head_dim: width of a head.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("qkv_rope_kv")
    width = check_qkv_outputs(check, rope, q, k, v, head_dim)
    check.tensor("qkv", qkv, ("M", width))
    lane.issue(QKV_ROPE_KV, qkv, rope, q, k, v, head_dim=head_dim)
