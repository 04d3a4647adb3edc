"""CUDA kernels of a streaming video encoder against their float32 references, also at odd shapes.

As in test_cuda_ops.py: inputs are bf16, the reference gets the same numbers in float32, outputs are
NaN before a kernel runs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrt_core.errors import ContractError
from flashrt_core.kernels.conv_frames import conv_frames, conv_frames_ref
from flashrt_core.kernels.copy_rows import copy_rows
from flashrt_core.kernels.frame_patches import frame_patches, frame_patches_ref
from flashrt_core.kernels.mean_frames import mean_frames, mean_frames_ref
from flashrt_core.kernels.rms_norm import rms_norm, rms_norm_ref
from flashrt_core.policies import find_policy
from flashrt_core.policies.lingbot_va.config import TIME
from flashrt_core.policies.lingbot_va.encoder_layout import convs, groups
from test.gpu import EMULATED, PLACE, error, run, runs_kernels

from .test_cuda_ops import F32, FLOAT32, ROUNDED, empty, expected

pytestmark = runs_kernels

BF16 = torch.bfloat16
#: What tensor cores may lose of a sum for each term: they add 16 products at a time and cut off
#: what a float32 has no room for; the reference may be made by them too.
CUT_OFF = 2.0**-23 / 16


@pytest.mark.parametrize(
    ("rows", "width", "pitch"), [(96, 12, 12), (2, 24_576, 32_768), (1, 8200, 8200), (6, 8, 8)]
)
@pytest.mark.parametrize("source", [F32, BF16])
def test_pictures_are_copied(
    device: Any, draw: Any, rows: int, width: int, pitch: int, source: torch.dtype
) -> None:
    src, out = draw(rows, pitch, dtype=source)[:, :width], empty(rows, width)
    run(device, lambda lane: copy_rows(lane, src, out))
    assert torch.equal(out, src.to(BF16))


@pytest.mark.parametrize(("rows", "width"), [(777, 160), (9, 8), (64, 640), (5, 1024), (2, 328)])
def test_activated_norms_of_many_rows(device: Any, draw: Any, rows: int, width: int) -> None:
    x, gain = draw(rows, width), draw(width, dtype=F32, scale=0.3)
    x[0] = 0.0
    out, want = empty(rows, width), expected((rows, width))
    run(device, lambda lane: rms_norm(lane, x, gain, out, eps=1e-24, activation="silu"))
    rms_norm_ref(x.float(), gain, want, eps=1e-24, activation="silu")
    assert error(out, want) < ROUNDED


@pytest.mark.parametrize("into", [BF16, F32])
@pytest.mark.parametrize(
    ("videos", "frames", "past", "side", "channels", "out_channels", "kernel", "strides"),
    [
        (2, 4, 2, 8, 160, 160, (3, 3), (1, 1)),
        (1, 1, 2, 16, 12, 160, (3, 3), (1, 1)),
        (2, 4, 0, 8, 32, 32, (1, 3), (1, 2)),
        (2, 4, 1, 4, 32, 24, (3, 1), (2, 1)),
        (1, 2, 2, 6, 8, 176, (3, 3), (1, 1)),
        (1, 4, 2, 8, 640, 48, (3, 3), (1, 1)),
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
    into: torch.dtype,
) -> None:
    kt, k = kernel
    x = draw(videos, frames, side, side + 2, channels)
    before = draw(videos, past, side, side + 2, channels) if past else None
    depth = kt * k * k * channels
    weight = draw(out_channels, kt, k, k, channels, scale=depth**-0.5)
    bias = draw(out_channels, dtype=F32)
    made = (frames + past - kt) // strides[0] + 1
    sizes = (videos, made, side // strides[1], (side + 2) // strides[1], out_channels)
    out, want = empty(*sizes, dtype=into), expected(sizes)
    residual = draw(*sizes) if into is BF16 else None
    wide = [None if each is None else each.float() for each in (x, before, weight, residual)]
    conv_frames_ref(*wide[:3], bias, want, strides=strides, residual=wide[3])  # type: ignore[arg-type]
    if residual is not None:
        out.copy_(residual)
        residual = out
    args = (x, before, weight, bias, out)
    run(device, lambda lane: conv_frames(lane, *args, strides=strides, residual=residual))
    assert error(out, want) < (ROUNDED if into is BF16 else max(FLOAT32, depth * CUT_OFF))


def true_sizes() -> dict[str, tuple[Any, ...]]:
    """By name, of each kind of convolution: frames and sides of its pictures with two cameras, how
    many frames it keeps, its weight and its strides.
    """
    config = find_policy("lingbot_va").config("base")
    group, made = groups(config, 2)[0], {}
    for conv in convs(config):
        shape, later = conv.shape, 2 if conv.name.endswith("time") else 1
        frames = TIME * config.frames >> max(0, conv.halves - later)
        side = group.height >> conv.halves
        strides = (2 if shape[1:3] == (3, 1) else 1, 2 if shape[1] == 1 else 1)
        made[f"{side} {shape}"] = (frames, side, conv.keeps, shape, strides)
    return made


@pytest.mark.parametrize("name", true_sizes())
def test_true_frames_are_convolved(device: Any, draw: Any, name: str) -> None:
    """Where kernels are emulated, of few pictures and few of the channels that come out."""
    frames, side, past, (out_channels, kt, k, _, channels), strides = true_sizes()[name]
    if EMULATED:
        frames, side, out_channels = 2, min(side, 8), min(out_channels, 168)
    x = draw(2, frames, side, side, channels)
    before = draw(2, past, side, side, channels) if past else None
    weight = draw(out_channels, kt, k, k, channels, scale=(kt * k * k * channels) ** -0.5)
    bias, made = draw(out_channels, dtype=F32), (frames + past - kt) // strides[0] + 1
    sizes = (2, made, side // strides[1], side // strides[1], out_channels)
    out, want = empty(*sizes), expected(sizes)
    wide = (x.float(), None if before is None else before.float(), weight.float(), bias, want)
    conv_frames_ref(*wide, strides=strides)
    run(device, lambda lane: conv_frames(lane, x, before, weight, bias, out, strides=strides))
    assert error(out, want) < ROUNDED


@pytest.mark.parametrize("halved", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("frames", [4, 1])
def test_shortcuts_around_a_halving(
    device: Any, draw: Any, frames: int, halved: tuple[bool, bool]
) -> None:
    x = draw(2, frames, 4, 6, 16)
    st, ss = (2 if each else 1 for each in halved)
    out = draw(2, -(-frames // st), 4 // ss, 6 // ss, 16)
    want = out.float()
    run(device, lambda lane: mean_frames(lane, x, out, halved=halved))
    mean_frames_ref(x.float(), want, halved=halved)
    assert error(out, want) < ROUNDED


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_frames_become_tokens(device: Any, draw: Any, dtype: torch.dtype) -> None:
    frames, grid = draw(3, 4, 6, 48, dtype=dtype), torch.zeros(3, 2, 7, 192, device=PLACE)
    want = grid.clone()
    run(device, lambda lane: frame_patches(lane, frames, grid[:, :, 2:5]))
    frame_patches_ref(frames.float(), want[:, :, 2:5])
    assert torch.equal(grid, want)


def test_what_no_kernel_takes_is_refused(device: Any, draw: Any) -> None:
    x, weight, bias = draw(1, 2, 4, 4, 6), draw(8, 1, 1, 1, 6), draw(8, dtype=F32)
    with pytest.raises(ContractError, match="multiples of 4 channels"):
        args = (x, None, weight, bias, empty(1, 2, 4, 4, 8))
        run(device, lambda lane: conv_frames(lane, *args))
    apart = draw(1, 2, 4, 4, 16)[..., :8]
    with pytest.raises(ContractError, match="without gaps"):
        run(device, lambda lane: mean_frames(lane, apart, apart.clone(), halved=(False, False)))
    wide = draw(2, 1032)
    with pytest.raises(ContractError, match="at most 1024 columns"):
        gain = draw(1032, dtype=F32)
        run(device, lambda lane: rms_norm(lane, wide, gain, wide, eps=1.0, activation="silu"))
