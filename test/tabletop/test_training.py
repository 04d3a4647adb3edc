"""A short training on made-up recordings, and the folder that it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tabletop import train
from tabletop.dataset import Dataset, save
from tabletop.demonstrations import Demonstrations, Encoder, load, relative, statistics
from tabletop.learning import draw_times, pixels
from tabletop.robot import VIEWS

from flashrt_core.errors import OptionError
from flashrt_core.load import LoadOptions
from flashrt_core.load import load as load_policy
from flashrt_core.policies.base import Observation
from flashrt_core.policies.pi05 import POLICY

RELATIVE = [True] * 6 + [False]
PROMPTS = ("push the red block to the left", "push the blue block to the right")


def recordings(episodes: int = 4, moments: int = 6) -> Dataset:
    draw = np.random.default_rng(1)
    count = episodes * moments
    state = draw.uniform(-0.5, 0.5, (count, 7)).astype(np.float32)
    way = draw.normal(0.0, 0.02, (count, 10, 7)).cumsum(axis=1)
    return Dataset(
        images=draw.integers(0, 256, (count, 2, 96, 96, 3), dtype=np.uint8),
        state=state,
        chunk=(state[:, None] + way).astype(np.float32),
        episode=np.repeat(np.arange(episodes), moments).astype(np.int32),
        names=tuple(f"episode_{at}" for at in range(episodes)),
        prompts=tuple(PROMPTS[at % 2] for at in range(episodes)),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    save(recordings(), folder / "data.npz")
    run(folder, "--steps", "3")
    return folder


def run(folder: Path, *more: str) -> None:
    train.main(
        [
            *("--data", str(folder / "data.npz"), "--output", str(folder / "policy")),
            *("--batch", "4", "--workers", "2", "--threads", "1", "--held-out", "0.3", *more),
        ]
    )


def test_the_engine_loads_the_folder_and_decides(trained: Path) -> None:
    data = load(trained / "data.npz")
    session = load_policy(
        LoadOptions(preset="small", checkpoint=trained / "policy", threads=1, prompt=PROMPTS[0])
    )
    try:
        assert session.processor.relative == tuple(range(6))
        images = dict(zip(VIEWS, data.images[0], strict=True))
        decision = session.decide(Observation(images, data.state[0]))
    finally:
        session.engine.close()
    assert decision.actions.shape == (10, 7)
    assert np.isfinite(decision.actions).all()
    # What the trainer does to actions is what the engine undoes.
    encoder = make_encoder(data)
    restored = encoder.targets(decision.raw[None, :, :7], data.state[:1])
    np.testing.assert_allclose(decision.actions, restored[0], atol=1e-6)


def test_noise_of_joints_that_the_robot_lacks_changes_nothing(trained: Path) -> None:
    data = load(trained / "data.npz")
    session = load_policy(
        LoadOptions(preset="small", checkpoint=trained / "policy", threads=1, prompt=PROMPTS[0])
    )
    try:
        observation = Observation(dict(zip(VIEWS, data.images[0], strict=True)), data.state[0])
        noise = np.random.default_rng(0).standard_normal((10, 32), dtype=np.float32)
        first = session.decide(observation, noise=noise).actions
        noise[:, 7:] += 3.0
        assert np.array_equal(session.decide(observation, noise=noise).actions, first)
    finally:
        session.engine.close()


def test_what_is_written(trained: Path) -> None:
    weights = load_file(trained / "policy" / "model.safetensors")
    specs = POLICY.tensors(POLICY.config("small"))
    assert {name.removeprefix("model.") for name in weights} == {
        name for name, spec in specs.items() if spec.used
    }
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    assert sum(path.stat().st_size for path in (trained / "policy").iterdir()) < 16e6
    log = json.loads((trained / "policy" / "train_log.json").read_text())
    assert log["runs"][0]["seed"] == 0
    command = log["runs"][0]["command"]
    assert command.startswith("python -m tabletop.train --data data.npz --output policy --batch 4")
    assert log["runs"][0]["trained_on"] == {"decisions": 18, "episodes": 3}
    assert log["points"][-1]["step"] == 3
    assert log["held_out"][-1]["loss"] > 0
    assert (trained / "policy" / "loss.png").stat().st_size > 1000


def test_a_run_goes_on(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "data.npz").symlink_to(trained / "data.npz")
    run(tmp_path, "--steps", "2")
    before = torch.load(tmp_path / "policy.state.pt")
    run(tmp_path, "--steps", "4", "--resume")
    after = torch.load(tmp_path / "policy.state.pt")
    assert (before["step"], after["step"]) == (2, 4)
    log = json.loads((tmp_path / "policy" / "train_log.json").read_text())
    assert len(log["runs"]) == 2
    assert [point["step"] for point in log["points"]] == [2, 4]


def test_a_run_without_a_state_does_not_go_on(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'--resume': expected the state of a run"):
        train.main(
            ["--data", str(trained / "data.npz"), "--output", str(tmp_path / "new"), "--resume"]
        )


def make_encoder(data: Demonstrations) -> Encoder:
    stats = statistics(data.state, relative(data.chunk, data.state, RELATIVE))
    return Encoder(POLICY.config("small", numerics="lerobot"), stats, RELATIVE, tuple(VIEWS))


def test_actions_there_and_back(trained: Path) -> None:
    data = load(trained / "data.npz")
    encoder = make_encoder(data)
    actions = encoder.actions(data.chunk, data.state)
    assert 0.9 < np.abs(actions).max() < 3.0
    back = encoder.targets(actions, data.state)
    np.testing.assert_allclose(back, data.chunk, atol=1e-5)


def test_statistics_of_a_joint_that_rests_leave_room() -> None:
    state = np.zeros((50, 7), np.float32)
    stats = statistics(state, state[:, None])
    assert np.all(stats["action.q99"] - stats["action.q01"] >= 0.02 - 1e-6)


def test_parts_are_whole_episodes_and_stay() -> None:
    def episodes(count: int) -> Demonstrations:
        rows = np.repeat(np.arange(count), 3)
        zeros = np.zeros((3 * count, 7), np.float32)
        return Demonstrations(zeros, zeros, zeros, rows, rows, PROMPTS)

    first, second = episodes(400).split(0.1, seed=3)
    assert not set(first.episode) & set(second.episode)
    assert len(first.state) + len(second.state) == 1200
    assert 20 < len(set(second.episode)) < 60
    fewer = episodes(200).split(0.1, seed=3)[1]
    assert set(fewer.episode) == {at for at in second.episode.tolist() if at < 200}
    assert len(episodes(2).split(0.0, seed=3)[1].state) == 3


def test_times_follow_their_distribution() -> None:
    times = draw_times(20000, 4, torch.Generator().manual_seed(0))
    assert times.min() >= 0.001
    assert times.max() <= 1.0
    assert abs(times.mean() - (0.999 * 0.6 + 0.001)) < 2e-3  # of Beta(1.5, 1): 3/5
    assert abs(((times - 0.001) / 0.999).pow(1.5).std() - 12**-0.5) < 3e-3  # uniform


def test_light_changes_and_pictures_stay_in_range() -> None:
    images = torch.randint(0, 256, (2, 2, 8, 8, 3), dtype=torch.uint8)
    plain = pixels(images)
    assert plain.min() >= -1 and plain.max() <= 1
    other: Any = pixels(images, torch.Generator().manual_seed(1))
    assert other.min() >= -1 and other.max() <= 1
    assert 0.005 < (other - plain).abs().mean() < 0.2
