"""What a trajectory controller was told, and so where it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Track:
    """The path that a controller follows: straight from point to point, the last one held.

    Like a joint_trajectory_controller without velocities: a new trajectory replaces the old one and
    is entered from where the old one had come to.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing was commanded."""
        self._times = np.empty(0, np.int64)
        self._points = np.empty((0, 0))

    def at(self, time_ns: int) -> np.ndarray | None:
        """[action_dim] float64, the commanded position at a time; None where it is not known."""
        times, points = self._times, self._points
        after = int(np.searchsorted(times, time_ns, side="right"))
        if after == 0:
            return None  # nothing was commanded, or the clock went back
        if after == len(times):
            end: np.ndarray = points[-1]
            return end
        share = (time_ns - int(times[after - 1])) / int(times[after] - times[after - 1])
        between: np.ndarray = points[after - 1] + (points[after] - points[after - 1]) * share
        return between

    def replace(
        self, now_ns: int, start: np.ndarray | None, points: Sequence[tuple[int, np.ndarray]]
    ) -> None:
        """A trajectory was sent.

        Args:
            now_ns: when.
            start: where the controller was; None: unknown.
            points: (time, [action_dim] float64) in order, all after ``now_ns``.
        """
        whole = list(points) if start is None else [(now_ns, start), *points]
        self._times = np.array([time for time, _ in whole], np.int64)
        self._points = np.stack([point for _, point in whole])
