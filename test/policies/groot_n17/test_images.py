"""Pictures for GR00T: the quick order of bytes gives the bits of torch's plain resize."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from flashrt_core.policies.groot_n17 import images
from flashrt_core.policies.groot_n17.images import Framing

SIZE, EDGE, FRACTION = 64, 72, 0.95
KEPT = 68  # 0.95 of the edge, rounded


def plain(pixels: np.ndarray, side: int) -> np.ndarray:
    """Plane after plane, as LeRobot's processor has them."""
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
    found = F.interpolate(planes, (side, side), mode="bicubic", antialias=True)
    return found[0].numpy().transpose(1, 2, 0)


@pytest.mark.parametrize("size", [(72, 72), (64, 64), (48, 100), (300, 7), (1, 33), (33, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_levels_of_the_quick_order(size: tuple[int, int], turned: bool) -> None:
    image = np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), dtype=np.uint8)
    if turned:  # strides that are not those of a fresh picture
        image = image[::-1, ::-1]
    image.setflags(write=False)  # as those of a received message
    square = plain(image, EDGE)
    first = (EDGE - KEPT) // 2
    middle = square[first : first + KEPT, first : first + KEPT]
    found = Framing(SIZE, EDGE, FRACTION, method="bicubic")(image)
    assert found.shape == (SIZE, SIZE, 3) and found.flags.c_contiguous
    assert np.array_equal(found, plain(middle, SIZE))


@pytest.mark.parametrize("side", [50, 64, 90])
def test_a_resized_picture_needs_no_packing(side: int) -> None:
    """Half of a picture's time on the host was the copy behind torch."""
    image = np.random.default_rng(side).integers(0, 256, (64, 70, 3), dtype=np.uint8)
    assert images._resized(image, side).flags.c_contiguous
