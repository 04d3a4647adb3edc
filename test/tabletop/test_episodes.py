"""The simulated episode: what counts as success, determinism, saved states, the expert."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tabletop import TASK, backend
from tabletop.episode import SECONDS, TabletopEpisode
from tabletop.expert import CONTACT, LOW, TRAVEL, Expert, velocity
from tabletop.layout import SIDES
from tabletop.robot import ARM, DT_S, HORIZON, JOINTS

from flashrt_core.errors import InputError
from flashrt_core.evaluation.rollout import SUBSTEP_S as STEP_S
from flashrt_core.evaluation.rollout import execute, targets

ROOT = Path(__file__).resolve().parents[2]


def run(episode: TabletopEpisode, seconds: float = SECONDS) -> None:
    """Let the expert go on for a time, as a policy would: half of each chunk."""
    expert, end = Expert(episode), episode.time_s + seconds
    while not episode.done and episode.time_s < end - 1e-9:
        execute(episode, expert.plan(episode), DT_S, HORIZON // 2)


def hold(episode: TabletopEpisode, seconds: float = STEP_S) -> None:
    """Stay where the arm is."""
    episode.advance(episode.scene.joints(episode.data), seconds)


def shift(episode: TabletopEpisode, colour: str, x: float, y: float) -> None:
    """Put a block somewhere else, by hand."""
    start = episode.scene.blocks[colour]
    episode.data.qpos[start : start + 2] += (x, y)


def another(episode: TabletopEpisode) -> str:
    """A block that is there and not the named one."""
    return next(name for name in episode.layout.blocks if name != episode.layout.colour)


def test_the_expert_does_it() -> None:
    times = []
    for seed in range(200_000, 200_040):
        episode = TASK.start(seed)
        run(episode)
        assert episode.success and episode.done, episode.instruction
        times.append(episode.time_s)
    assert np.mean(times) < 4.0


@pytest.mark.parametrize("seed", [200_001, 200_002])
def test_pushing_to_the_other_side_is_no_success(seed: int) -> None:
    episode = TASK.start(seed)
    before, along = episode.score, SIDES[episode.layout.side]
    for _ in range(9):
        shift(episode, episode.layout.colour, 0.0, -0.01 * along)
        hold(episode)
    assert not episode.success and episode.score < before


def test_success_is_of_the_named_block_alone() -> None:
    for moved, sideways, other, success in (
        (0.085, 0.0, 0.0, True),
        (0.075, 0.0, 0.0, False),
        (0.085, 0.055, 0.0, False),
        (0.085, 0.0, 0.045, False),
        (0.085, 0.045, 0.035, True),
        (0.0, 0.0, 0.085, False),
    ):
        episode = TASK.start(3)
        along = SIDES[episode.layout.side]
        shift(episode, episode.layout.colour, sideways, moved * along)
        shift(episode, another(episode), 0.0, other * along)
        hold(episode)
        assert episode.success == success, (moved, sideways, other)


def test_an_episode_ends_after_eight_seconds() -> None:
    episode = TASK.start(1)
    place = episode.scene.joints(episode.data)
    steps = 0
    while not episode.done:
        episode.advance(place, STEP_S)
        steps += 1
    assert steps == round(SECONDS / STEP_S) and not episode.success
    assert episode.time_s == pytest.approx(SECONDS)
    # The arm holds still and nothing that stands on the table moves.
    assert np.abs(episode.scene.joints(episode.data) - place).max() < 1e-3
    for name, (x, y, _) in episode.layout.blocks.items():
        assert np.linalg.norm(episode.scene.block(episode.data, name)[:2] - (x, y)) < 1e-3


def test_the_score_grows_on_the_way() -> None:
    episode = TASK.start(200_003)
    expert, scores = Expert(episode), [episode.score]
    while not episode.done:
        execute(episode, expert.plan(episode), DT_S, HORIZON // 2)
        scores.append(episode.score)
    assert scores[-1] > 2.0 and max(scores[:-1]) < 1.6
    assert scores[-2] > scores[0]


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    for seconds in (0.0, 1.5, 2.0):  # at rest, on the way, pushing
        one = TASK.start(200_005)
        run(one, seconds)
        saved = one.save()
        run(one, 0.5)
        expected = one.save()
        other = TASK.start(200_005)
        run(other, 1.0)
        for episode in (other, one):  # from elsewhere, and from its own future
            episode.restore(saved)
            assert (episode.save() == saved).all()
            run(episode, 0.5)
            assert (episode.save() == expected).all()


def test_a_seed_is_the_same_in_another_process() -> None:
    code = (
        "from test.tabletop.test_episodes import run; from tabletop import TASK\n"
        "episode = TASK.start(11); run(episode, 1.0); print(episode.save().tobytes().hex())"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    episode = TASK.start(11)
    run(episode, 1.0)
    assert done.stdout.strip() == episode.save().tobytes().hex()


def test_what_cannot_be_a_target_is_refused() -> None:
    episode = TASK.start(2)
    place = episode.scene.joints(episode.data)
    saved = episode.save()
    for target in (place[:6], np.full(7, np.nan), np.append(place, 0.0)):
        with pytest.raises(InputError, match="7 finite numbers"):
            episode.advance(target, STEP_S)
    for seconds in (0.0, 0.003, -0.02):
        with pytest.raises(InputError, match="multiple of 0.004"):
            episode.advance(place, seconds)
    with pytest.raises(InputError, match="saved episode"):
        episode.restore(saved[:-1])
    assert (episode.save() == saved).all()


def test_limits_of_the_joints_cut_targets() -> None:
    episode = TASK.start(2)
    for _ in range(50):
        episode.advance(np.full(len(JOINTS), 9.0), STEP_S)
    joints = episode.scene.joints(episode.data)
    assert (joints <= episode.scene.high + 0.05).all()
    assert joints[ARM] == pytest.approx(episode.scene.high[ARM], abs=2e-3)


def test_a_plan_begins_where_the_arm_is_and_keeps_to_a_speed() -> None:
    episode = TASK.start(200_006)
    expert = Expert(episode)
    while not episode.done:
        plan = expert.plan(episode)
        assert plan.shape == (HORIZON, len(JOINTS)) and np.isfinite(plan).all()
        assert np.abs(plan[0] - episode.scene.joints(episode.data)).max() < 0.06
        assert np.abs(np.diff(plan, axis=0)).max() / DT_S < 1.5  # rad/s
        assert (expert.plan(episode) == plan).all(), "a plan has no memory"
        execute(episode, plan, DT_S, HORIZON // 2)


def test_the_law_rises_crosses_descends_and_pushes() -> None:
    block = np.array([0.4, 0.0])
    beside = velocity(np.array([0.4, 0.06, LOW]), block, 1.0)  # low, ahead of the block
    assert beside[2] > 0 and np.linalg.norm(beside[:2]) < 1e-9
    crossing = velocity(np.array([0.4, 0.06, TRAVEL]), block, 1.0)
    assert crossing[1] < -0.1 and abs(crossing[2]) < 0.05
    above = velocity(np.array([0.4, -0.07, TRAVEL]), block, 1.0)
    assert above[2] < -0.1 and np.linalg.norm(above[:2]) < 0.02
    pushing = velocity(np.array([0.41, -CONTACT, LOW]), block, 1.0)
    assert pushing[1] > 0.05 and pushing[0] < 0
    assert velocity(np.array([0.41, CONTACT, LOW]), block, -1.0)[1] == -pushing[1]


def test_the_tool_points_down_where_it_was_sent() -> None:
    for seed in range(10):
        episode = TASK.start(seed)
        place = episode.data.site_xpos[episode.scene.tool]
        assert np.abs(place - episode.layout.tool).max() < 1e-4
        matrix = episode.data.site_xmat[episode.scene.tool].reshape(3, 3)
        assert np.abs(matrix - np.eye(3)).max() < 1e-3


def test_lines_between_rows() -> None:
    chunk = np.arange(HORIZON)[:, None] * np.ones(len(JOINTS))
    between, _ = targets(chunk, DT_S, 2)
    assert between[:, 0] == pytest.approx(np.arange(10) * 0.2)
    assert targets(chunk, DT_S, HORIZON)[0][-1, 0] == HORIZON - 1, "the last row is held"


@pytest.mark.parametrize(
    ("asked", "installed", "chosen"),
    [
        ("", ("libEGL.so.1", "libOSMesa.so.8"), "egl"),
        ("", ("libOSMesa.so.8",), "osmesa"),
        ("", (), "disable"),
        (" EGL ", (), "egl"),
    ],
)
def test_which_opengl_is_chosen(
    asked: str, installed: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(library: str) -> None:
        if library not in installed:
            raise OSError(library)

    monkeypatch.setenv("MUJOCO_GL", asked)
    monkeypatch.setattr(backend.ctypes, "CDLL", find)
    assert backend.choose() == chosen


@pytest.mark.parametrize("backend", ["glfw", "nonsense"])
def test_an_opengl_that_is_of_no_use_is_one_line(backend: str) -> None:
    code = (
        "from flashrt_core.errors import FlashRTError\n"
        "try: from tabletop import TASK; TASK.start(1).observation()\n"
        "except FlashRTError as error: print(error)"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    environment = os.environ | {"MUJOCO_GL": backend, "PYTHONPATH": path}
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.startswith(f"OpenGL for the simulated cameras (MUJOCO_GL={backend}): ")
    assert done.stdout.endswith("; unset it, or set egl or osmesa\n") and done.stderr == ""


def test_a_machine_without_opengl_is_told_what_brings_it() -> None:
    code = (
        "import ctypes, os\n"
        "class CDLL(ctypes.CDLL):\n"
        "    def __init__(self, name, *more, **further):\n"
        "        if name in ('libEGL.so.1', 'libOSMesa.so.8'): raise OSError(name)\n"
        "        super().__init__(name, *more, **further)\n"
        "ctypes.CDLL = CDLL\n"
        "from tabletop import TASK; from flashrt_core.errors import FlashRTError\n"
        "try: TASK.check()\n"
        "except FlashRTError as error: print(error)\n"
        "print(os.environ.get('MUJOCO_GL'))"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    environment = os.environ | {"PYTHONPATH": path}
    environment.pop("MUJOCO_GL", None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    said, asked = done.stdout.splitlines()
    assert said.startswith("OpenGL for the simulated cameras: expected one that needs no display")
    assert "; run: apt-get update && apt-get install -y libegl1" in said
    assert asked == "None", "what this process starts must not take it for the user's"


def test_physics_goes_on_without_opengl() -> None:
    code = (
        "from tabletop import TASK; from flashrt_core.errors import FlashRTError\n"
        "episode = TASK.start(1); print(episode.score)\n"
        "try: episode.observation()\n"
        "except FlashRTError as error: print(error)"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"MUJOCO_GL": "disable", "PYTHONPATH": path},
    )  # fmt: skip
    score, error = done.stdout.splitlines()
    assert float(score) == pytest.approx(TASK.start(1).score)
    assert "got none; run: apt-get" in error and done.stderr == ""
