"""What an execution counts."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

_JUMPS = 512  # hand-overs that the percentiles are taken over


@dataclass
class Counters:
    """Totals since configure. Arrays are [action_dim]."""

    chunks: int = 0
    late_chunks: int = 0
    skipped_rows: int = 0
    commands: int = 0
    trajectories: int = 0
    safe: Counter[str] = field(default_factory=Counter)
    beyond_range: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    beyond_step: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    jump_max: np.ndarray = field(default_factory=lambda: np.zeros(0))
    jumps: deque[np.ndarray] = field(default_factory=lambda: deque(maxlen=_JUMPS))
