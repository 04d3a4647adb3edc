"""How chunks that overlap become one action.

A strategy is told of every chunk in the order they were decided, and says what is due at a time.
Real-time chunking is not another class here: it acts before the decision, which gets what is left
of the schedule to keep and to be guided towards (continuation.py), and what then comes out
continues the chunk before; it replaces that as any other would.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque

import numpy as np

from flashrt_ros.execution.chunk import LINEAR, Chunk

REPLACE, TEMPORAL_ENSEMBLE = "replace", "temporal_ensemble"
REAL_TIME_CHUNKING = "real_time_chunking"
STRATEGIES = (REPLACE, TEMPORAL_ENSEMBLE, REAL_TIME_CHUNKING)
# Chunks kept at most: as many as cover one tick where every row brings a decision.
_KEPT = 1024


class Strategy(ABC):
    """Chunks that still have something to say, oldest first.

    Args:
        interpolation: between the rows of a chunk.
    """

    def __init__(self, interpolation: str = LINEAR) -> None:
        self.interpolation = interpolation
        self._chunks: deque[Chunk] = deque(maxlen=_KEPT)

    def add(self, chunk: Chunk) -> None:
        """Take the chunk of a newer decision."""
        self._chunks.append(chunk)

    def prune(self, now_ns: int) -> None:
        """Forget the chunks that are exhausted."""
        while self._chunks and self._chunks[0].end_ns <= now_ns:
            self._chunks.popleft()

    def clear(self) -> None:
        """Forget all chunks."""
        self._chunks.clear()

    def copy(self) -> Strategy:
        """One with the same chunks, which are never changed."""
        twin = copy.copy(self)
        twin._chunks = self._chunks.copy()
        return twin

    def end_ns(self) -> int | None:
        """From when on nothing is due; None when there are no chunks."""
        return max((chunk.end_ns for chunk in self._chunks), default=None)

    @abstractmethod
    def at(self, time_ns: int) -> np.ndarray | None:
        """[action_dim] float64, the action at a time; None where no chunk has one."""


class Replace(Strategy):
    """The newest chunk that covers the time."""

    def at(self, time_ns: int) -> np.ndarray | None:
        for chunk in reversed(self._chunks):
            if (action := chunk.at(time_ns, self.interpolation)) is not None:
                return action
        return None


class TemporalEnsemble(Strategy):
    """The weighted mean of all chunks that cover the time.

    Weights are ``exp(-decay * i)`` with ``i = 0`` for the oldest of them, as in ACT (Zhao et al.
    2023, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", algorithm 2, where
    the decay is called m). A larger decay trusts older chunks more; 0 is the plain mean.

    Args:
        interpolation: between the rows of a chunk.
        decay: of the weights; negative ones prefer newer chunks.
    """

    def __init__(self, interpolation: str = LINEAR, decay: float = 0.01) -> None:
        super().__init__(interpolation)
        self.decay = decay

    def at(self, time_ns: int) -> np.ndarray | None:
        said = [chunk.at(time_ns, self.interpolation) for chunk in self._chunks]
        actions = [action for action in said if action is not None]
        if not actions:
            return None
        exponents = -self.decay * np.arange(len(actions))
        weights = np.exp(exponents - exponents.max())  # the largest is 1: none overflows
        mean: np.ndarray = weights @ np.stack(actions) / weights.sum()
        return mean


def strategy(name: str, interpolation: str, decay: float) -> Strategy:
    """The strategy of a name of STRATEGIES."""
    if name == TEMPORAL_ENSEMBLE:
        return TemporalEnsemble(interpolation, decay)
    return Replace(interpolation)
