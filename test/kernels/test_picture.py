"""A camera's bytes on the square: the reference gives the host's grey levels, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flashrt_core.errors import ContractError
from flashrt_core.images import frame_of
from flashrt_core.kernels.image_patches import METHODS, image_patches
from flashrt_core.kernels.picture import FIELDS, Picture, tap_weights
from flashrt_core.kernels.picture_reference import square
from test.kernels.cameras import (
    ENCODINGS,
    FITS,
    MISFITS,
    Raw,
    draw_image,
    expected,
    picture_of,
)
from test.kernels.helpers import run

#: Of cameras, of the square itself, and odd ones; the last shrinks by all that is allowed.
SIZES = [
    *((480, 640), (720, 1280), (1280, 720), (480, 848), (224, 224), (224, 126), (126, 224)),
    *((100, 150), (223, 225), (2, 2), (1, 1), (1, 7), (3, 500), (300, 300), (37, 20)),
    (6944, 3999),
]


def found(raw: Raw, size: int, method: str, rotation_deg: int = 0) -> np.ndarray:
    picture = picture_of(frame_of(raw, "", rotation_deg), size)
    return square(torch.from_numpy(raw.data), picture, size, method).numpy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rotation_deg", [0, 90, 180, 270])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_turned_and_padded(encoding: str, rotation_deg: int, method: str) -> None:
    raw = draw_image(44, 62, encoding, padding=5, big=rotation_deg == 90)
    want = expected(raw, 56, method, rotation_deg)
    assert np.array_equal(found(raw, 56, method, rotation_deg), want)
    assert len(np.unique(want)) > 100


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_every_size(height: int, width: int, method: str) -> None:
    raw = draw_image(height, width, "mono8" if height > 1000 else "rgb8", seed=height)
    assert np.array_equal(found(raw, 224, method), expected(raw, 224, method))


def test_random_sizes() -> None:
    generator = np.random.default_rng(5)
    for seed in range(60):
        height, width = (int(side) for side in generator.integers(1, 500, 2))
        height = min(height, width * 19 // 10)
        raw = draw_image(height, width, "mono8", padding=seed % 3, seed=seed)
        for method in METHODS:
            assert np.array_equal(found(raw, 98, method), expected(raw, 98, method)), raw


def test_weights_sum_to_one() -> None:
    for side, to in ((640, 224), (7, 224), (224, 224), (1080, 126)):
        for first, weights in tap_weights(side, to):
            assert first >= 0 and first + len(weights) <= side
            assert abs(sum(weights) - (1 << 22)) <= len(weights)


def test_a_picture_that_fits_is_seen() -> None:
    assert square(torch.full((48,), 255, dtype=torch.uint8), FITS, 56, "pillow").all()


@pytest.mark.parametrize("wrong", MISFITS, ids=str)
def test_what_does_not_fit_is_black(wrong: Picture) -> None:
    assert not square(torch.full((48,), 255, dtype=torch.uint8), wrong, 56, "pillow").any()


def test_a_picture_survives_the_array() -> None:
    picture = replace(picture_of(frame_of(draw_image(44, 62, "nv21")), 56), turns=3)
    values = picture.values()
    assert len(values) == FIELDS and Picture.of(values) == picture


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patches_of_raw_bytes_are_those_of_the_square(dtype: torch.dtype) -> None:
    raw = draw_image(44, 62, "yuyv", padding=3)
    picture = torch.tensor(picture_of(frame_of(raw), 56).values(), dtype=torch.int32)
    window = torch.cat([torch.from_numpy(raw.data), torch.full((99,), 7, dtype=torch.uint8)])
    out, want = torch.empty(16, 588, dtype=dtype), torch.empty(16, 588, dtype=dtype)
    run(lambda lane: image_patches(lane, window, out, patch=14, picture=picture, size=56))
    host = torch.from_numpy(expected(raw, 56, "pillow"))
    run(lambda lane: image_patches(lane, host, want, patch=14))
    assert torch.equal(out, want)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 55}, "argument 'size': expected sides that are multiples of the patch, 14"),
        ({"size": 0}, "argument 'size'"),
        ({"method": "nearest"}, "argument 'method'"),
        ({"picture": torch.zeros(15, dtype=torch.int32)}, "argument 'picture'"),
        ({"picture": torch.zeros(16)}, "argument 'picture'"),
        ({"image": torch.zeros(4, 6, 3, dtype=torch.uint8)}, "argument 'image'"),
    ],
)
def test_wrong_arguments(changes: dict[str, object], message: str) -> None:
    given = {
        "image": torch.zeros(99, dtype=torch.uint8),
        "out": torch.zeros(16, 588),
        "patch": 14,
        "picture": torch.zeros(16, dtype=torch.int32),
        "size": 56,
    } | changes
    with pytest.raises(ContractError, match=message):
        run(lambda lane: image_patches(lane, **given))  # type: ignore[arg-type]
