"""What the robot was told in the last while: what was done with a chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from flashrt_ros.execution.machine import Sink
from flashrt_ros.execution.track import Track

_COMMANDS = 4096  # that are remembered: 40 s at 100 Hz


class Told:
    """A sink that remembers what goes through it.

    Args:
        sink: where it goes.
        now_ns: the node's clock.
    """

    def __init__(self, sink: Sink, now_ns: Callable[[], int]) -> None:
        self._sink = sink
        self._now_ns = now_ns
        self._commands: deque[tuple[int, np.ndarray]] = deque(maxlen=_COMMANDS)
        self._track = Track()

    def clear(self) -> None:
        """Nothing was told."""
        self._commands.clear()
        self._track.clear()

    def at(self, time_ns: int) -> np.ndarray | None:
        """[action_dim] float64, what was in force just before a time; None where nothing was."""
        for told_ns, values in reversed(self._commands):
            if told_ns < time_ns:
                return values
        return self._track.at(time_ns - 1)

    def command(self, values: np.ndarray) -> None:
        """[action_dim] float64, now."""
        self._sink.command(values)
        self._commands.append((self._now_ns(), values))

    def trajectory(self, now_ns: int, points: Sequence[tuple[int, np.ndarray]]) -> None:
        """Points (time, [action_dim] float64), all after ``now_ns``."""
        self._sink.trajectory(now_ns, points)
        self._track.replace(now_ns, self._track.at(now_ns), points)

    def stop(self, now_ns: int, position: np.ndarray) -> None:
        """Come to rest at [action_dim] float64."""
        self._sink.stop(now_ns, position)
        self._track.replace(now_ns, self._track.at(now_ns), [(now_ns + 1, position)])
