"""attention: full, by segments, one key head for all, and over a prefix of device-held length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashrt_core.kernels.attention import attention
from flashrt_core.kernels.op import Lane

from .helpers import DTYPES, F32, assert_rounded_once, normal, run


def exact(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Head by head in float64; [M, H d]."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    mixed = []
    for head in range(heads):
        keys, values = k[:, head // group].double(), v[:, head // group].double()
        scores = scale * q[:, head].double() @ keys.t()
        weight = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
        mixed.append(weight / weight.sum(dim=1, keepdim=True) @ values)
    return torch.cat(mixed, dim=1)


def tensors(
    rows: int, keys: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q = normal(rows, heads, dim, seed=1, dtype=dtype)
    k, v = (normal(keys, kv_heads, dim, seed=seed, dtype=dtype) for seed in (2, 3))
    return q, k, v, torch.empty(rows, heads * dim, dtype=dtype)


# Expert (H rows over prefix and suffix), trunk, then odd sizes, grouped heads, a single row.
SHAPES = (
    (10, 570, 8, 1, 256),
    (50, 1018, 8, 1, 256),
    (96, 96, 8, 1, 256),
    (3, 5, 6, 2, 7),
    (4, 9, 3, 3, 5),
    (1, 1, 1, 1, 1),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_full(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> None:
    q, k, v, out = tensors(*shape, dtype)
    scale = shape[-1] ** -0.5
    run(lambda lane: attention(lane, q, k, v, out, scale=scale))
    assert_rounded_once(out, exact(q, k, v, scale))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("segments", "tokens", "heads", "dim"), [(3, 64, 16, 72), (2, 5, 3, 7)])
def test_segments_of_a_packed_projection(
    segments: int, tokens: int, heads: int, dim: int, dtype: torch.dtype
) -> None:
    rows = segments * tokens
    qkv = normal(rows, 3 * heads * dim, seed=4, dtype=dtype)
    out = torch.empty(rows, heads * dim, dtype=dtype)
    q, k, v = qkv.view(rows, 3, heads, dim).unbind(1)
    run(lambda lane: attention(lane, q, k, v, out, scale=0.3, segments=segments))
    for segment in range(segments):
        own = slice(segment * tokens, (segment + 1) * tokens)
        assert_rounded_once(out[own], exact(q[own], k[own], v[own], 0.3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("prefix", "suffix", "used"), [(560, 10, 533), (32, 10, 17), (8, 3, 1)])
def test_hidden_prefix_rows_do_not_matter(
    prefix: int, suffix: int, used: int, dtype: torch.dtype
) -> None:
    q, k, v, out = tensors(suffix, prefix + suffix, 8, 1, 32, dtype)
    length = torch.tensor([used], dtype=torch.int32)
    seen = torch.cat((torch.arange(used), torch.arange(prefix, prefix + suffix)))

    def issue(lane: Lane) -> None:
        attention(lane, q, k, v, out, scale=0.2, prefix_length=length, prefix_rows=prefix)

    run(issue)
    assert_rounded_once(out, exact(q, k[seen], v[seen], 0.2))
    clean = out.clone()
    for poison in (1e30, torch.inf, torch.nan):
        k[used:prefix], v[used:prefix] = poison, -poison
        run(issue)
        assert torch.equal(out, clean)
    k[used - 1] += 1.0  # while the last row in use does matter
    run(issue)
    assert not torch.equal(out, clean)


def test_length_is_read_when_the_op_runs() -> None:
    q, k, v, out = tensors(4, 12, 2, 1, 8, F32)
    length = torch.tensor([12], dtype=torch.int32)
    for used in (12, 5, 1, 12):
        length.fill_(used)
        run(
            lambda lane: attention(
                lane, q, k, v, out, scale=0.5, prefix_length=length, prefix_rows=12
            )
        )
        assert_rounded_once(out, exact(q, k[:used], v[:used], 0.5))


def test_large_scores_do_not_overflow() -> None:
    q, k, v, out = tensors(3, 6, 2, 1, 4, F32)
    run(lambda lane: attention(lane, q, k, v, out, scale=1e4))
    assert torch.isfinite(out).all()
    assert_rounded_once(out, exact(q, k, v, 1e4))


# Text stack (grouped heads), then odd ones; runs of rows that do not see each other.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim", "segments"),
    [(90, 16, 8, 128, 1), (7, 6, 2, 5, 1), (12, 2, 1, 8, 3), (1, 1, 1, 2, 1)],
)
def test_causal(
    rows: int, heads: int, kv_heads: int, dim: int, segments: int, dtype: torch.dtype
) -> None:
    q, k, v, out = tensors(rows, rows, heads, kv_heads, dim, dtype)
    run(lambda lane: attention(lane, q, k, v, out, scale=0.3, segments=segments, causal=True))
    run_rows = rows // segments
    for row in range(rows):
        seen = slice(row - row % run_rows, row + 1)
        assert_rounded_once(out[row : row + 1], exact(q[row : row + 1], k[seen], v[seen], 0.3))


def test_padding_behind_a_causal_prefix_reaches_no_row_in_use() -> None:
    q, k, v, out = tensors(9, 9, 4, 2, 8, F32)
    length = torch.tensor([6], dtype=torch.int32)

    def issue(lane: Lane) -> None:
        attention(lane, q, k, v, out, scale=0.3, prefix_length=length, prefix_rows=9, causal=True)

    run(issue)
    clean = out[:6].clone()
    for row in range(6):
        assert_rounded_once(
            out[row : row + 1], exact(q[row : row + 1], k[: row + 1], v[: row + 1], 0.3)
        )
    k[6:], v[6:] = torch.nan, torch.inf
    run(issue)
    assert torch.equal(out[:6], clean) and torch.isfinite(out).all()


# Heads of a tower, of an adapter, of a diffusion transformer over a context of device-held length.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "keys", "heads", "dim", "used"), [(41, 41, 32, 48, 41), (41, 32, 32, 48, 19)]
)
def test_few_queries_of_many_heads(
    rows: int, keys: int, heads: int, dim: int, used: int, dtype: torch.dtype
) -> None:
    q, k, v, out = tensors(rows, keys, heads, heads, dim, dtype)
    length = torch.tensor([used], dtype=torch.int32)
    mask = {} if used == keys else {"prefix_length": length, "prefix_rows": keys}
    run(lambda lane: attention(lane, q, k, v, out, scale=dim**-0.5, **mask))  # type: ignore[arg-type]
    assert_rounded_once(out, exact(q, k[:used], v[:used], dim**-0.5))
