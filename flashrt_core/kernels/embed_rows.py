"""Rows of an embedding table, scaled; rows past a length held on the device become zero."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import I32, ArgCheck
from .launch import Launcher, require_bf16, row_threads
from .op import Lane, Op


def embed_rows_ref(
    tokens: Tensor, length: Tensor, table: Tensor, out: Tensor, *, scale: float
) -> None:
    """Scaled in float32, one rounding into ``out``."""
    rows = table.index_select(0, tokens).float().mul_(scale)
    past = torch.arange(tokens.shape[0], device=tokens.device) >= length
    out.copy_(rows.masked_fill_(past[:, None], 0.0))


def embed_rows_launch(
    launcher: Launcher, tokens: Tensor, length: Tensor, table: Tensor, out: Tensor, *, scale: float
) -> None:
    """One block a row."""
    require_bf16("embed_rows", table=table, out=out)
    rows, width = out.shape
    args = (tokens, length, table, out, width, table.stride(0), out.stride(0), scale)
    launcher.launch("embed_rows_bf16", rows, min(256, row_threads("embed_rows", width)), args)


EMBED_ROWS = Op("embed_rows", embed_rows_ref, embed_rows_launch)


def embed_rows(
    lane: Lane, tokens: Tensor, length: Tensor, table: Tensor, out: Tensor, *, scale: float
) -> None:
    """out[i] = table[tokens[i]] * scale for i < length, else 0.

    Args:
        lane: where the op goes.
        tokens: [B] int32, each in [0, V).
        length: [1] int32, rows in use; read when the op runs.
        table: [V, D] float.
        out: [B, D] float.
        scale: factor on every row.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("embed_rows")
    check.tensor("tokens", tokens, ("B",), I32)
    check.tensor("length", length, (1,), I32)
    check.tensor("table", table, ("V", "D"))
    check.tensor("out", out, ("B", "D"))
    lane.issue(EMBED_ROWS, tokens, length, table, out, scale=scale)
