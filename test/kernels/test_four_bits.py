"""Weights of four bits: how they lie in tiles, and which kernels read them so; without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.errors import ContractError
from flashrt_core.gemm import linear
from flashrt_core.kernels import four_bits
from flashrt_core.kernels.four_bit_linear import FOUR_BIT_LINEAR, FOUR_BIT_NORM
from flashrt_core.kernels.four_bits import four_bit_values, in_tiles, quantise_runs
from flashrt_core.kernels.launch import TensorMap
from flashrt_core.kernels.layer_norm_linear import layer_norm_linear
from flashrt_core.kernels.linear_gated_residual import linear_gated_residual

from .helpers import normal
from .signatures import CheckingLauncher, Lane, Launch

#: N and K of LingBot-VA's products of a step, behind a norm and into the stream.
NORMED, ADDED = [(9216, 3072), (14336, 3072), (3072, 3072)], [(3072, 3072), (3072, 14336)]


def stored(rows: int, depth: int, run: int = 128) -> tuple[Tensor, Tensor]:
    """A packed weight and its scales, of any numbers."""
    return torch.empty(rows, depth // 2, dtype=torch.uint8), torch.empty(rows, depth // run)


class TestTiles:
    def test_a_tile_is_what_its_threads_multiply(self) -> None:
        """Bytes by their definition; scales too."""
        weight = normal(128, 512, seed=1)
        packed, scale = quantise_runs(weight, 128)
        assert in_tiles(packed, scale)
        values = four_bit_values(packed, scale)
        tiles = packed.view(2, 8, 128, 4, 4)  # of rows, of columns, thread, word, byte
        of_runs = scale.view(2, 4, 64)
        byte = torch.arange(4).expand(2, 8, 128, 4, 4)
        word = torch.arange(4)[:, None].expand(2, 8, 128, 4, 4)
        thread = torch.arange(128)[:, None, None].expand(2, 8, 128, 4, 4)
        column = torch.arange(8)[:, None, None, None].expand(2, 8, 128, 4, 4)
        tile = torch.arange(2)[:, None, None, None, None].expand(2, 8, 128, 4, 4)
        at = 64 * column + 16 * word + 8 * (byte % 2) + 2 * (thread % 4) + byte // 2
        for half, number in enumerate((tiles & 15, tiles >> 4)):
            local = 16 * (thread // 32) + 2 * (thread // 4 % 8) + half
            expected = (number.float() - 8) * of_runs[tile, column // 2, local]
            assert torch.equal(values[64 * tile + local, at], expected)

    def test_tiles_change_no_value(self, monkeypatch: pytest.MonkeyPatch) -> None:
        weight, importance = normal(64, 256, seed=2), torch.rand(256)
        found = quantise_runs(weight, 128, importance)
        values = four_bit_values(*found)
        monkeypatch.setattr(four_bits, "TILE_RUN", 0)
        rows = quantise_runs(weight, 128, importance)
        assert not in_tiles(*rows) and not torch.equal(rows[0], found[0])
        assert torch.equal(four_bit_values(*rows), values)

    @pytest.mark.parametrize(("rows", "columns", "run"), [(63, 256, 128), (64, 192, 64)])
    def test_others_lie_in_rows(self, rows: int, columns: int, run: int) -> None:
        packed, scale = quantise_runs(normal(rows, columns, seed=3), run)
        assert not in_tiles(packed, scale)
        assert packed.shape == (rows, columns // 2)


def launches(rows: int, shape: tuple[int, int], *, normed: bool, run: int = 128) -> list[Launch]:
    """What the ops of a product of this shape launch; those of a stream twice, with a gate too."""
    (columns, depth), launcher = shape, CheckingLauncher()
    weight, scale = stored(columns, depth, run)
    x, out = torch.empty(rows, depth).bfloat16(), torch.empty(rows, columns).bfloat16()
    bias, lane = torch.empty(columns).bfloat16(), Lane(launcher)
    if normed:
        row = torch.empty(depth)
        layer_norm_linear(lane, x, row, row, weight, bias, out, eps=1e-6, weight_scale=scale)
        return launcher.launches
    linear(lane, x, weight, bias, out, residual=out, weight_scale=scale)
    gate = torch.empty(columns)
    linear_gated_residual(lane, x, weight, gate, out, bias=bias, weight_scale=scale)
    first, second = launcher.launches[: len(launcher.launches) // 2], launcher.launches
    assert [each.kernel for each in first] * 2 == [each.kernel for each in second]
    assert all(each.args[4] is None for each in first) and second[-1].args[4] is gate
    assert launcher.products == 0
    return first


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 80])
@pytest.mark.parametrize("shape", NORMED, ids=str)
def test_products_behind_a_norm(shape: tuple[int, int], rows: int) -> None:
    found = launches(rows, shape, normed=True)
    if rows <= 32:
        _one_run_each(found, rows, "layer_norm_linear", shape, most=32)
        return
    assert found[0].kernel == "layer_norm_bf16"
    _one_run_each(found[1:], rows, "linear", shape, most=80)


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 80])
@pytest.mark.parametrize("shape", ADDED, ids=str)
def test_products_into_the_stream(shape: tuple[int, int], rows: int) -> None:
    most = 80 if shape[1] == 3072 else 40
    _one_run_each(launches(rows, shape, normed=False), rows, "linear", shape, most=most)


def _one_run_each(
    found: list[Launch], rows: int, op: str, shape: tuple[int, int], *, most: int
) -> None:
    """Every row once, in as few runs as there can be; the plan's blocks for all of the weight."""
    columns, depth = shape
    assert len(found) == -(-rows // most)
    taken = first = 0
    for launch in found:
        plan = next(p for p in (*FOUR_BIT_LINEAR, *FOUR_BIT_NORM) if p.kernel == launch.kernel)
        assert plan.kernel.startswith(f"{op}_k{depth}_")
        x = launch.args[0]
        assert isinstance(x, TensorMap if plan.mapped else Tensor)
        base, run = (x.base, x.rows) if plan.mapped else (x.data_ptr(), len(x))
        first = first or base
        assert base - first == 2 * depth * taken and run <= plan.tokens
        assert not plan.mapped or x.box_rows == plan.tokens
        assert launch.grid == columns // plan.rows * plan.cluster >= 96
        taken += run
    assert taken == rows


@pytest.mark.parametrize(
    ("rows", "expected"), [(16, ["192", "256", "128"]), (32, ["128", "128", "64"])]
)
def test_which_rows_of_the_weight_a_block_takes(rows: int, expected: list[str]) -> None:
    """The fewest with which all blocks run at once."""
    kernels = [launches(rows, shape, normed=True)[0].kernel for shape in NORMED]
    assert [name.split("_")[4] for name in kernels] == expected


@pytest.mark.parametrize(
    ("rows", "shape", "run"),
    [(8, (96, 512), 64), (8, (128, 512), 128), (8, (104, 3072), 128), (300, (3072, 3072), 128)],
    ids=["runs", "depth", "columns", "rows"],
)
def test_other_products_expand_the_weight(rows: int, shape: tuple[int, int], run: int) -> None:
    launcher, (columns, depth) = CheckingLauncher(), shape
    weight, scale = stored(columns, depth, run)
    x, out = torch.empty(rows, depth).bfloat16(), torch.empty(rows, columns).bfloat16()
    linear(Lane(launcher), x, weight, None, out, weight_scale=scale)
    assert [launch.kernel for launch in launcher.launches] == ["expand_rows_w4"]
    tiles = run == 128 and columns % 64 == 0
    sizes = (depth, columns * depth // 8, run, int(tiles))
    assert launcher.launches[0].args[3:] == sizes
    assert launcher.products == 1


def test_an_older_gpu_expands_the_weight() -> None:
    launcher, x = CheckingLauncher(80), torch.empty(16, 3072).bfloat16()
    weight, scale = stored(3072, 3072)
    linear(Lane(launcher), x, weight, None, torch.empty_like(x), weight_scale=scale)
    assert [launch.kernel for launch in launcher.launches] == ["expand_rows_w4"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": torch.ones(4, 3)}, "runs of 'weight'.*a divisor of 256"),
        ({"weight_scale": torch.ones(3, 2)}, r"argument 'weight_scale': expected \[N=4, runs\]"),
        ({"weight": torch.zeros(4, 127, dtype=torch.uint8)}, r"'weight': expected \[N=?4?.*128\]"),
        ({"weight_scale": None}, "argument 'weight'"),
        ({"x_scale": torch.ones(1)}, "argument 'x_scale'|x_scale"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    weight, scale = quantise_runs(normal(4, 256, seed=1), 128)
    values: dict[str, Any] = {
        "x": normal(2, 256, seed=2).bfloat16(),
        "weight": weight,
        "bias": None,
        "out": torch.empty(2, 4),
        "weight_scale": scale,
    }
    launcher = CheckingLauncher()
    with pytest.raises(ContractError, match=message):
        linear(Lane(launcher), **(values | changes))
