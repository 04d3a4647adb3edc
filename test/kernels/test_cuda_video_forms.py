"""Every form of LingBot-VA's kernels that are not products against float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, nan
from typing import Any

import pytest
import torch

from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.conv_frames import conv_frames, conv_frames_ref
from flashrt_core.kernels.forms import Forms
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.qkv_rope_kv import qkv_rope_kv, qkv_rope_kv_ref
from flashrt_core.kernels.video_forms import VIDEO_FORMS
from test.gpu import PLACE, error, run, runs_kernels

from .test_cuda_ops import CHAINED, F32, PROBABILITIES, ROUNDED, empty, expected, twice

pytestmark = runs_kernels

_HISTORY = ("rows", "kept", "kept rows", "kept alone")
#: Kernels that were launched.
_LAUNCHED: set[str] = set()


@contextmanager
def formed(device: Any, name: str) -> Iterator[None]:
    """The device in one form; without a name in none."""
    launcher = device.launcher
    before = launcher.forms
    launcher.forms = VIDEO_FORMS[name] if name else Forms()
    try:
        yield
    finally:
        launcher.forms = before


def noted(program: Any) -> None:
    _LAUNCHED.update(program.launches)


@pytest.mark.parametrize(
    ("form", "rows", "keys", "runs"),
    [
        *((f"history {kind}", *size) for kind in _HISTORY for size in ((16, 600, 1), (9, 259, 2))),
        *(
            (f"video {kind}", *size)
            for kind in ("ahead", "split", "split ahead")
            for size in ((128, 1100, 2), (100, 259, 1))
        ),
        *(("prompt kept", *size) for size in ((16, 64, 1), (9, 40, 2), (128, 64, 2), (40, 65, 1))),
    ],
)
@pytest.mark.parametrize("hidden", [0.0, 0.6])
def test_keys_of_an_earlier_stage(
    device: Any, draw: Any, form: str, rows: int, keys: int, runs: int, hidden: float
) -> None:
    q, heads = draw(runs * rows, 2, 128), 2
    k, v = (draw(runs * keys, heads, 128) for _ in range(2))
    bias = draw(runs * keys, dtype=F32)
    bias[torch.rand(len(bias), device=PLACE) < hidden] = -inf
    bias[keys // 2 :: keys] = 6.0
    none = bias == -inf
    k[none], v[none] = nan, inf
    prompt = form.startswith("prompt")
    some = torch.randperm(keys, device=PLACE)[:rows].to(torch.int32)
    fresh = None if prompt else torch.cat([some + run * keys for run in range(runs)])
    out, want = empty(runs * rows, heads * 128), expected((runs * rows, heads * 128))
    options: dict[str, Any] = {"scale": 128**-0.5, "segments": runs, "key_bias": bias}
    with formed(device, form):

        def body(lane: Any) -> None:
            attention(lane, q, k, v, out, kept=True, fresh=fresh, **options)

        twice(device, out, body)
        noted(run(device, body))
    wide = [each.float().nan_to_num(0.0, 0.0, 0.0) for each in (q, k, v)]
    attention_ref(*wide, want, **options)
    assert error(out, want) < PROBABILITIES


@pytest.mark.parametrize("heads", [24, 8])
def test_rows_of_an_earlier_stage(device: Any, draw: Any, heads: int) -> None:
    rows, dim, pool = 5, 128, 9
    width = heads * dim
    qkv, rope = draw(rows, 3 * width), draw(rows, dim, dtype=F32)
    places = torch.randperm(pool, device=PLACE)[:rows].to(torch.int32)
    norms = {f"{name}_norm": draw(width, dtype=F32) for name in "qk"}
    options: dict[str, Any] = {"head_dim": dim, "rows": places, "eps": 1e-6, **norms}
    q, caches = empty(rows, width), [draw(pool, width) for _ in range(2)]
    want, wanted = expected((rows, width)), [cache.float() for cache in caches]
    with formed(device, "norms kept"):
        noted(
            run(device, lambda lane: qkv_rope_kv(lane, qkv, rope, q, *caches, **options, kept=True))
        )
    qkv_rope_kv_ref(qkv.float(), rope, want, *wanted, **options)
    assert error(q, want) < ROUNDED
    for cache, right in zip(caches, wanted, strict=True):
        assert error(cache, right) < ROUNDED


@pytest.mark.parametrize("form", ["", "norms joined"])
def test_additions_and_their_norm(device: Any, draw: Any, form: str) -> None:
    rows, width, depth = 70, 1032, 64
    x, weight, bias = draw(rows, depth), draw(width, depth, scale=depth**-0.5), draw(width)
    gate, gain, shift = (draw(width, dtype=F32) for _ in range(3))
    out, normal = draw(rows, width), empty(rows, width)
    want, wanted = out.float(), expected((rows, width))
    ends: dict[str, Any] = {"norm_weight": gain, "norm_bias": shift, "eps": 1e-6}
    args = (x, weight, gate)
    with formed(device, form):
        some = {"bias": bias, "normal": normal, **ends}
        noted(run(device, lambda lane: linear_gated_residual(lane, *args, out, **some)))
    wide = [each.float() for each in args]
    linear_gated_residual_ref(*wide, want, bias=bias.float(), normal=wanted, **ends)
    assert error(out, want) < CHAINED and error(normal, wanted) < CHAINED


@pytest.mark.parametrize(
    ("videos", "frames", "past", "side", "channels", "out_channels", "kernel", "strides"),
    [
        (2, 4, 2, 8, 160, 160, (3, 3), (1, 1)),
        (2, 4, 0, 8, 32, 32, (1, 3), (1, 2)),
        (2, 4, 1, 4, 32, 24, (3, 1), (2, 1)),
        (1, 2, 2, 6, 8, 176, (3, 3), (1, 1)),
    ],
)
def test_frames_are_convolved(
    device: Any,
    draw: Any,
    videos: int,
    frames: int,
    past: int,
    side: int,
    channels: int,
    out_channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
) -> None:
    kt, k = kernel
    x = draw(videos, frames, side, side + 2, channels)
    before = draw(videos, past, side, side + 2, channels) if past else None
    weight = draw(out_channels, kt, k, k, channels, scale=(kt * k * k * channels) ** -0.5)
    bias, made = draw(out_channels, dtype=F32), (frames + past - kt) // strides[0] + 1
    sizes = (videos, made, side // strides[1], (side + 2) // strides[1], out_channels)
    out, want = draw(*sizes), expected(sizes)
    wide_past = None if before is None else before.float()
    wide_x = (x.float(), wide_past, weight.float(), bias, want)
    conv_frames_ref(*wide_x, strides=strides, residual=out.float())
    args = (x, before, weight, bias, out)
    with formed(device, "conv wide"):
        noted(run(device, lambda lane: conv_frames(lane, *args, strides=strides, residual=out)))
    assert error(out, want) < ROUNDED


def test_kernels_of_all_forms_are_tried() -> None:
    """The tests above reach every one; they come first."""
    kernels = {kernel for form in VIDEO_FORMS.values() for kernel in form.kernels.values()}
    assert kernels <= _LAUNCHED or not _LAUNCHED, kernels - _LAUNCHED
