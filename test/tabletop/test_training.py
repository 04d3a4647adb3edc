"""A short training on made-up recordings, and the folder that it leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tabletop import train, training
from tabletop.dataset import Dataset, save
from tabletop.demonstrations import Demonstrations, Encoder, load, relative, statistics
from tabletop.learning import draw_times, pixels
from tabletop.robot import VIEWS

from flashrt_core.errors import DeviceError, FlashRTError, OptionError
from flashrt_core.load import LoadOptions, describe
from flashrt_core.load import load as load_policy
from flashrt_core.policies.base import Observation
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.terminal import run_command

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


def test_the_preset_of_other_weights_is_named(trained: Path) -> None:
    for preset in ("base", "tiny"):
        with pytest.raises(OptionError, match="'preset': expected 'small', .*give --preset small"):
            describe(LoadOptions(preset=preset, checkpoint=trained / "policy"))


def test_an_unknown_preset_is_told_to_be_one(trained: Path) -> None:
    with pytest.raises(OptionError, match=r"expected one of .'base', 'small.*give --preset small"):
        describe(LoadOptions(preset="bse", checkpoint=trained / "policy"))


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DeviceError, match="leave --device out to train on the CPU"):
        training._device("cuda")


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
    modes = {path.stat().st_mode for path in (trained / "policy").iterdir()}
    assert modes == {(trained / "data.npz").stat().st_mode}


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


def refusal(folder: Path, *more: str) -> str:
    with pytest.raises(FlashRTError) as caught:
        run(folder, *more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("batch", "0 -1 1.5 x"),
        ("samples", "0"),
        ("workers", "0 5"),  # 5: more than decisions in a batch
        ("threads", "-1"),
        ("held-out", "-0.1 1 nan"),
        ("average", "1 -1 nan"),
        ("rate", "0 1.1 nan inf"),
        ("decay", "-1 nan inf"),
        ("seed", "-1 9223372036854775808"),
        ("minutes", "0 -1 nan inf 1e9"),
        ("steps", "0"),
        ("save-every", "0 nan"),
        ("data", "missing"),
        ("output", "/proc/x"),
    ],
)
def test_options_are_checked_first(option: str, values: str, tmp_path: Path) -> None:
    (tmp_path / "data.npz").touch()  # nothing reads it
    for value in values.split():
        told = refusal(tmp_path, f"--{option}={value}")
        assert told.startswith(f"option '--{option}': expected "), told
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_a_policy_is_replaced_where_that_is_asked_for(trained: Path, tmp_path: Path) -> None:
    assert "'--output': expected a path, got ''" in refusal(tmp_path, "--output", "")
    assert "it is no folder" in refusal(trained, "--output", str(trained / "data.npz"))
    before = (trained / "policy" / "model.safetensors").read_bytes()
    assert "which holds files; name another, go on with --resume" in refusal(trained)
    assert "expected one of them" in refusal(trained, "--resume", "--overwrite")
    assert (trained / "policy" / "model.safetensors").read_bytes() == before
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    run(tmp_path, "--steps", "1", "--overwrite", "--no-figure", "--seed", "7")
    assert (tmp_path / "policy" / "model.safetensors").read_bytes() != before


def test_data_that_is_none(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "data.npz").touch()
    assert "no archive of arrays; give the folder" in refusal(tmp_path)
    save(recordings(1), tmp_path / "data.npz")
    assert "got 0.3 of 1 episodes" in refusal(tmp_path)


def test_a_state_that_does_not_fit_is_one_line(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    assert "give --preset small" in refusal(tmp_path, "--resume", "--preset", "tiny")
    told = refusal(tmp_path, "--resume", "--batch", "8")
    assert told.startswith("option '--batch': expected 4, as in the run of the state "), told
    assert told.endswith("got 8; give --batch 4, or start anew with --overwrite"), told
    assert "leave --float32 out, or" in refusal(tmp_path, "--resume", "--float32")
    assert "0 minutes and 3 steps done" in refusal(tmp_path, "--resume", "--steps", "3")
    save(recordings(moments=7), tmp_path / "more.npz")
    told = refusal(tmp_path, "--resume", "--steps", "4", "--data", str(tmp_path / "more.npz"))
    assert told.startswith("option '--data': expected the 24 decisions that the state "), told
    assert "got 28 of other recordings, " in told and told.endswith("anew with --overwrite"), told
    state = tmp_path / "policy.state.pt"
    for content in (b"", b"junk", state.read_bytes()[:1000]):
        state.write_bytes(content)
        assert "'--resume': expected the state of a run" in refusal(tmp_path, "--resume")
    torch.save({"step": 1}, state)
    assert "start anew with --overwrite" in refusal(tmp_path, "--resume")


def test_a_loss_that_is_not_finite_writes_nothing(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(training, "flow_loss", lambda *_, **__: torch.tensor(torch.nan))
    monkeypatch.setattr(torch.autograd, "grad", lambda _, weights: tuple(weights))
    told = refusal(tmp_path, "--steps", "4", "--resume")
    assert told.startswith("loss of the training at step 4: expected a finite number, got nan")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_interruption_says_what_was_saved(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "data.npz").symlink_to(trained / "data.npz")

    def interrupted(self: training.Training, loss: torch.Tensor) -> None:
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)

    monkeypatch.setattr(training.Training, "_look", interrupted)
    words = ("--steps", "9", "--save-every", "1e-6", "--no-figure")
    assert run_command(lambda: run(tmp_path, *words), "train") == 130
    told = capsys.readouterr().err
    assert told.startswith("train: interrupted; the policy of step 1 is in "), told
    assert torch.load(tmp_path / "policy.state.pt")["step"] == 1


def test_a_run_without_a_state_does_not_go_on(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'--resume': expected the state of a run.*begin anew$"):
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
