"""The simulated cameras: what they show, that it is of this episode and of this moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tabletop import TASK
from tabletop.episode import TabletopEpisode
from tabletop.expert import Expert
from tabletop.layout import SIDES
from tabletop.robot import DT_S, PIXELS, VIEWS

from flashrt_core.evaluation.rollout import execute

pytestmark = pytest.mark.usefixtures("opengl")
ROOT = Path(__file__).resolve().parents[2]
FRONT, WRIST = VIEWS


def shown(image: Any, colour: str) -> Any:
    """[H, W] bool: pixels of a block's colour."""
    red, green, blue = np.moveaxis(np.asarray(image, np.int32), -1, 0)
    return {
        "red": (red > 2 * green) & (red > 2 * blue),
        "green": (green > 1.8 * red) & (green > 1.8 * blue),
        "blue": (blue > 1.8 * red) & (blue > 1.5 * green),
        "yellow": (red > 3 * blue) & (green > 2.5 * blue),
    }[colour] & (red + green + blue > 90)


def step(episode: TabletopEpisode, count: int = 1) -> None:
    """Let the expert decide so often."""
    expert = Expert(episode)
    for _ in range(count):
        execute(episode, expert.plan(episode), DT_S, 5)


def same(one: TabletopEpisode, other: TabletopEpisode) -> bool:
    """Whether both see the same."""
    ours, theirs = one.observation(), other.observation()
    return all((np.asarray(ours.images[k]) == theirs.images[k]).all() for k in VIEWS)


def test_an_observation_is_what_the_policy_takes() -> None:
    episode = TASK.start(5)
    step(episode)
    observation = episode.observation()
    assert tuple(observation.images) == tuple(TASK.views) == (FRONT, WRIST)
    for image in observation.images.values():
        assert isinstance(image, np.ndarray)
        assert image.shape == (PIXELS, PIXELS, 3) and image.dtype == np.uint8
    state = observation.state
    assert state is not None and state.dtype == np.float32
    assert state == pytest.approx(episode.scene.joints(episode.data), abs=1e-6)
    assert observation.stamp_ns == 500_000_000


@pytest.mark.parametrize("seed", range(12))
def test_the_front_camera_shows_each_block_where_it_is(seed: int) -> None:
    episode = TASK.start(seed)
    image = episode.observation().images[FRONT]
    for colour in ("red", "green", "blue", "yellow"):
        if colour not in episode.layout.blocks:
            assert shown(image, colour).sum() < 4
            continue
        pixels = np.argwhere(shown(image, colour))
        assert len(pixels) >= 12, colour
        # Right in the picture is +y of the scene; the whole region is in it.
        y = episode.layout.blocks[colour][1]
        assert pixels.mean(0)[1] == pytest.approx(PIXELS * (0.5 + 1.65 * y), abs=5)


def test_left_and_right_are_those_of_the_picture() -> None:
    for seed in range(200_000, 200_004):
        episode = TASK.start(seed)
        colour = episode.layout.colour
        before = np.argwhere(shown(episode.observation().images[FRONT], colour)).mean(0)
        step(episode, 16)
        after = np.argwhere(shown(episode.observation().images[FRONT], colour)).mean(0)
        assert episode.success
        assert (after - before)[1] * SIDES[episode.layout.side] > 6, episode.instruction


def test_the_wrist_camera_shows_the_block_that_is_pushed() -> None:
    for seed in range(200_000, 200_010):
        episode = TASK.start(seed)
        step(episode, 16)
        seen = np.argwhere(shown(episode.observation().images[WRIST], episode.layout.colour))
        assert len(seen) > 100
        beside = seen.mean(0)[1] - PIXELS / 2
        assert beside * SIDES[episode.layout.side] > 3, "it lies in front of the fingers"


def test_pictures_do_not_depend_on_what_was_drawn_before() -> None:
    one, other = TASK.start(3), TASK.start(4)
    alone = one.observation()
    other.observation()
    assert all((np.asarray(alone.images[k]) == one.observation().images[k]).all() for k in VIEWS)
    lights = {TASK.start(seed).observation().images[FRONT][-1].tobytes() for seed in range(4)}
    assert len(lights) == 4, "the light differs between episodes"


def test_a_restored_state_looks_as_it_did() -> None:
    one, other = TASK.start(9), TASK.start(9)
    step(one, 3)
    saved = one.save()
    other.restore(saved)
    assert same(one, other)
    step(one)
    assert not same(one, other)
    one.restore(saved)
    assert same(one, other)
    # To look changes nothing.
    assert (one.save() == saved).all()


def test_a_picture_for_people() -> None:
    picture = TASK.start(2).picture(320, 240)
    assert picture.shape == (240, 320, 3) and picture.dtype == np.uint8
    assert picture.std() > 20


def test_nothing_is_said_when_a_process_ends() -> None:
    code = "from tabletop import TASK; TASK.start(1).observation(); TASK.start(2).picture(64, 48)"
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout + done.stderr == ""


def test_an_opengl_without_driver_is_one_line() -> None:
    code = (
        "from tabletop import TASK; from flashrt_core.errors import FlashRTError\n"
        "try: TASK.start(1).observation()\n"
        "except FlashRTError as error: print(error)"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ
        | {"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_FILENAMES": "/dev/null", "PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout.count("\n") == 1 and done.stderr == ""
    assert "apt-get install -y libegl1" in done.stdout
