"""out = act(x Wg^T) * (x Wu^T), the two weights interleaved row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from .check import ArgCheck
from .expand_rows import expand_rows_launch
from .launch import Launcher, TensorMap, Way, blocks, output_suffix, require_bf16
from .low_bit import require_e4m3
from .maths import Gate, glu
from .op import Lane, Op
from .quantised import given, store


def glu_linear_ref(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    activation: Gate = "gelu_tanh",
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """float32 accumulation and activation, one rounding into ``out``."""
    store(glu(x, weight, x_scale, weight_scale, activation), out, out_scale)


def glu_rows_launch(
    launcher: Launcher,
    merged: Tensor,
    out: Tensor,
    column_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    activation: Gate = "gelu_tanh",
) -> None:
    """out = act(gate) * up of interleaved columns.

    Args:
        launcher: of the device.
        merged: [M, 2F] bf16.
        out: [M, F] bf16 or E4M3.
        column_scale: [2F] float32 that ``merged`` is multiplied by first.
        out_scale: [1] float32, of an E4M3 ``out``.
        activation: of the gate.
    """
    rows, width = out.shape
    into = output_suffix("glu_linear", out)
    args = (merged, column_scale, out, out_scale, width, merged.stride(0), out.stride(0))
    launcher.launch(f"glu_rows_{activation}_{into}", (blocks(width, 8 * 256), rows), 256, args)


@dataclass(frozen=True)
class Tile:
    """A build of the fused kernel.

    Attributes:
        tokens: of a tile.
        depth: columns of a stage, 128 bytes.
        stages: in shared memory.
        cluster: blocks.
        suffix: format of operands and result.
        gate: activation.
        groups: warpgroups of a block that compute, 64 features each.
    """

    tokens: int
    depth: int
    stages: int
    cluster: int
    suffix: str = "bf16"
    gate: Gate = "gelu_tanh"
    groups: int = 2

    @property
    def features(self) -> int:
        """Of a block."""
        return 64 * self.groups

    @property
    def kernel(self) -> str:
        """Name of the entry."""
        parts = (self.tokens, self.depth, self.stages, self.cluster)
        return f"glu_linear_{self.gate}_{'_'.join(map(str, parts))}_{self.suffix}_sm90"


_TILES = (Tile(152, 64, 4, 2), Tile(192, 64, 4, 2), Tile(200, 64, 3, 2))
_FP8_TILES = tuple(replace(tile, depth=2 * tile.depth, suffix="fp8") for tile in _TILES)
#: With one warpgroup a block, for contexts that are one tile of tokens.
_SILU_TILES = (
    Tile(96, 64, 7, 1, gate="silu", groups=1),
    Tile(152, 64, 4, 2, gate="silu"),
    Tile(160, 64, 6, 1, gate="silu", groups=1),
)
_FP8_SILU_TILES = tuple(replace(tile, depth=128, suffix="fp8") for tile in _SILU_TILES)
#: Tiles by activation and whether operands are E4M3.
_BUILT: dict[tuple[Gate, bool], tuple[Tile, ...]] = {
    ("gelu_tanh", False): _TILES,
    ("gelu_tanh", True): _FP8_TILES,
    ("silu", False): _SILU_TILES,
    ("silu", True): _FP8_SILU_TILES,
}


def glu_linear_launch(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    activation: Gate = "gelu_tanh",
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """The library's product, then the gate; or one kernel, where it exists and is faster."""
    (rows, depth), width = x.shape, out.shape[1]
    if weight_scale is not None and x_scale is None:
        weight = expand_rows_launch(launcher, "glu_linear", weight, weight_scale)
        weight_scale = None
    narrow = weight_scale is not None
    output_suffix("glu_linear", out)
    if narrow:
        require_e4m3("glu_linear", x=x, weight=weight)
    else:
        require_bf16("glu_linear", x=x, weight=weight)

    def library(x: Tensor, out: Tensor) -> None:
        merged = launcher.workspace(rows, 2 * width)
        launcher.matmul(x, weight, None, merged, x_scale=x_scale)
        glu_rows_launch(launcher, merged, out, weight_scale, out_scale, activation)

    def fused(x: Tensor, out: Tensor, tile: Tile) -> None:
        fused_glu_launch(launcher, x, weight, out, tile, x_scale, weight_scale, out_scale)

    built = _BUILT[activation, narrow]
    fits = launcher.architecture == 90 and narrow == (out_scale is not None)
    if fits and depth * x.element_size() % 128 == 0 and width % 256 == 0:
        ways: dict[str, Way] = {}
        if activation == "gelu_tanh":
            ways["fused"] = partial(fused, tile=choose_tile(rows, built))
        else:
            ways |= {f"fused {tile.tokens}": partial(fused, tile=tile) for tile in built}
        key = f"glu_linear {activation} {rows} {depth} {width}{' fp8' if narrow else ''}"
        launcher.fastest(key, {**ways, "library": library}, x, out)
    else:
        library(x, out)


def choose_tile(rows: int, tiles: Sequence[Tile] = _TILES) -> Tile:
    """The tile that computes the fewest rows in vain; the widest of equals."""
    return min(tiles, key=lambda tile: (blocks(rows, tile.tokens) * tile.tokens, -tile.tokens))


def fused_glu_launch(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    tile: Tile,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """Persistent blocks of some features; those of a cluster share their tokens (sm_90a)."""
    (rows, depth), features, each = x.shape, out.shape[1], x.element_size()
    share = blocks(tile.tokens, 8 * tile.cluster) * 8
    tokens = TensorMap(x.data_ptr(), rows, depth, x.stride(0), share, tile.depth, each)
    # Row 4 i + 2 j + k of 16 features is the gate (k = 0) or up row of feature 2 i + j; in a tile i
    # comes first, then k and j as they are, then the next 16 features.
    row = weight.stride(0)
    outer = ((4, row, 4), (features // 16, 32 * row, tile.features // 16))
    sorted_rows = TensorMap(weight.data_ptr(), 8, depth, 4 * row, 8, tile.depth, each, outer)
    tiles = blocks(rows, tile.tokens) * features // (tile.features * tile.cluster)
    sizes = (rows, depth, features)
    stages = tile.stages * (2 * tile.features + tile.tokens) * tile.depth * each
    launcher.launch(
        tile.kernel,
        tile.cluster * min(tiles, launcher.multiprocessors // tile.cluster),
        128 * (1 + tile.groups),
        (tokens, sorted_rows, out, x_scale, weight_scale, out_scale, *sizes, out.stride(0)),
        shared_bytes=stages + 2 * tile.stages * 8,
    )


def glu_linear_operands(
    x: Tensor, weight: Tensor, out: Tensor, **_options: Any
) -> tuple[Tensor, Tensor]:
    """Weight and input, as :class:`Op` has them."""
    return weight, x


GLU_LINEAR = Op("glu_linear", glu_linear_ref, glu_linear_launch, glu_linear_operands, low_bit=True)


def glu_linear(
    lane: Lane,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    activation: Gate = "gelu_tanh",
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> None:
    """First half of a gated feed-forward block: GeGLU or SwiGLU.

    Args:
        lane: where the op goes.
        x: [M, K] float.
        weight: [2F, K] float; row 2i is gate row i, row 2i + 1 is up row i, so a tensor-core
            accumulator pair holds both numbers that one output needs.
        out: [M, F] float, apart from ``x``.
        activation: of the gate, "gelu_tanh" or "silu".
        x_scale: [1] float32, of a float8_e4m3fn ``x``.
        weight_scale: [2F] float32, of a float8_e4m3fn ``weight``: a row's.
        out_scale: [1] float32, of a float8_e4m3fn ``out``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("glu_linear")
    check.quantised("out", out, ("M", "F"), "out_scale", out_scale, (1,))
    check.operands(x, weight, x_scale, weight_scale, (2 * check.sizes["F"], "K"))
    check.apart("out", out, "x", x)
    check.choice("activation", activation, ("gelu_tanh", "silu"))
    scales = given(x_scale=x_scale, weight_scale=weight_scale, out_scale=out_scale)
    lane.issue(GLU_LINEAR, x, weight, out, activation=activation, **scales)
