"""An action chunk on the time axis: which of its rows is due at a time.

Times are integer nanoseconds of the node's clock. Row ``i`` is due at ``first_ns + i * dt_ns`` and
stays so until the next; the last one for ``dt_ns``, too. At ``end_ns`` the chunk is exhausted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HOLD, LINEAR = "hold", "linear"
INTERPOLATIONS = (HOLD, LINEAR)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows of actions, equally spaced in time.

    Attributes:
        first_ns: when row 0 is due.
        dt_ns: from one row to the next, above 0.
        rows: [horizon, action_dim] float64, finite.
        sequence: decision that made it.
    """

    first_ns: int
    dt_ns: int
    rows: np.ndarray
    sequence: int = 0

    def __post_init__(self) -> None:
        if self.dt_ns <= 0 or self.rows.ndim != 2 or not len(self.rows):
            raise ValueError(f"no chunk: dt {self.dt_ns} ns, rows of shape {self.rows.shape}")

    @property
    def end_ns(self) -> int:
        """From when on the chunk says nothing."""
        return self.first_ns + len(self.rows) * self.dt_ns

    def due_ns(self, row: int) -> int:
        """When a row is due."""
        return self.first_ns + row * self.dt_ns

    def row_at(self, time_ns: int) -> int | None:
        """The row that is due at a time; None before the first and after the last."""
        row = (time_ns - self.first_ns) // self.dt_ns
        return row if 0 <= row < len(self.rows) else None

    def rows_from(self, time_ns: int) -> range:
        """The rows that are due at ``time_ns`` or later."""
        first = -((self.first_ns - time_ns) // self.dt_ns)  # rounded up
        return range(min(max(first, 0), len(self.rows)), len(self.rows))

    def at(self, time_ns: int, interpolation: str = HOLD) -> np.ndarray | None:
        """[action_dim] float64, the action at a time; None where no row is due.

        ``linear`` goes straight from each row to the next, and holds the last one.
        """
        row = self.row_at(time_ns)
        if row is None:
            return None
        here: np.ndarray = self.rows[row]
        past_ns = time_ns - self.due_ns(row)
        if interpolation == HOLD or past_ns == 0 or row + 1 == len(self.rows):
            return here
        ahead: np.ndarray = here + (self.rows[row + 1] - here) * (past_ns / self.dt_ns)
        return ahead
