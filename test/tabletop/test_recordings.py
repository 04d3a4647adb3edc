"""Recorded episodes: what a bag holds, how it is read, the file that holds them all."""

from __future__ import annotations

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

from flashrt_core.errors import FlashRTError, OptionError
from flashrt_core.evaluation.rollout import execute

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
    with pytest.raises(OptionError, match=r"written here, got .*; remove it"):
        load(cache)
    np.savez(cache.open("wb"), images=np.zeros(3))
    with pytest.raises(OptionError, match="remove it"):
        load(cache)
    store = get_typestore(Stores.ROS2_JAZZY)
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topic = writer.add_connection("/prompt", "std_msgs/msg/String", typestore=store)
        text = store.types["std_msgs/msg/String"](data="push")
        writer.write(topic, 1, store.serialize_cdr(text, "std_msgs/msg/String"))
    with pytest.raises(OptionError, match=r"expected topics .*joint_states.*got /prompt"):
        read_episode(tmp_path / "bag")


@pytest.mark.parametrize("count", [("0", "0"), ("1", "-1")])
def test_counts_that_make_no_sense(count: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(FlashRTError, match="at least 1"):
        main(["--episodes", count[0], "--first-seed", count[1], "--output", str(tmp_path)])
