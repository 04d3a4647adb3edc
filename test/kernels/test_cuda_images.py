"""A camera's bytes cut into patches on the GPU: the host's grey levels, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flashrt_core.images import frame_of
from flashrt_core.kernels.image_patches import METHODS, image_patches, image_patches_ref
from flashrt_core.kernels.picture import MAX_TAPS, Picture
from test.gpu import PLACE, kernel_device, run, runs_kernels, synchronize
from test.kernels.cameras import ENCODINGS, MISFITS, draw_image, expected, picture_of

pytestmark = runs_kernels

CASES = {
    "small": [
        *((44, 62, encoding, turn) for encoding in ENCODINGS for turn in (0, 90, 180, 270)),
        *((1, 1, "mono8", 0), (3, 500, "bgr8", 0)),
    ],
    "large": [
        *((height, width, "rgb8", 0) for height, width in ((480, 640), (720, 1280), (1280, 720))),
        *((2160, 3840, "nv12", 0), (6944, 3999, "mono8", 0)),
    ],
}


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with kernel_device(overlap="on") as device:
        yield device


def show(device: Any, program: Any, window: torch.Tensor, picture: Picture) -> None:
    window.copy_(torch.tensor(picture.values(), dtype=torch.int32))
    synchronize()
    device.replay(program)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("side", [224, 56])
@pytest.mark.parametrize("cases", CASES)
def test_image_patches_of_raw_bytes(device: Any, cases: str, side: int, method: str) -> None:
    window = torch.zeros(30_000_000, dtype=torch.uint8, device=PLACE)
    picture = torch.zeros(16, dtype=torch.int32, device=PLACE)
    out = torch.zeros((side // 14) ** 2, 588, dtype=torch.bfloat16, device=PLACE)
    options = {"patch": 14, "picture": picture, "size": side, "method": method}
    program = run(device, lambda lane: image_patches(lane, window, out, **options))
    assert (out == -1).all()  # a picture of nothing
    window.fill_(255)
    for wrong in MISFITS:
        if not wrong.fits(window.numel(), side):
            show(device, program, picture, wrong)
            assert (out == -1).all(), wrong
    want = torch.empty(out.shape, dtype=torch.bfloat16)
    for height, width, encoding, turn in CASES[cases]:
        raw = draw_image(height, width, encoding, padding=3, big=turn == 90)
        found = picture_of(frame_of(raw, "", turn), side)
        if found.taps > MAX_TAPS:
            continue
        window[: raw.data.size] = torch.from_numpy(raw.data).to(PLACE)
        show(device, program, picture, found)
        square = torch.from_numpy(expected(raw, side, method, turn))
        image_patches_ref(square, want, patch=14)
        assert torch.equal(out.cpu(), want), (height, width, encoding, turn)
