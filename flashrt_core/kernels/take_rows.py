"""Takes rows of a pool for a pass, the oldest ones where none is free; who holds a row is on the
device, so that a captured pass finds other rows whenever it runs.

Every pass has a number, one above the newest that holds rows. Where too few rows are free, rows of
the pass with the smallest number are given up, of one pass the lower rows first. (The official code
sorts without saying which of equal numbers come first; any order keeps as much of the past.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from .check import F32, I32, ArgCheck
from .launch import Launcher
from .op import Lane, Op


def take_rows_ref(
    holders: Tensor,
    kinds: Tensor,
    rows: Tensor,
    bias: Tensor,
    *,
    kind: int,
    forgotten: int | None = None,
) -> None:
    """Exact, whatever the order of the work."""
    capacity, copies = len(holders), len(bias) // len(holders)
    count = len(rows) // copies
    if forgotten is not None:
        holders.masked_fill_(kinds == forgotten, -1)
    lacking = max(0, count - int((holders < 0).sum()))
    held = torch.where(holders < 0, torch.iinfo(torch.int32).max, holders)
    holders[torch.argsort(held, stable=True)[:lacking]] = -1
    free = torch.nonzero(holders < 0).flatten()[:count].to(torch.int32)
    newest = holders.max()
    holders[free] = newest + 1
    kinds[free] = kind
    starts = capacity * torch.arange(copies, dtype=torch.int32, device=rows.device)
    rows.copy_((starts[:, None] + free).flatten())
    hidden = torch.where(holders < 0, float("-inf"), 0.0)
    bias.copy_(hidden.repeat(copies))


def take_rows_launch(
    launcher: Launcher,
    holders: Tensor,
    kinds: Tensor,
    rows: Tensor,
    bias: Tensor,
    *,
    kind: int,
    forgotten: int | None = None,
) -> None:
    """One block, which looks at the rows a thousand at a time."""
    capacity = len(holders)
    copies = len(bias) // capacity
    forgets = (int(forgotten is not None), forgotten or 0)
    counts = (capacity, len(rows) // copies, copies, kind, *forgets)
    launcher.launch("take_rows_i32", 1, 1024, (holders, kinds, rows, bias, *counts))


TAKE_ROWS = Op("take_rows", take_rows_ref, take_rows_launch)


def take_rows(
    lane: Lane,
    holders: Tensor,
    kinds: Tensor,
    rows: Tensor,
    bias: Tensor,
    *,
    kind: int,
    forgotten: int | None = None,
) -> None:
    """The first M free rows of a pool, in order; after what lacks was given up.

    Args:
        lane: where the op goes.
        holders: [P] int32, the number of the pass that holds a row; below 0 for a free one. Changed
            in place.
        kinds: [P] int32, what the rows hold. Changed in place.
        rows: [B M] int32: the rows, in each of B equal pools that lie behind each other.
        bias: [B P] float32: 0 for a row that is held, -inf for a free one.
        kind: of what these rows will hold.
        forgotten: rows of this kind are free first; None: no others are.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("take_rows")
    check.tensor("holders", holders, ("P",), I32)
    check.tensor("kinds", kinds, ("P",), I32)
    check.tensor("bias", bias, ("BP",), F32)
    check.tensor("rows", rows, ("BM",), I32)
    pool, pools, taken = (check.sizes[letter] for letter in ("P", "BP", "BM"))
    copies = pools // pool
    check.require(
        copies > 0 and pools % pool == 0 and taken % copies == 0 and taken <= pools,
        "sizes of 'bias' and 'rows'",
        expected=f"a multiple of {pool}, and at most as many rows",
        got=[pools, taken],
    )
    lane.issue(TAKE_ROWS, holders, kinds, rows, bias, kind=kind, forgotten=forgotten)
