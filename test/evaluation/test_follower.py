"""How the simulated controller follows trajectories, without ROS."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.evaluation.follower import Follower

MS = 1_000_000
BASE = 1_767_225_600_000_000_000  # ns: a float64 would lose the last hundred


def points(*pairs: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Times in ms and positions of one joint; the second joint mirrors it."""
    times = np.array([BASE + at * MS for at, _ in pairs], np.int64)
    return times, np.array([[value, -value] for _, value in pairs])


def test_points_are_reached_at_their_times_on_straight_lines() -> None:
    arm = Follower(np.zeros(2))
    assert arm.update(BASE).tolist() == [0.0, 0.0]
    assert arm.take(BASE, *points((100, 1.0), (200, 3.0)))
    found = [arm.update(BASE + at * MS)[0] for at in (0, 50, 100, 175, 200, 500)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 2.5, 3.0, 3.0])
    assert arm.at.tolist() == [3.0, -3.0]


def test_a_new_one_begins_where_the_arm_is_and_leaves_out_what_is_past() -> None:
    arm = Follower(np.zeros(2))
    arm.take(BASE, *points((100, 1.0)))
    arm.update(BASE + 50 * MS)
    assert arm.take(BASE + 50 * MS, *points((40, 9.0), (50, 9.0), (150, 0.0)))
    found = [arm.update(BASE + at * MS)[0] for at in (50, 100, 150)]
    assert found == pytest.approx([0.5, 0.25, 0.0])


def test_what_is_wholly_past_is_rejected() -> None:
    arm = Follower(np.ones(2))
    assert not arm.take(BASE + 300 * MS, *points((100, 5.0), (300, 5.0)))
    assert arm.update(BASE + 400 * MS).tolist() == [1.0, 1.0]
