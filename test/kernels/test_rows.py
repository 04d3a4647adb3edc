"""Ops that move or make rows: image_patches, copy_rows, embed_rows, offset_count, rope_rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from flashrt_core.kernels.copy_rows import copy_rows
from flashrt_core.kernels.embed_rows import embed_rows
from flashrt_core.kernels.image_patches import image_patches
from flashrt_core.kernels.offset_count import offset_count
from flashrt_core.kernels.rope_rows import rope_rows

from .helpers import BF16, DTYPES, F32, assert_rounded_once, normal, run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("height", "width", "patch"), [(224, 224, 14), (56, 56, 14), (6, 9, 3)])
def test_image_patches_times_weight_is_the_convolution(
    height: int, width: int, patch: int, dtype: torch.dtype
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels)
    tokens = (height // patch) * (width // patch)
    out = torch.empty(tokens, 3 * patch * patch, dtype=dtype)
    run(lambda lane: image_patches(lane, image, out, patch=patch))
    exact = (image.double() / 255 * 2 - 1).permute(2, 0, 1)[None]
    rows = F.unfold(exact, patch, stride=patch)[0].t()
    assert_rounded_once(out, rows)
    weight = normal(5, 3, patch, patch, seed=1).double()
    grid = F.conv2d(exact, weight, stride=patch)[0].flatten(1).t()
    assert torch.allclose(rows @ weight.flatten(1).t(), grid)


def test_image_patches_known_values() -> None:
    image = torch.zeros(2, 4, 3, dtype=torch.uint8)
    image[0, 3] = torch.tensor([255, 128, 1], dtype=torch.uint8)
    out = torch.empty(2, 12)
    run(lambda lane: image_patches(lane, image, out, patch=2))
    assert out[0].eq(-1).all()
    # Columns are channel, y, x: the pixel at y 0, x 1 of the second patch.
    assert out[1].reshape(3, 2, 2)[:, 0, 1].tolist() == pytest.approx(
        [1.0, 1 / 255, -253 / 255], abs=1e-6
    )
    assert (out[1] != -1).sum() == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_rows(dtype: torch.dtype) -> None:
    src, out = normal(7, 33, seed=1), torch.empty(7, 33, dtype=dtype)
    run(lambda lane: copy_rows(lane, src, out))
    assert torch.equal(out, src.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab", "bucket", "width"), [(600, 48, 2048), (11, 5, 3)])
def test_embed_rows(vocab: int, bucket: int, width: int, dtype: torch.dtype) -> None:
    table = normal(vocab, width, seed=1, dtype=dtype)
    drawn = np.random.default_rng(2).integers(0, vocab, bucket, dtype=np.int32)
    tokens, length = torch.from_numpy(drawn), torch.tensor([bucket], dtype=torch.int32)
    out = torch.full((bucket, width), torch.nan, dtype=dtype)
    issue = lambda lane: embed_rows(lane, tokens, length, table, out, scale=45.25)  # noqa: E731
    run(issue)
    exact = torch.stack([table[int(token)] for token in tokens]).double() * 45.25
    assert_rounded_once(out, exact)
    length.fill_(2)  # what the op reads when it runs, not what was there at capture
    run(issue)
    assert_rounded_once(out[:2], exact[:2])
    assert out[2:].eq(0).all()


def test_embed_rows_and_counts_follow_the_device_length_without_a_new_capture() -> None:
    from flashrt_core.devices.cpu import CpuDevice

    count, out = torch.tensor([3], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    device = CpuDevice()
    program = device.capture([("op", lambda lane: offset_count(lane, count, out, offset=512))])
    device.replay(program)
    assert out.item() == 515
    count.fill_(48)
    device.replay(program)
    assert out.item() == 560


@pytest.mark.parametrize(("rows", "width"), [(50, 256), (10, 32), (1, 2), (3, 6)])
@pytest.mark.parametrize("first", [0, 1, 967])
def test_rope_rows(rows: int, width: int, first: int) -> None:
    start, out = torch.tensor([first], dtype=torch.int32), torch.empty(rows, width)
    run(lambda lane: rope_rows(lane, start, out, theta=10000.0))
    half = width // 2
    for row in {0, rows - 1}:
        for i in {0, half - 1, half // 2}:
            angle = (first + row) * 10000.0 ** (-2.0 * i / width)
            assert out[row, i].item() == pytest.approx(np.cos(angle), abs=1e-7)
            assert out[row, half + i].item() == pytest.approx(np.sin(angle), abs=1e-7)


def test_formats_are_what_the_parameters_say() -> None:
    assert (F32, BF16) == DTYPES
