"""Where in a chunk a node is, for a policy whose decisions build on each other.

Such a policy decides where a chunk ends, and looks at what was seen and done on the way: at a
picture of every camera whenever so many rows were executed.
"""

from __future__ import annotations

import copy

import numpy as np

from flashrt_core.contract import HistorySpec


class Episode:
    """The chunk under way. Begun on the inference thread; asked on the executor thread, too.

    Args:
        history: of the policy.
        dt_ns: from one row to the next.
    """

    def __init__(self, history: HistorySpec, dt_ns: int) -> None:
        self._history = history
        self._dt_ns = dt_ns
        self._times: tuple[int, ...] = ()  # of the pictures that are still to come
        self._end_ns = 0  # of the chunk; 0: there is none
        self._overdue_ns = 0  # the end of the chunk whose successor was found late
        self.executed: np.ndarray | None = None  #: [rows, action_dim], where it was told already

    @property
    def under_way(self) -> bool:
        """Whether a chunk was begun."""
        return bool(self._end_ns)

    @property
    def end_ns(self) -> int:
        """When its last row is over; 0 where there is none."""
        return self._end_ns

    @property
    def seconds(self) -> float:
        """How long the longest chunk lasts."""
        return max(self._history.rows) * self._dt_ns * 1e-9

    def begin(self, first_ns: int, turn: int) -> None:
        """The chunk of decision ``turn`` starts; its row 0 is due at ``first_ns``."""
        history = self._history
        pictures = history.pictures[history.variant(turn + 1)]
        each_ns = history.stride * self._dt_ns
        rows = history.rows[history.variant(turn)]
        self._times = tuple(first_ns + k * each_ns for k in range(1, pictures))
        self._end_ns = first_ns + rows * self._dt_ns
        self.executed = None

    def clear(self) -> None:
        """No chunk is under way."""
        self._times, self._end_ns, self.executed = (), 0, None

    def copy(self) -> Episode:
        """One of a session that executes the same chunk."""
        return copy.copy(self)

    def over(self, now_ns: int) -> bool:
        """Whether the next decision may be made: its chunk has ended, or there is none."""
        return now_ns >= self._end_ns

    def overdue(self, now_ns: int, gap_ns: int) -> bool:
        """Whether the next chunk did not come within a gap; True once a chunk."""
        end_ns = self._end_ns
        late = bool(end_ns) and now_ns - end_ns >= gap_ns and self._overdue_ns != end_ns
        self._overdue_ns = end_ns if late else self._overdue_ns
        return late

    def wanted_ns(self) -> int | None:
        """When the next picture on the way is due; None when there is none left."""
        times = self._times
        return times[0] if times else None

    def seen(self) -> None:
        """That picture was kept."""
        self._times = self._times[1:]
