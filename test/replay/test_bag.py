"""Recordings are written, read back and checked; what cannot be used is refused in one line."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from flashrt_core.errors import OptionError
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.output import OutputError
from flashrt_ros.replay.parameter_file import ParameterFile, read_parameters
from flashrt_ros.replay.recording import Recorder, write_recording
from flashrt_ros.replay.scene import Scene

STORE = get_typestore(Stores.ROS2_JAZZY)


def contents(path: Path) -> list[tuple[str, int, bytes]]:
    with Bag(path) as bag:
        return [(m.topic, m.time_ns, m.data) for m in bag.messages(list(bag.topics))]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("compressed", [False, True])
def test_every_storage_holds_the_same_messages(
    record: Callable[..., Path], recording: Path, storage: str, compressed: bool
) -> None:
    path = record(storage=storage, compressed=compressed)
    assert contents(path) == contents(recording)


def test_a_single_storage_file_reads_like_its_folder(recording: Path) -> None:
    (file,) = recording.glob("*.mcap")
    assert contents(file) == contents(recording)


def test_same_seed_same_bytes_and_other_seed_others(
    record: Callable[..., Path], recording: Path
) -> None:
    def digest(path: Path) -> str:
        (file,) = path.glob("*.mcap")
        return hashlib.sha256(file.read_bytes()).hexdigest()

    assert digest(record()) == digest(recording)
    assert digest(record(seed=1)) != digest(recording)


def test_rates_stamps_and_order(recording: Path) -> None:
    with Bag(recording) as bag:
        assert {t.name: t.count for t in bag.topics.values()} == {
            "/camera/base/image_raw": 30,
            "/camera/wrist/image_raw": 30,
            "/joint_states": 100,
        }
        messages = list(bag.messages(list(bag.topics)))
    assert all(a.time_ns <= b.time_ns for a, b in itertools.pairwise(messages))
    for topic, period in (("/camera/base/image_raw", 1 / 30), ("/joint_states", 0.01)):
        own = [m for m in messages if m.topic == topic]
        stamps = np.array([m.stamp_ns for m in own])
        delay = np.array([m.time_ns - m.stamp_ns for m in own]) / 1e9
        gaps = np.diff(stamps) / 1e9
        assert (gaps > 0).all() and abs(gaps.mean() - period) < 0.02 * period
        assert 0 < gaps.std() < 0.1 * period, "real sensors jitter, a little"
        assert (delay > 0).all() and delay.max() < 0.01


def test_messages_are_what_the_scene_shows(recording: Path) -> None:
    scene = Scene(0, 96, 64)
    start = 1_767_225_600_000_000_000
    with Bag(recording) as bag:
        images = list(bag.messages(["/camera/wrist/image_raw"]))
        joints = list(bag.messages(["/joint_states"]))
    image = STORE.deserialize_cdr(images[7].data, "sensor_msgs/msg/Image")
    assert (image.encoding, image.height, image.width, image.step) == ("rgb8", 64, 96, 288)
    stamp_s = (images[7].stamp_ns - start) / 1e9
    np.testing.assert_array_equal(image.data.reshape(64, 96, 3), scene.render(1, stamp_s))
    state = STORE.deserialize_cdr(joints[50].data, "sensor_msgs/msg/JointState")
    stamp_s = (joints[50].stamp_ns - start) / 1e9
    np.testing.assert_allclose(state.position, scene.joints(stamp_s)[0], atol=1e-9)
    assert state.name == [f"joint_{i}" for i in range(1, 8)]


def test_an_earlier_recording_is_replaced_and_nothing_else(
    tmp_path: Path, parameters: ParameterFile
) -> None:
    small = Recorder(seconds=0.1, width=16, height=16)
    write_recording(tmp_path / "bag", parameters.inputs, [], small)
    write_recording(tmp_path / "bag", parameters.inputs, [], small)
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(OptionError, match="something else"):
        write_recording(other, parameters.inputs, [], small)
    assert (other / "thesis.txt").read_text() == "precious"


def test_a_recording_that_breaks_off_leaves_what_was_there(
    tmp_path: Path, parameters: ParameterFile
) -> None:
    small = Recorder(seconds=0.5, width=16, height=16)

    def interrupt(done: float) -> None:
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_recording(tmp_path / "bag", parameters.inputs, [], small, interrupt)
    assert not list(tmp_path.iterdir())
    write_recording(tmp_path / "bag", parameters.inputs, [], small)
    before = contents(tmp_path / "bag")
    with pytest.raises(KeyboardInterrupt):
        write_recording(tmp_path / "bag", parameters.inputs, [], Recorder(seed=5), interrupt)
    assert contents(tmp_path / "bag") == before
    assert [p.name for p in tmp_path.iterdir()] == ["bag"]


def test_remains_of_a_killed_recording_are_replaced(
    tmp_path: Path, parameters: ParameterFile
) -> None:
    for folder in ("bag", ".bag.unfinished"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "bag.mcap").write_bytes(b"cut off")
    write_recording(tmp_path / "bag", parameters.inputs, [], Recorder(0.1, width=16, height=16))
    assert contents(tmp_path / "bag")
    assert [p.name for p in tmp_path.iterdir()] == ["bag"]


def test_what_is_no_folder_is_not_replaced(tmp_path: Path, parameters: ParameterFile) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(OptionError, match="something else"):
            write_recording(tmp_path / name, parameters.inputs, [], Recorder(seconds=0.1))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_is_one_line(
    tmp_path: Path, parameters: ParameterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Writer, "write", full)
    with pytest.raises(OutputError, match=r"bag.*No space left") as error:
        write_recording(tmp_path / "bag", parameters.inputs, [], Recorder(0.1, width=16, height=16))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def write_bag(path: Path, topics: dict[str, str], count: int = 1, **options: object) -> Path:
    """A bag with ``count`` strings or joint states on each of ``topics`` (name -> type)."""
    types = STORE.types
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        for name, msgtype in topics.items():
            connection = writer.add_connection(name, msgtype, typestore=STORE)
            for index in range(count):
                if msgtype == "std_msgs/msg/String":
                    message = types[msgtype](data="x")
                else:
                    stamp = types["builtin_interfaces/msg/Time"](sec=1, nanosec=index)
                    header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="")
                    empty = np.zeros(0)
                    message = types[msgtype](
                        header=header, name=[], position=empty, velocity=empty, effort=empty
                    )
                writer.write(
                    connection, 1_000_000_000 + index, STORE.serialize_cdr(message, msgtype)
                )
    return path


def one_line(error: pytest.ExceptionInfo[OptionError], *parts: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, f"{part!r} not in {text!r}"


def test_no_such_bag(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as error:
        Bag(tmp_path / "absent")
    one_line(error, "absent", "nothing there")
    with pytest.raises(OptionError) as error:
        Bag(tmp_path / ("x" * 300))
    one_line(error, "File name too long")


def test_not_a_rosbag2(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OptionError) as error:
        Bag(folder)
    one_line(error, "metadata.yaml")
    old = tmp_path / "old.bag"
    old.write_bytes(b"#ROSBAG V2.0\n")
    with pytest.raises(OptionError) as error:
        Bag(old)
    one_line(error, "rosbags-convert")
    for name, content in (("broken.mcap", b"nonsense" * 40), ("broken.db3", b"nonsense" * 400)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(OptionError) as error:
            Bag(tmp_path / name)
        one_line(error, name, "readable rosbag2")
    (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: [1, 2")
    with pytest.raises(OptionError) as error:
        Bag(folder)
    one_line(error, "folder", "readable rosbag2")


def test_a_folder_without_metadata_names_the_file_in_it(tmp_path: Path, recording: Path) -> None:
    (file,) = recording.glob("*.mcap")
    shutil.copy(file, tmp_path)
    with pytest.raises(OptionError) as error:
        Bag(tmp_path)
    one_line(error, file.name)


def test_an_empty_bag(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "empty", {"/joint_states": "sensor_msgs/msg/JointState"}, count=0)
    with pytest.raises(OptionError) as error:
        Bag(path)
    one_line(error, "empty")


def test_damage_in_the_middle_is_reported(tmp_path: Path, recording: Path) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(recording, path)
    (file,) = path.glob("*.mcap")
    content = bytearray(file.read_bytes())
    content[2000:2600] = bytes(600)
    file.write_bytes(content)
    with pytest.raises(OptionError) as error, Bag(path) as bag:
        list(bag.messages(list(bag.topics)))
    one_line(error, "damaged")


def test_split_and_file_compressed_bags(tmp_path: Path) -> None:
    path = tmp_path / "compressed"
    writer = Writer(path, version=9, storage_plugin=StoragePlugin.SQLITE3)
    writer.set_compression(CompressionMode.FILE, CompressionFormat.ZSTD)
    message = STORE.types["std_msgs/msg/String"](data="x")
    with writer:
        connection = writer.add_connection("/text", "std_msgs/msg/String", typestore=STORE)
        for time_ns in range(1, 11):
            data = STORE.serialize_cdr(message, "std_msgs/msg/String")
            writer.write(connection, time_ns, data)
    with Bag(path) as bag:
        assert [m.time_ns for m in bag.messages(["/text"])] == list(range(1, 11))


def test_missing_topic_lists_the_bag_and_names_the_parameter(
    recording: Path, parameter_path: Path, tmp_path: Path
) -> None:
    text = parameter_path.read_text().replace("/camera/base/image_raw", "/head/image")
    other = tmp_path / "other.yaml"
    other.write_text(text)
    parameters = read_parameters(other)
    with Bag(recording) as bag:
        with pytest.raises(OptionError) as error:
            bag.routes(parameters.inputs, other)
        one_line(
            error, "/head/image", "camera.base.topic", "/camera/base/image_raw", "/joint_states"
        )
        one_line(error, "sensor_msgs/msg/Image", str(other), "--remap")
        routes = bag.routes(parameters.inputs, other, {"/camera/base/image_raw": "/head/image"})
        assert [(r.topic, r.input.topic) for r in routes] == [
            ("/camera/base/image_raw", "/head/image"),
            ("/camera/wrist/image_raw", "/camera/wrist/image_raw"),
            ("/joint_states", "/joint_states"),
        ]
        with pytest.raises(OptionError, match="remap of '/nowhere'"):
            bag.routes(parameters.inputs, other, {"/nowhere": "/head/image"})


def test_a_topic_that_is_remapped_away_no_longer_feeds_its_own_name(
    recording: Path, parameters: ParameterFile
) -> None:
    with Bag(recording) as bag, pytest.raises(OptionError, match=r"camera/base.*no such topic"):
        bag.routes(parameters.inputs, parameters.path, {"/camera/base/image_raw": "/elsewhere"})


def test_a_bag_without_the_joints(tmp_path: Path, parameters: ParameterFile) -> None:
    path = tmp_path / "cameras"
    write_recording(path, parameters.inputs[:2], [], Recorder(seconds=0.2, width=16, height=16))
    with Bag(path) as bag, pytest.raises(OptionError) as error:
        bag.routes(parameters.inputs, parameters.path)
    one_line(error, "/joint_states", "joints.topic", "no such topic")


def test_a_topic_without_messages_counts_as_missing(
    tmp_path: Path, parameters: ParameterFile
) -> None:
    path = tmp_path / "quiet"
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        writer.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=STORE)
        text = writer.add_connection("/text", "std_msgs/msg/String", typestore=STORE)
        message = STORE.types["std_msgs/msg/String"](data="x")
        writer.write(text, 5, STORE.serialize_cdr(message, "std_msgs/msg/String"))
    with Bag(path) as bag, pytest.raises(OptionError, match="none of it"):
        bag.routes(parameters.inputs[2:], parameters.path)


def test_wrong_message_type(tmp_path: Path, parameters: ParameterFile) -> None:
    path = write_bag(tmp_path / "text", {"/joint_states": "std_msgs/msg/String"})
    with Bag(path) as bag, pytest.raises(OptionError) as error:
        bag.routes(parameters.inputs[2:], parameters.path)
    one_line(error, "sensor_msgs/msg/JointState", "std_msgs/msg/String", "joints.topic")


def test_compressed_images_where_raw_ones_are_expected(
    recording: Path, parameter_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "compressed.yaml"
    path.write_text(parameter_path.read_text().replace("encoding: rgb8", "transport: compressed"))
    with Bag(recording) as bag, pytest.raises(OptionError) as error:
        bag.routes(read_parameters(path).inputs, path)
    one_line(error, "camera.base.transport: raw", "/camera/base/image_raw/compressed")
    remaps = {"/camera/base/image_raw": "/camera/base/image_raw/compressed"}
    with Bag(recording) as bag, pytest.raises(OptionError) as error:
        bag.routes(read_parameters(path).inputs, path, remaps)
    one_line(error, "camera.base.transport: raw", "CompressedImage")


def test_custom_types_do_not_hinder(tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("int32 number", "acme_msgs/msg/Number"))
    path = tmp_path / "custom"
    with Writer(path, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        own = writer.add_connection("/number", "acme_msgs/msg/Number", typestore=store)
        number = store.types["acme_msgs/msg/Number"](number=5)
        writer.write(own, 7, store.serialize_cdr(number, "acme_msgs/msg/Number"))
    with Bag(path) as bag:
        assert bag.topics["/number"].msgtype == "acme_msgs/msg/Number"
        assert [m.time_ns for m in bag.messages(["/number"])] == [7]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        (b"/**: \xff\xfe", "not UTF-8"),
        ("{: [", "YAML"),
        ("other_node: {ros__parameters: {cameras: [a]}}", "ros__parameters"),
        ("just text", "ros__parameters"),
        ("/**: {ros__parameters: {rate_hz: fast, cameras: [a]}}", "rate_hz"),
        ("/**: {ros__parameters: {rate_hz: 5.0}}", "cameras"),
    ],
)
def test_parameter_files_that_say_nothing_useful(
    tmp_path: Path, text: str | bytes | None, expected: str
) -> None:
    path = tmp_path / "p.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(OptionError) as error:
        read_parameters(path)
    one_line(error, str(path), expected)
    assert str(error.value).count(str(path)) == 1


def test_parameters_of_the_named_node_count_more(tmp_path: Path, parameter_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        parameter_path.read_text()
        + "\n/policy:\n  ros__parameters:\n    joints.topic: /arm/state\n"
    )
    inputs = read_parameters(path).inputs
    assert [(i.name, i.topic) for i in inputs] == [
        ("base", "/camera/base/image_raw"),
        ("wrist", "/camera/wrist/image_raw"),
        ("joints", "/arm/state"),
    ]
