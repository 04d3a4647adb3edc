"""Every form of the kernels of few rows against float32, at sizes of a few blocks.

How many multiprocessors a launcher is told of decides which of a form's kernels it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu, ada_rms_norm_geglu_ref
from flashrt_core.kernels.ada_rms_norm_qkv_rope_kv import (
    ada_rms_norm_qkv_rope_kv,
    ada_rms_norm_qkv_rope_kv_ref,
)
from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.forms import FORMS, Forms, find_forms
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.quantised import quantise_rows
from test.gpu import PLACE, error, run, runs_kernels

from .signatures import declared
from .test_cuda_ops import CHAINED, F32, empty, expected

pytestmark = runs_kernels

_EXPERT = ("lean", "warm", "by two", "wide")
#: Kernels that were launched.
_LAUNCHED: set[str] = set()


@contextmanager
def formed(device: Any, name: str, multiprocessors: int = 132) -> Iterator[None]:
    """The device in one form."""
    launcher = device.launcher
    before = launcher.forms, launcher.multiprocessors
    launcher.forms, launcher.multiprocessors = find_forms(name), multiprocessors
    try:
        yield
    finally:
        launcher.forms, launcher.multiprocessors = before


def noted(program: Any) -> None:
    _LAUNCHED.update(program.launches)


def weights(draw: Any, rows: int, depth: int, whole: bool) -> tuple[Tensor, dict[str, Any]]:
    """A weight in a format, and the scales it has."""
    weight = draw(rows, depth, scale=depth**-0.5)
    if not whole:
        return weight, {}
    values, scale = quantise_rows(weight, torch.int8)
    return values, {"weight_scale": scale}


def wide(weight: Tensor, scales: dict[str, Any]) -> Tensor:
    return weight if scales else weight.float()


@pytest.mark.parametrize("whole", [False, True], ids=["bf16", "i8"])
@pytest.mark.parametrize("form", _EXPERT)
@pytest.mark.parametrize("rows", [1, 10])
def test_products_of_the_expert(device: Any, draw: Any, form: str, whole: bool, rows: int) -> None:
    heads, dim = 1, 256
    x, mixed, hidden_rows = draw(rows, 1024), draw(rows, 2048), draw(rows, 4096)
    table = draw(3, 1024, dtype=F32, scale=0.3)
    rope = torch.cat([f(torch.rand(rows, 128, device=PLACE)) for f in (torch.cos, torch.sin)], 1)
    merged, of_merged = weights(draw, (heads + 4) * dim, 1024, whole)
    gated, of_gated = weights(draw, 512, 1024, whole)
    out, of_out = weights(draw, 64, 2048, whole)
    down, of_down = weights(draw, 64, 4096, whole)
    q, cache = empty(rows, 3 * dim), empty(rows, 2, dim)
    k, v = cache.unbind(1)
    made, streams = empty(rows, 256), [draw(rows, 64), draw(rows, 64)]
    gate = draw(64, dtype=F32)
    before = [stream.float() for stream in streams]

    def body(lane: Any) -> None:
        ada_rms_norm_qkv_rope_kv(
            lane, x, *table[:2], merged, rope, q, k, v, head_dim=dim, eps=1e-6, **of_merged
        )
        ada_rms_norm_geglu(lane, x, *table[:2], gated, made, eps=1e-6, **of_gated)
        linear_gated_residual(lane, mixed, out, gate, streams[0], **of_out)
        linear_gated_residual(lane, hidden_rows, down, gate, streams[1], **of_down)

    with formed(device, form):
        noted(run(device, body))
    wants = [expected((rows, 3 * dim)), *(expected((rows, dim)) for _ in range(2))]
    ada_rms_norm_qkv_rope_kv_ref(
        x.float(),
        *table[:2],
        wide(merged, of_merged),
        rope,
        *wants,
        head_dim=dim,
        eps=1e-6,
        **of_merged,
    )
    for found, want in zip((q, k, v), wants, strict=True):
        assert error(found, want) < CHAINED
    want = expected((rows, 256))
    ada_rms_norm_geglu_ref(x.float(), *table[:2], wide(gated, of_gated), want, eps=1e-6, **of_gated)
    assert error(made, want) < CHAINED
    ends = ((mixed, out, of_out), (hidden_rows, down, of_down))
    for (source, weight, scales), stream, want in zip(ends, streams, before, strict=True):
        linear_gated_residual_ref(source.float(), wide(weight, scales), gate, want, **scales)
        assert error(stream, want) < CHAINED


@pytest.mark.parametrize("prefix", [560, 900])
def test_queries_of_the_expert(device: Any, draw: Any, prefix: int) -> None:
    rows, heads, dim = 10, 8, 256
    q, cache = draw(rows, heads, dim), draw(prefix + rows, 2, 1, dim)
    k, v = cache.unbind(1)
    out, want = empty(rows, heads * dim), expected((rows, heads * dim))
    valid = torch.tensor([prefix - 3], dtype=torch.int32, device=PLACE)
    mask: dict[str, Any] = {"prefix_length": valid, "prefix_rows": prefix, "scale": dim**-0.5}
    with formed(device, "lean"):
        noted(run(device, lambda lane: attention(lane, q, k, v, out, **mask)))
    attention_ref(q.float(), k.float(), v.float(), want, **mask)
    assert error(out, want) < CHAINED


def test_kernels_of_all_forms_are_tried() -> None:
    """The tests above reach every one; they come first."""
    trials = {name for name in declared() if _is_trial(name)}
    plans = {
        plan.kernel for form in FORMS.values() for some in form.plans.values() for plan in some
    }
    assert trials == (plans | {k for form in FORMS.values() for k in form.kernels.values()})
    assert trials <= _LAUNCHED or not _LAUNCHED, trials - _LAUNCHED


def _is_trial(name: str) -> bool:
    parts = ("_wide_sm90", "_hopper")
    return any(part in name for part in parts)


def test_the_default_has_nothing_in_the_place_of_others() -> None:
    assert FORMS[""] == Forms()
