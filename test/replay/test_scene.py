"""The synthetic scene moves, repeats by seed, and looks different to each camera."""

import numpy as np
import pytest

from flashrt_ros.replay.scene import ARM_JOINTS, Scene


def test_same_seed_same_pixels_and_other_seed_others() -> None:
    one, same, other = Scene(3, 96, 64), Scene(3, 96, 64), Scene(4, 96, 64)
    for view in range(4):
        np.testing.assert_array_equal(one.render(view, 1.5), same.render(view, 1.5))
    assert (one.render(1, 1.5) != other.render(1, 1.5)).any()


@pytest.mark.parametrize("view", [0, 1, 2, 3])
def test_picture_moves_but_only_a_little_from_frame_to_frame(view: int) -> None:
    scene = Scene(0, 160, 120)
    now, next_frame, later = (scene.render(view, t).astype(int) for t in (2.0, 2.0 + 1 / 30, 5.0))
    step = np.abs(next_frame - now).mean()
    assert 0 < step < np.abs(later - now).mean(), "neighbours in time must resemble each other"
    # Noise has no resemblance between neighbouring pixels; a picture has.
    assert np.abs(np.diff(now, axis=1)).mean() < 12


def test_views_differ() -> None:
    scene = Scene(0, 160, 120)
    pictures = [scene.render(view, 1.0).astype(int) for view in range(4)]
    for i in range(4):
        for j in range(i):
            assert np.abs(pictures[i] - pictures[j]).mean() > 5


def test_the_block_is_where_the_camera_sees_orange() -> None:
    scene = Scene(0, 320, 240)
    for t in (0.5, 3.0):
        image = scene.render(0, t).astype(int)
        orange = (image[:, :, 0] > 60) & (image[:, :, 2] < 0.35 * image[:, :, 0])
        rows, cols = np.nonzero(orange)
        assert len(rows) > 20
        (expected,), _ = scene.camera(0, t).project(scene.block(t)[0][None])
        assert np.hypot(cols.mean() - expected[0], rows.mean() - expected[1]) < 6


def test_velocities_are_the_derivative_of_positions() -> None:
    scene = Scene(7, 32, 32)
    for count in (3, ARM_JOINTS, 9):
        h = 1e-5
        before, after = scene.joints(1.0 - h, count)[0], scene.joints(1.0 + h, count)[0]
        position, velocity = scene.joints(1.0, count)
        assert position.shape == (count,)
        np.testing.assert_allclose((after - before) / (2 * h), velocity, atol=1e-6)
        assert np.abs(velocity).max() < 2.0, "rad/s, as a real arm would move"
