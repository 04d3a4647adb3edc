"""The kernel that copies pieces, at odd sizes and places: what was asked for, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.devices.transfer import Rows
from test.gpu import EMULATED, PLACE, count_calls, kernel_device, runs_kernels, synchronize

pytestmark = runs_kernels

BYTES = 1 << 20
LARGE = 20_971_520


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with kernel_device() as device:
        yield device


def memory(nbytes: int, seed: int) -> Tensor:
    """Bytes of their own, at an address that is a multiple of 512."""
    draw = torch.Generator(PLACE).manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=PLACE, generator=draw)


def start(device: Any, planned: Any) -> None:
    if EMULATED:
        device.transfer(planned)
        return
    with count_calls(device.driver) as calls:
        device.transfer(planned)
    assert calls == {"cuLaunchKernel": 1}


def check(device: Any, copies: Sequence[Rows]) -> None:
    """Starts copies twice and compares every byte of what they write to with torch's."""
    target, source = copies[0].target, copies[0].source
    first, before = target.clone(), source.clone()
    planned = device.plan(copies)
    for _ in range(2):
        target.copy_(first)
        synchronize()
        start(device, planned)
        device.synchronize()
        expected = first.clone()
        for each in copies:
            size = (each.rows, each.row_bytes)
            to = (max(each.target_pitch, each.row_bytes), 1)
            pitch = (max(each.source_pitch, each.row_bytes), 1)
            expected.as_strided(size, to, each.target_offset).copy_(
                before.as_strided(size, pitch, each.source_offset)
            )
        assert torch.equal(target, expected)
        assert torch.equal(source, before)


@pytest.mark.parametrize("size", [1, 3, 4, 15, 16, 17, 31, 255, 4099, 65_536, BYTES - 64])
@pytest.mark.parametrize(
    ("to", "start"), [(0, 0), (16, 48), (4, 0), (8, 12), (1, 1), (0, 3), (5, 0), (15, 17)]
)
def test_one_run(device: Any, size: int, to: int, start: int) -> None:
    check(device, [Rows(memory(BYTES, 1), memory(BYTES, 2), size, 1, to, 0, start, 0)])


@pytest.mark.parametrize("width", [1, 12, 16, 17, 48, 500, 4096])
@pytest.mark.parametrize("rows", [2, 37, 144])
@pytest.mark.parametrize(("gap", "pitch_gap"), [(0, 16), (16, 0), (4, 8), (1, 0), (3, 5)])
def test_rows_and_nothing_between(
    device: Any, width: int, rows: int, gap: int, pitch_gap: int
) -> None:
    to, pitch = width + gap, width + pitch_gap
    check(device, [Rows(memory(BYTES, 3), memory(BYTES, 4), width, rows, 32, to, 64, pitch)])


def test_eight_pieces_of_every_kind(device: Any) -> None:
    target, source, copies, at = memory(BYTES, 5), memory(BYTES, 6), [], 0
    for index, (width, rows) in enumerate(
        [(4096, 7), (1, 1), (333, 9), (64, 1), (12, 5), (20_000, 1), (4, 1), (17, 40)]
    ):
        gap = index * 4
        copies.append(Rows(target, source, width, rows, at, width, at + 16, width + gap))
        at += rows * (width + gap) + index
    check(device, copies)


@pytest.mark.parametrize("size", [LARGE, LARGE - 1, LARGE - 12])
@pytest.mark.parametrize("start", [0, 4, 1])
def test_twenty_megabytes(device: Any, size: int, start: int) -> None:
    source = memory(LARGE + 16, 8)
    check(device, [Rows(memory(LARGE + 16, 7), source, size, 1, 0, 0, start, 0)])


def test_a_capsule_of_the_base_preset(device: Any) -> None:
    """K and V of 18 layers with a gap behind each, and three pieces that follow without one."""
    row, pitch = 560 * 512, 688 * 512
    target, source = memory(36 * row + 300_000, 9), memory(36 * pitch + 300_000, 10)
    slot, end = 36 * row, 36 * pitch
    copies = [
        Rows(target, source, row, 36, 0, row, 0, pitch),
        Rows(target, source, 48 * 4096, 1, slot, 0, end, 0),
        Rows(target, source, 10 * 1024, 1, slot + 48 * 4096, 0, end + 48 * 4096 + 256, 0),
        Rows(target, source, 4, 1, slot + 48 * 4096 + 10 * 1024, 0, end + 220_000, 0),
    ]
    check(device, copies)
    back = [
        Rows(source, target, w, n, from_, from_pitch, to, to_pitch)
        for _, _, w, n, to, to_pitch, from_, from_pitch in copies
    ]
    check(device, back)
