"""Which rows of the pool hold what really happened, decision by decision.

The rows that passes take depend on nothing but the order of passes, so what a capsule has to hold
is known before anything runs. What was only predicted is forgotten by the next decision and is left
out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...kernels.take_rows import take_rows_ref
from .config import LingbotConfig

#: Kinds of rows.
REAL, PREDICTED = 0, 1

Runs = tuple[tuple[int, int], ...]


def real_runs(config: LingbotConfig, views: int) -> tuple[tuple[Runs, ...], int]:
    """Runs (first row, end) of what is real, behind the first decision, the second, and so on.

    Returns:
        The runs up to where they repeat, and how many of the last entries the period is.
    """
    found: list[Runs] = []
    seen: dict[tuple[int, ...], int] = {}
    for held in _decisions(config, views):
        state = tuple(held)
        if state in seen:
            return tuple(found), len(found) - seen[state]
        seen[state] = len(found)
        found.append(_runs(held))
    raise AssertionError("the pool's rows repeat")


def _decisions(config: LingbotConfig, views: int) -> Iterator[list[int]]:
    """Of every row behind each decision: how old what it holds is, by rank; -1 for nothing real."""
    rows = config.capacity(views)
    holders = torch.full((rows,), -1, dtype=torch.int32)
    kinds, bias = torch.zeros_like(holders), torch.empty(rows)
    counts = (config.video_tokens(views), config.horizon)
    first = True
    while True:
        for kind in (PREDICTED,) if first else (REAL, PREDICTED):
            for index, count in enumerate(counts):
                taken = torch.empty(count, dtype=torch.int32)
                forgotten = PREDICTED if kind == REAL and index == 0 else None
                take_rows_ref(holders, kinds, taken, bias, kind=kind, forgotten=forgotten)
        first = False
        real = torch.where(kinds == REAL, holders, -1)
        order = {number: rank for rank, number in enumerate(sorted(set(real.tolist()) - {-1}))}
        yield [order.get(number, -1) for number in real.tolist()]


def _runs(held: list[int]) -> Runs:
    runs: list[tuple[int, int]] = []
    for row, rank in enumerate(held):
        if rank < 0:
            continue
        if runs and runs[-1][1] == row:
            runs[-1] = (runs[-1][0], row + 1)
        else:
            runs.append((row, row + 1))
    return tuple(runs)
