"""What a dense product is to the library that runs it."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import StrEnum


class Scaling(StrEnum):
    """How a product of E4M3 operands is multiplied by its scales.

    All but the last also multiply by a scale for each row of the weight: with a vector for each
    operand (Hopper), or with a vector in the place of alpha. The input's is one number.
    """

    OUTER = "outer"
    VECTOR = "vector"
    SCALAR = "scalar"


@dataclass(frozen=True)
class Site:
    """What decides how fast a product runs.

    Attributes:
        rows, columns, depth: M, N, K of out [M, N] = x [M, K] W[N, K]^T.
        x_stride, out_stride: elements between rows.
        bias, gelu, accumulate: parts of the epilogue.
        wide: out and bias are float32, x and W still bf16.
        scaling: of E4M3 operands, whose bias is always bf16; None: they are bf16.
    """

    rows: int
    columns: int
    depth: int
    x_stride: int
    out_stride: int
    bias: bool
    gelu: bool
    accumulate: bool
    wide: bool = False
    scaling: Scaling | None = None

    @property
    def key(self) -> str:
        """Name in the cache file."""
        *sizes, scaling = astuple(self)
        return "-".join([*(str(int(part)) for part in sizes), *([scaling] if scaling else [])])


@dataclass(frozen=True)
class Operands:
    """Device addresses of one product."""

    x: int
    weight: int
    bias: int
    out: int
    x_scale: int = 0
    weight_scale: int = 0
