"""How a joint_trajectory_controller follows trajectories, without ROS and with exact time."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Follower:
    """The set point of some joints.

    A trajectory that is taken replaces the one before. The set point leaves for the first of its
    points that is still to come, from where it is, on straight lines; behind the last it stays.

    Args:
        start: [joints] float64, the first set point.
    """

    def __init__(self, start: Array) -> None:
        self.at: Array = np.array(start, np.float64)
        self._times: Array | None = None
        self._points = self.at[None]

    def take(self, now_ns: int, times_ns: Array, positions: Array) -> bool:
        """Follow a trajectory from now on; False, and nothing changes, where all of it is past.

        Args:
            now_ns: the time of this update.
            times_ns: [n] int64, rising, when each point is due.
            positions: [n, joints] float64.
        """
        ahead = times_ns > now_ns
        if not ahead.any():
            return False
        self._times = np.concatenate([[now_ns], times_ns[ahead]])
        self._points = np.vstack([self.at, positions[ahead]])
        return True

    def update(self, now_ns: int) -> Array:
        """The set point [joints] float64 at a time; times never go back."""
        if self._times is not None:
            # From the beginning on: of nanoseconds since 1970 a float64 keeps some hundred.
            times = self._times - self._times[0]
            at = now_ns - int(self._times[0])
            self.at = np.array([np.interp(at, times, column) for column in self._points.T])
        return self.at
