"""out = gelu_tanh(x Wg^T) * (x Wu^T), the two weights interleaved row by row."""

from __future__ import annotations

from torch import Tensor

from .check import ArgCheck
from .maths import geglu
from .op import Lane, Op


def geglu_linear_ref(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """float32 accumulation and activation, one rounding into ``out``."""
    out.copy_(geglu(x, weight))


GEGLU_LINEAR = Op("geglu_linear", geglu_linear_ref)


def geglu_linear(lane: Lane, x: Tensor, weight: Tensor, out: Tensor) -> None:
    """First half of a GeGLU feed-forward block.

    Args:
        lane: where the op goes.
        x: [M, K] float.
        weight: [2F, K] float; row 2i is gate row i, row 2i + 1 is up row i, so a tensor-core
            accumulator pair holds both numbers that one output needs.
        out: [M, F] float, apart from ``x``.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("geglu_linear")
    check.tensor("x", x, ("M", "K"))
    check.tensor("out", out, ("M", "F"))
    check.tensor("weight", weight, (2 * check.sizes["F"], "K"))
    check.apart("out", out, "x", x)
    lane.issue(GEGLU_LINEAR, x, weight, out)
