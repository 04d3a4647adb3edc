"""The schedule: what is due now, what will be, and how one chunk follows another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.execution.chunk import LINEAR, Chunk
from flashrt_ros.execution.strategies import Strategy


@dataclass(frozen=True, eq=False)
class Entry:
    """How a chunk entered the schedule.

    Attributes:
        late: it came after its last row: not taken.
        skipped: its rows whose time was over when it came.
        jump: [action_dim] float64, how far the action due at that moment moved; None where none was
            due before or after.
    """

    late: bool
    skipped: int
    jump: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Remainder:
    """What is left of the schedule at the rows of a chunk to come.

    Attributes:
        rows: [n, action_dim] float64: what is due at row 0, 1, ... of that chunk, as far as the
            schedule reaches. Real-time chunking guides the new chunk towards them.
        frozen: the first so many will have been executed when the chunk is there, or are under way
            then; it must repeat them.
    """

    rows: np.ndarray
    frozen: int


class Schedule:
    """Chunks in, the action due at any time out.

    Args:
        strategy: what becomes of chunks that overlap.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.newest: Chunk | None = None

    def add(self, chunk: Chunk, now_ns: int) -> Entry:
        """Take a chunk that is there at ``now_ns``: rows whose time is over are skipped."""
        if chunk.end_ns <= now_ns:
            return Entry(late=True, skipped=len(chunk.rows))
        skipped = chunk.row_at(now_ns) or 0
        before = self.at(now_ns)
        self._strategy.add(chunk)
        self.newest = chunk
        after = self.at(now_ns)
        jump = None if before is None or after is None else np.abs(after - before)
        return Entry(late=False, skipped=skipped, jump=jump)

    def at(self, time_ns: int) -> np.ndarray | None:
        """[action_dim] float64, the action due at a time; None when there is none."""
        return self._strategy.at(time_ns)

    def prune(self, now_ns: int) -> None:
        """Forget the chunks that are exhausted; at every tick."""
        self._strategy.prune(now_ns)

    def clear(self) -> None:
        """Forget all chunks."""
        self._strategy.clear()
        self.newest = None

    def copy(self) -> Schedule:
        """What this one says now, for good: another thread may ask it."""
        twin = Schedule(self._strategy.copy())
        twin.newest = self.newest
        return twin

    def end_ns(self) -> int | None:
        """From when on nothing is due; None when there is nothing."""
        return self._strategy.end_ns()

    def coming(self, not_before_ns: int) -> list[tuple[int, np.ndarray]]:
        """(time, action) at the rows of the newest chunk that are due then or later."""
        if self.newest is None:
            return []
        times = (self.newest.due_ns(row) for row in self.newest.rows_from(not_before_ns))
        said = ((time, self.at(time)) for time in times)
        return [(time, action) for time, action in said if action is not None]

    def remainder(self, first_ns: int, ready_ns: int) -> Remainder:
        """What this schedule says at the rows of a chunk that a decision is about to make.

        Args:
            first_ns: when row 0 of that chunk is due.
            ready_ns: when the chunk is expected to be there.
        """
        chunk = self.newest
        rows: list[np.ndarray] = []
        while chunk is not None and (a := self.at(first_ns + len(rows) * chunk.dt_ns)) is not None:
            rows.append(a)
        if chunk is None or not rows:
            return Remainder(np.empty((0, 0)), 0)
        # Row i is executed from its own time on: all that begin before the chunk is there. On a
        # straight line the robot is then on its way to the next, or just at it.
        frozen = -((first_ns - ready_ns) // chunk.dt_ns) + (self._strategy.interpolation == LINEAR)
        return Remainder(np.stack(rows), min(max(0, frozen), len(rows)))
