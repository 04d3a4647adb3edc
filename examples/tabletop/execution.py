"""How chunks are executed: straight lines between rows, in steps of 20 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .layout import Array

if TYPE_CHECKING:
    from .episode import TabletopEpisode

STEP_S = 0.02


def targets(chunk: Array, dt_s: float, seconds: float) -> Array:
    """Joint targets [N, 7] of the first ``seconds`` of a chunk [H, 7], one each 20 ms."""
    times = np.arange(round(seconds / STEP_S)) * STEP_S
    rows = np.arange(len(chunk)) * dt_s
    return np.stack([np.interp(times, rows, column) for column in chunk.T], axis=1)


def execute(episode: TabletopEpisode, chunk: Array, dt_s: float, seconds: float) -> None:
    """Move by a chunk [H, 7] from now on for ``seconds``, or until the episode is done."""
    for target in targets(chunk, dt_s, seconds):
        if episode.done:
            return
        episode.advance(target, STEP_S)
