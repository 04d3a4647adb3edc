"""How chunks are executed: straight lines between rows, in steps of 20 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .layout import Array

if TYPE_CHECKING:
    from .episode import TabletopEpisode

STEP_S = 0.02


def targets(chunk: Array, dt_s: float, count: int) -> Array:
    """Joint targets [N, 7] of the first ``count`` rows of a chunk [H, 7], one each 20 ms."""
    times = np.arange(round(count * dt_s / STEP_S)) * STEP_S
    rows = np.arange(len(chunk)) * dt_s
    return np.stack([np.interp(times, rows, column) for column in chunk.T], axis=1)


def execute(episode: TabletopEpisode, chunk: Array, dt_s: float, count: int) -> None:
    """Move by ``count`` rows of a chunk [H, 7] from now on, or until the episode is done."""
    for target in targets(chunk, dt_s, count):
        if episode.done:
            return
        episode.advance(target, STEP_S)
