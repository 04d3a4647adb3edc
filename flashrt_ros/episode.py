"""Where in a chunk a node is, for a policy whose decisions build on each other.

Such a policy decides where a chunk ends, and looks at what was seen and done on the way: at a
picture of every camera whenever so many rows were executed.
"""

from __future__ import annotations

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
        self._rows: tuple[int, ...] = ()  # when each row of the chunk ends

    @property
    def under_way(self) -> bool:
        """Whether a chunk was begun."""
        return bool(self._rows)

    @property
    def row_ends_ns(self) -> tuple[int, ...]:
        """When each of its rows is over."""
        return self._rows

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
        self._rows = tuple(first_ns + (k + 1) * self._dt_ns for k in range(rows))

    def clear(self) -> None:
        """No chunk is under way."""
        self._times = self._rows = ()

    def over(self, now_ns: int) -> bool:
        """Whether the next decision may be made: its chunk has ended, or there is none."""
        rows = self._rows
        return not rows or now_ns >= rows[-1]

    def wanted_ns(self) -> int | None:
        """When the next picture on the way is due; None when there is none left."""
        times = self._times
        return times[0] if times else None

    def seen(self) -> None:
        """That picture was kept."""
        self._times = self._times[1:]
