"""What a dense product is to the library that runs it."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Site:
    """What decides how fast a product runs.

    Attributes:
        rows, columns, depth: M, N, K of out [M, N] = x [M, K] W[N, K]^T.
        x_stride, out_stride: elements between rows.
        bias, gelu, accumulate: parts of the epilogue.
        wide: out and bias are float32, x and W still bf16.
        narrow: operands are E4M3, with a scale each; their bias is always bf16.
        quantised: out is E4M3 too, with a scale.
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
    narrow: bool = False
    quantised: bool = False

    @property
    def key(self) -> str:
        """Name in the cache file."""
        *sizes, narrow, quantised = astuple(self)
        formats = ["fp8"] * narrow + ["into-fp8"] * quantised
        return "-".join([*(str(int(part)) for part in sizes), *formats])


@dataclass(frozen=True)
class Operands:
    """Device addresses of one product. A scale of 0 is 1; ``out_factor`` multiplies what is stored
    as E4M3.
    """

    x: int
    weight: int
    bias: int
    out: int
    x_scale: int = 0
    weight_scale: int = 0
    out_factor: int = 0
