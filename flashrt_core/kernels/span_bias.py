"""Biases of keys that stand for a text of a length known on the device, and its padding."""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, I32, ArgCheck
from .launch import Launcher, blocks
from .op import Lane, Op


def span_bias_ref(lengths: Tensor, out: Tensor, *, rows: int) -> None:
    """Exact but for the logarithm, of float32."""
    key = torch.arange(out.shape[1], device=out.device)
    read = (key >= 1) & (key <= lengths[:, None])
    alike = torch.log((rows - lengths).float())[:, None]
    held = torch.where(read, 0.0, float("-inf"))
    out.copy_(torch.where(key == 0, alike, held))


def span_bias_launch(launcher: Launcher, lengths: Tensor, out: Tensor, *, rows: int) -> None:
    """One thread a key."""
    texts, keys = out.shape
    args = (lengths, out, keys, out.stride(0), rows)
    launcher.launch("span_bias_f32", (blocks(keys, 256), texts), 256, args)


SPAN_BIAS = Op("span_bias", span_bias_ref, span_bias_launch)


def span_bias(lane: Lane, lengths: Tensor, out: Tensor, *, rows: int) -> None:
    """For a text of n rows among ``rows`` that all count: key 0 stands for the rest, 1..n for it.

    out[i, 0] = log(rows - n_i), -inf where nothing is left; 0 for the keys 1..n_i, -inf behind.

    Args:
        lane: where the op goes.
        lengths: [B] int32, at most ``rows``; read when the op runs.
        out: [B, P] float32.
        rows: of a text with its padding.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("span_bias")
    check.tensor("lengths", lengths, ("B",), I32)
    check.tensor("out", out, ("B", "P"), F32)
    check.require(rows >= 1, "argument 'rows'", expected="1 or more", got=rows)
    lane.issue(SPAN_BIAS, lengths, out, rows=rows)
