"""Rows that turn and attend as one op: what the two ops do, and how it is launched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrt_core.errors import ContractError
from flashrt_core.kernels.attention import attention
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv
from flashrt_core.kernels.rope_attention import rope_attention
from test.kernels.signatures import CheckingLauncher, Lane

from .helpers import DTYPES, normal, run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
def test_both_ops_in_one(dtype: torch.dtype, normed: bool) -> None:
    qkv, rope = normal(6, 8 * 16, seed=1, dtype=dtype), normal(6, 16, seed=2)
    norms: dict[str, Any] = {}
    if normed:
        norms = {"q_norm": normal(16, seed=3), "k_norm": normal(16, seed=4), "eps": 1e-6}
    widths = (64, 32, 32)
    apart, parts = ([torch.empty(6, width, dtype=dtype) for width in widths] for _ in range(2))
    want, out = torch.empty(6, 64, dtype=dtype), torch.empty(6, 64, dtype=dtype)
    mask: dict[str, Any] = {"causal": True} if normed else {"segments": 2}
    run(lambda lane: qkv_rope_kv(lane, qkv, rope, *apart, head_dim=16, **norms))
    q, k, v = (part.unflatten(1, (-1, 16)) for part in apart)
    run(lambda lane: attention(lane, q, k, v, want, scale=0.25, **mask))
    settings: dict[str, Any] = {"head_dim": 16, "scale": 0.25, **norms, **mask}
    run(lambda lane: rope_attention(lane, qkv, rope, *parts, out, **settings))
    assert torch.equal(out, want)


@pytest.mark.parametrize(
    ("architecture", "views", "kernels"),
    [
        (90, 1, ["attention_segments_turned_d64_bf16_sm90"]),
        (90, 3, ["attention_segments_turned_d64_bf16_sm90"]),
        (100, 2, ["attention_segments_turned_d64_bf16"]),
        (100, 3, ["qkv_rope_kv_bf16", "attention_segments_d64_bf16"]),
        (120, 1, ["qkv_rope_kv_bf16", "attention_segments_d64_bf16"]),
    ],
)
def test_views_are_one_kernel_while_they_run_at_once(
    architecture: int, views: int, kernels: list[str]
) -> None:
    launcher, rows = CheckingLauncher(architecture), 256 * views
    q, k, v, out = torch.empty(4, rows, 1024).bfloat16().unbind()
    qkv, rope = torch.empty(rows, 3072).bfloat16(), torch.empty(rows, 64)
    settings: dict[str, Any] = {"head_dim": 64, "scale": 0.125, "segments": views}
    rope_attention(Lane(launcher), qkv, rope, q, k, v, out, **settings)
    assert [launch.kernel for launch in launcher.launches] == kernels


@pytest.mark.parametrize(
    ("architecture", "rows", "heads", "together"),
    [
        (90, 96, 16, True),
        (90, 256, 16, True),
        (90, 272, 16, False),
        (90, 224, 32, False),  # more blocks than run at once
        (90, 96, 24, False),  # heads of queries that share keys are no pairs
        (110, 96, 16, True),
        (120, 96, 16, False),
    ],
)
def test_few_causal_rows_are_one_kernel(
    architecture: int, rows: int, heads: int, together: bool
) -> None:
    launcher = CheckingLauncher(architecture)
    qkv, rope = torch.empty(rows, (heads + 16) * 128).bfloat16(), torch.empty(rows, 128)
    q, out = torch.empty(2, rows, heads * 128).bfloat16().unbind()
    k, v = torch.empty(2, rows, 1024).bfloat16().unbind()
    settings: dict[str, Any] = {"head_dim": 128, "scale": 0.1, "causal": True, "eps": 1e-6}
    norms = {name: torch.empty(128) for name in ("q_norm", "k_norm")}
    rope_attention(Lane(launcher), qkv, rope, q, k, v, out, **settings, **norms)
    kernels = ["qkv_norm_rope_kv_bf16", "attention_heads_d128_bf16"]
    if together:
        kernels = ["attention_causal_turned_d128_bf16"]
    assert [launch.kernel for launch in launcher.launches] == kernels


def test_what_does_not_fit_is_refused() -> None:
    qkv, rope, out = torch.empty(6, 128), torch.empty(6, 16), torch.empty(6, 64)
    parts = [torch.empty(6, width) for width in (64, 32, 32)]
    settings: dict[str, Any] = {"head_dim": 16, "scale": 1.0}
    lane = Lane(CheckingLauncher())
    for others, told in (
        ({"segments": 4}, "rows of 'q': expected a multiple of segments 4, got 6"),
        ({"k_norm": torch.empty(16)}, "'q_norm' and 'k_norm': expected both or none"),
    ):
        with pytest.raises(ContractError, match=told):
            rope_attention(lane, qkv, rope, *parts, out, **(settings | others))
