"""The fused gate and up of the prefix without a GPU: its tiles, its maps, its launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrt_core.kernels.glu_linear import choose_tile, glu_linear
from flashrt_core.kernels.quantised import E4M3
from test.kernels.signatures import CheckingLauncher, Lane


@pytest.mark.parametrize(("rows", "tokens"), [(560, 192), (968, 200), (304, 152), (456, 152)])
def test_tile_wastes_least(rows: int, tokens: int) -> None:
    assert choose_tile(rows).tokens == tokens


def test_fused_geglu_covers_rows_and_fits() -> None:
    launcher = CheckingLauncher()
    x, weight = torch.empty(560, 2048).bfloat16(), torch.empty(1024, 2048).bfloat16()
    glu_linear(Lane(launcher), x, weight, torch.empty(560, 512).bfloat16())
    (launch,) = launcher.launches
    assert launch.kernel == "glu_linear_gelu_tanh_192_64_4_2_bf16_sm90"
    assert launch.grid == 2 * 3 * 2  # clusters of two blocks, three token tiles, two weight pairs
    assert launch.shared_bytes == 4 * (256 + 192) * 128 + 8 * 8


def test_fused_geglu_of_fp8_takes_twice_the_columns() -> None:
    launcher = CheckingLauncher()
    x, weight = torch.empty(560, 2048).to(E4M3), torch.empty(1024, 2048).to(E4M3)
    scales: dict[str, Any] = {
        "x_scale": torch.ones(1),
        "weight_scale": torch.ones(1024),
        "out_scale": torch.ones(1),
    }
    glu_linear(Lane(launcher), x, weight, torch.empty(560, 512).to(E4M3), **scales)
    (launch,) = launcher.launches
    assert launch.kernel == "glu_linear_gelu_tanh_192_128_4_2_fp8_sm90"
    assert launch.shared_bytes == 4 * (256 + 192) * 128 + 8 * 8
    tokens, weight = launch.args[:2]
    assert (tokens.box_columns, tokens.element_bytes) == (128, 1)
    assert (weight.stride, weight.rows, weight.box_rows) == (4 * 2048, 8, 8)
    assert weight.outer == ((4, 2048, 4), (32, 32 * 2048, 8))


def test_the_weight_map_of_the_fused_geglu_sorts_gates_and_ups() -> None:
    """In a tile: the even features' eight gates, their ups, the odd ones' gates, their ups."""
    launcher = CheckingLauncher(90)
    x, weight = torch.empty(8, 128).bfloat16(), torch.empty(1024, 128).bfloat16()
    glu_linear(Lane(launcher), x, weight, torch.empty(8, 512).bfloat16())
    tile = launcher.launches[0].args[1]
    steps = [(tile.rows, tile.stride), *((size, stride) for size, stride, _ in tile.outer)]
    rows = [0]
    for size, stride in steps:  # the innermost dimension runs fastest
        rows = [row + place * stride // 128 for place in range(size) for row in rows]
    assert sorted(rows) == list(range(1024))
    kinds = [(row // 2, row % 2) for row in rows]  # feature, and whether it is an up row
    assert kinds[:32] == [
        (2 * place + odd, up) for odd in (0, 1) for up in (0, 1) for place in range(8)
    ]
    assert kinds[32:64] == [(feature + 16, up) for feature, up in kinds[:32]]
