"""Recorded episodes: what a bag holds, how it is read, the file that holds them all."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from tabletop import TASK
from tabletop.dataset import Dataset, load, read_dataset, read_episode
from tabletop.expert import Expert
from tabletop.generate import ROWS, Disturbance, main, record
from tabletop.recording import EPOCH_NS, TOPICS, EpisodeWriter
from tabletop.robot import DT_S, HORIZON, JOINTS, PIXELS, VIEWS

from flashrt_core.errors import OptionError
from flashrt_core.evaluation.rollout import execute
from flashrt_core.terminal import run_command

pytestmark = pytest.mark.usefixtures("opengl")


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four recorded episodes."""
    folder = tmp_path_factory.mktemp("bags")
    main(["--episodes", "4", "--first-seed", "30", "--output", str(folder)])
    return folder


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_what_is_read_is_what_was_seen_and_planned(tmp_path: Path, storage: str) -> None:
    assert record(40, tmp_path / "bag", storage, disturbed=False)
    found = read_episode(tmp_path / "bag")
    episode = TASK.start(40)
    expert = Expert(episode)
    assert found.prompts == (episode.instruction,)
    for index in range(len(found)):
        seen, plan = episode.observation(), expert.plan(episode)
        for view, slot in enumerate(VIEWS):
            assert (found.images[index, view] == seen.images[slot]).all()
        assert (found.state[index] == seen.state).all()
        assert (found.chunk[index] == plan.astype(np.float32)).all()
        execute(episode, plan, DT_S, ROWS)
    assert episode.done


def test_labels_are_plans_for_the_state_that_was_reached(bags: Path) -> None:
    data = read_dataset(bags)
    assert len(data.names) == 4 and data.episode.tolist() == sorted(data.episode.tolist())
    count = len(data)
    assert data.images.shape == (count, 2, PIXELS, PIXELS, 3) and data.images.dtype == np.uint8
    assert data.state.shape == (count, len(JOINTS)) and data.state.dtype == np.float32
    assert data.chunk.shape == (count, HORIZON, len(JOINTS)) and data.chunk.dtype == np.float32
    for moment in (0, count - 1):
        assert data.prompt(moment) == data.prompts[data.episode[moment]]
    # A disturbed arm is elsewhere than the plan before wanted it, and the next plan begins there.
    assert np.abs(data.chunk[:, 0] - data.state).max() < 0.09
    within = np.diff(data.episode) == 0
    assert np.abs(data.chunk[:-1, ROWS] - data.state[1:])[within].max() > 0.05


def test_disturbances_follow_from_the_seed_and_leave_the_plan_alone() -> None:
    episode = TASK.start(0)
    expert = Expert(episode)
    plan = expert.plan(episode)
    kept = plan.copy()
    runs = []
    for seed in (1, 1, 2):
        disturbance = Disturbance(seed)
        runs.append(np.array([disturbance.apply(plan, expert.shifted) for _ in range(60)]))
    assert (plan == kept).all()
    assert (runs[0] == runs[1]).all() and (runs[0] != runs[2]).any()
    disturbed = (runs[0] != plan).any((1, 2))
    assert 5 < disturbed.sum() < 50


def test_topics_and_stamps(bags: Path) -> None:
    store = get_typestore(Stores.ROS2_JAZZY)
    stamps: dict[str, list[int]] = {}
    with Reader(bags / "episode_000030") as reader:
        assert {c.topic: c.msgtype for c in reader.connections} == TOPICS
        for connection, time_ns, data in reader.messages():
            stamps.setdefault(connection.topic, []).append(time_ns - EPOCH_NS)
            content = store.deserialize_cdr(data, connection.msgtype)
            if connection.topic != "/prompt":
                stamp = content.header.stamp
                assert stamp.sec * 1_000_000_000 + stamp.nanosec == time_ns
            if connection.topic == "/expert/joint_trajectory":
                due = [
                    p.time_from_start.sec + p.time_from_start.nanosec / 1e9 for p in content.points
                ]
                assert due == pytest.approx(np.arange(HORIZON) * DT_S)
                assert tuple(content.joint_names) == JOINTS
    assert stamps.pop("/prompt") == [0]
    assert len({tuple(each) for each in stamps.values()}) == 1
    assert set(np.diff(stamps["/joint_states"])) == {round(ROWS * DT_S * 1e9)}


def test_a_cache_spares_reading_and_grows(
    bags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = tmp_path / "bags", tmp_path / "cache.npz"
    folder.mkdir()
    names = sorted(path.name for path in bags.iterdir())
    for name in names[:3]:
        (folder / name).symlink_to(bags / name)
    first = read_dataset(folder, cache)
    assert equal(load(cache), first)
    read: list[str] = []

    def counted(path: Path) -> Dataset:
        read.append(path.name)
        return read_episode(path)

    monkeypatch.setattr("tabletop.dataset.read_episode", counted)
    assert equal(read_dataset(folder, cache), first) and not read
    (folder / names[3]).symlink_to(bags / names[3])
    grown = read_dataset(folder, cache)
    assert read == names[3:]
    assert equal(grown, read_dataset(bags)) and equal(load(cache), grown)


def test_a_cache_notices_bags_that_changed(bags: Path, tmp_path: Path) -> None:
    folder, cache = tmp_path / "bags", tmp_path / "cache.npz"
    shutil.copytree(bags, folder)
    names = sorted(path.name for path in folder.iterdir())
    first = read_dataset(folder, cache)
    # Under the name of the second there is another recording now, and the third has gone.
    shutil.rmtree(folder / names[1])
    record(77, folder / names[1])
    shutil.rmtree(folder / names[2])
    found = read_dataset(str(folder), str(cache))
    assert equal(found, read_dataset(folder)) and equal(load(cache), found)
    assert found.names == (names[0], names[1], names[3])
    assert found.prompts == (first.prompts[0], TASK.start(77).instruction, first.prompts[3])
    cache.write_bytes(b"PK")
    with pytest.raises(OptionError, match="; remove it, and it is made anew"):
        read_dataset(folder, cache)


def equal(one: Dataset, other: Dataset) -> bool:
    """Whether two hold the same."""
    arrays = ("images", "state", "chunk", "episode")
    return (one.names, one.prompts) == (other.names, other.prompts) and all(
        (getattr(one, name) == getattr(other, name)).all() for name in arrays
    )


def test_episodes_that_are_there_stay(bags: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in bags.rglob("*") if path.is_file()}
    main(["--episodes", "4", "--first-seed", "30", "--output", str(bags)])
    assert "0 recorded (0 with success), 4 were there" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in bags.rglob("*") if path.is_file()} == before


def test_a_recording_that_was_cut_off_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "episode"
    with pytest.raises(KeyboardInterrupt), EpisodeWriter(path) as writer:
        writer.prompt("push")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"recorded episodes, got none; record some"):
        read_dataset(tmp_path)
    cache = tmp_path / "cache.npz"
    cache.write_bytes(b"PK no archive")
    with pytest.raises(OptionError, match=r"in one file, .* got .*no archive.*; give the folder"):
        load(cache)
    np.savez(cache.open("wb"), images=np.zeros(3))
    with pytest.raises(OptionError, match="KeyError.*; give the folder"):
        load(str(cache))
    cache.write_bytes(b"")
    with pytest.raises(OptionError, match="no archive"):
        load(cache)
    with pytest.raises(OptionError, match="got no such folder; record some"):
        read_dataset(str(tmp_path / "missing"), cache)
    store = get_typestore(Stores.ROS2_JAZZY)
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topic = writer.add_connection("/prompt", "std_msgs/msg/String", typestore=store)
        text = store.types["std_msgs/msg/String"](data="push")
        writer.write(topic, 1, store.serialize_cdr(text, "std_msgs/msg/String"))
    with pytest.raises(OptionError, match=r"expected topics .*joint_states.*got /prompt"):
        read_episode(tmp_path / "bag")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--episodes", "0"), "'--episodes': expected a whole number in 1"),
        (("--first-seed", "-1"), "'--first-seed': expected a whole number in 0"),
        (("--first-seed", "99999", "--episodes", "2"), "seeds up to 99999: .*calibration"),
        (("--output", ""), "'--output': expected a path, got ''"),
        (("--output", "/proc/x"), "expected a folder that can be written, got '/proc/x'"),
        (("--out", "x"), "unrecognized arguments"),
    ],
)
def test_options_that_make_no_sense(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=told):
        main(["--episodes", "1", "--output", str(tmp_path / "bags"), *words])
    assert not list(tmp_path.iterdir())


def test_bags_that_were_made_otherwise_are_not_mixed_with(bags: Path, tmp_path: Path) -> None:
    words = ["--first-seed", "33", "--episodes", "2", "--output", str(bags)]
    for other, told in (("--undisturbed", "mcap, undisturbed"), ("--storage=sqlite3", "sqlite3, ")):
        with pytest.raises(OptionError, match=f"expected {told}.*, got mcap, disturbed; name"):
            main([*words, other])
    assert len(list(bags.iterdir())) == 4
    (tmp_path / "episode_000000").write_text("")
    with pytest.raises(OptionError, match=r"episode_000000': expected a recorded episode, got Not"):
        main(["--episodes", "1", "--output", str(tmp_path)])


def test_bags_that_do_not_say_how_they_were_made_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EpisodeWriter(tmp_path / "episode_000007") as writer:
        writer.prompt("push")
    main(["--episodes", "1", "--first-seed", "7", "--output", str(tmp_path)])
    assert "1 were there (1 do not say whether" in capsys.readouterr().out


def test_an_interruption_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seed: int, path: Path, storage: str, *, disturbed: bool) -> bool:
        if seed == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)
        return True

    monkeypatch.setattr("tabletop.generate.record", interrupted)
    words = ["--episodes", "3", "--output", str(tmp_path)]
    assert run_command(lambda: main(words), "generate") == 130
    told = capsys.readouterr().err
    assert told == f"generate: interrupted; 2 recorded in '{tmp_path}', the same command goes on\n"
