"""What the robot was told, row by row: what was done with a chunk.

A row counts as it was decided, unless a limit or a safe action changed what left the node for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashrt_ros.execution.chunk import LINEAR, Chunk
from flashrt_ros.execution.machine import Sink
from flashrt_ros.execution.parameters import ExecutionConfig
from flashrt_ros.execution.track import Track

_ROUNDING = 1e-9


class Told:
    """A sink that remembers what went through it for each row of the chunk under way.

    With ``linear`` a robot is at a row when that is due, and then leaves it for the next: the first
    command of a row tells. With ``hold`` it is on the way to it until the next is due: the last one
    does. Of a trajectory the row's own point.

    Args:
        sink: where it goes.
        config: range of each action, and the interpolation.
    """

    def __init__(self, sink: Sink, config: ExecutionConfig) -> None:
        self._sink = sink
        dim = len(config.names)
        self._lower = np.array(config.lower or [-np.inf] * dim)
        self._upper = np.array(config.upper or [np.inf] * dim)
        self._interpolation = config.interpolation
        self.clear()

    def clear(self) -> None:
        """Nothing was told, and no chunk is under way."""
        self._chunk: Chunk | None = None
        self._rows: dict[int, np.ndarray] = {}
        self._last: np.ndarray | None = None
        self._track = Track()

    def begin(self, chunk: Chunk) -> None:
        """This chunk is executed from now on."""
        self._chunk, self._rows = chunk, {}

    def executed(self, end_ns: int, stopped: bool) -> np.ndarray | None:
        """[rows, action_dim] float64, what was done with the chunk that ends then.

        Rows between two commands, where the control period is longer than a row, count as decided.

        Args:
            end_ns: of the chunk.
            stopped: whether the safe action lasts: then what was told last held from there on.

        Returns:
            None where another chunk is under way, or none; and where nothing was told.
        """
        chunk = self._chunk
        if chunk is None or chunk.end_ns != end_ns:
            return None
        heard = max(self._rows, default=-1)
        rows = []
        for index in range(len(chunk.rows)):
            row = self._rows.get(index)
            if row is None:
                row = self._last if stopped and index > heard else self._inside(chunk.rows[index])
            if row is None:
                return None
            rows.append(row)
        return np.stack(rows)

    def command(self, now_ns: int, values: np.ndarray) -> None:
        """[action_dim] float64, now."""
        self._sink.command(now_ns, values)
        self._last = values
        chunk = self._chunk
        row = None if chunk is None else chunk.row_at(now_ns)
        wanted = None if chunk is None else chunk.at(now_ns, self._interpolation)
        if chunk is None or row is None or wanted is None:
            return
        due = self._inside(wanted)
        as_due = np.abs(values - due) <= _ROUNDING * (1.0 + np.abs(due))
        done = np.where(as_due, self._inside(chunk.rows[row]), values)
        if self._interpolation == LINEAR:
            self._rows.setdefault(row, done)
        else:
            self._rows[row] = done

    def trajectory(self, now_ns: int, points: Sequence[tuple[int, np.ndarray]]) -> None:
        """Points (time, [action_dim] float64), all after ``now_ns``."""
        self._sink.trajectory(now_ns, points)
        self._track.replace(now_ns, self._track.at(now_ns), points)
        self._last = points[-1][1]
        if self._chunk is not None:
            self._points(self._chunk, now_ns, points)

    def stop(self, now_ns: int, position: np.ndarray) -> None:
        """Come to rest at [action_dim] float64."""
        self._sink.stop(now_ns, position)
        self._track.replace(now_ns, self._track.at(now_ns), [(now_ns + 1, position)])
        self._last = position
        if self._chunk is not None:
            self._rows |= dict.fromkeys(self._chunk.rows_from(now_ns), position)

    def _points(self, chunk: Chunk, now_ns: int, points: Sequence[tuple[int, np.ndarray]]) -> None:
        told = {chunk.row_at(time_ns): values for time_ns, values in points}
        self._rows |= {row: values for row, values in told.items() if row is not None}
        first = min(self._rows, default=0)
        for row in range(first):
            # Due before the controller can look. Where a step was limited afterwards, the robot was
            # still on its way there.
            decided = self._inside(chunk.rows[row])
            where = self._track.at(max(now_ns, chunk.due_ns(row)))
            free = self._rows[first] == self._inside(chunk.rows[first])
            self._rows[row] = decided if where is None else np.where(free, decided, where)

    def _inside(self, values: np.ndarray) -> np.ndarray:
        inside: np.ndarray = np.clip(values, self._lower, self._upper)
        return inside
