"""Bags of image_transport's compressed topics: replayed as they are, and the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer

pytest.importorskip("cv2")

import cv2

from flashrt_core.load import load
from flashrt_ros.loading import load_options
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.parameter_file import COMPRESSED_TYPE, IMAGE_TYPE, read_parameters
from flashrt_ros.replay.progress import Phase
from flashrt_ros.replay.run import Settings, run_steps
from flashrt_ros.replay.verify import bit_identical, observations

from .foreign import STORE
from .test_node_runs import run_replay

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]


def compressed_bag(path: Path, source: Path) -> Path:
    """The recording ``source`` as a robot with image_transport would have made it."""
    with Bag(source) as bag, Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        links = {}
        for topic in bag.topics.values():
            images = topic.msgtype == IMAGE_TYPE
            name = f"{topic.name}/compressed" if images else topic.name
            kind = COMPRESSED_TYPE if images else topic.msgtype
            links[topic.name] = writer.add_connection(name, kind, typestore=STORE)
        for message in bag.messages(list(bag.topics)):
            data = message.data
            if bag.topics[message.topic].msgtype == IMAGE_TYPE:
                data = _compressed(data)
            writer.write(links[message.topic], message.time_ns, data)
    return path


def _compressed(data: bytes) -> bytes:
    raw = STORE.deserialize_cdr(data, IMAGE_TYPE)
    pixels = raw.data.reshape(raw.height, raw.width, 3)
    jpeg = cv2.imencode(".jpeg", np.ascontiguousarray(pixels[:, :, ::-1]))[1]
    kind = STORE.types[COMPRESSED_TYPE]
    made = kind(header=raw.header, format="rgb8; jpeg compressed bgr8", data=jpeg.reshape(-1))
    return bytes(STORE.serialize_cdr(made, COMPRESSED_TYPE))


@pytest.fixture
def compressed_parameters(parameter_path: Path, tmp_path: Path) -> Path:
    text = parameter_path.read_text().replace("encoding: rgb8", "transport: compressed")
    text = text.replace("slot: left_wrist_0_rgb", "slot: left_wrist_0_rgb, transport: compressed")
    path = tmp_path / "compressed.yaml"
    path.write_text(text)
    return path


def test_step_mode_repeats_to_the_bit(
    recording: Path, compressed_parameters: Path, tmp_path: Path, private_graph: int
) -> None:
    bag_path = compressed_bag(tmp_path / "bag", recording)
    parameters = read_parameters(compressed_parameters)
    runs = []
    with Bag(bag_path) as bag:
        routes = bag.routes(parameters.inputs, parameters.path)
        for name in ("one", "two"):
            settings = Settings(parameters, tmp_path / f"{name}.log")
            runs.append(run_steps(bag, settings, Phase(), 6)[1])
        seen = observations(bag, routes, parameters.config, parameters.config.rate_hz, 6)
    assert bit_identical(*runs) and len(runs[0]) == 6
    session = load(load_options(parameters.config))
    for chunk, observation in zip(runs[0], seen, strict=True):
        assert chunk.actions.tobytes() == session.decide(observation).actions.tobytes()
    session.engine.close()


@pytest.mark.timed
def test_timed_at_twice_the_recording(
    record: Callable[..., Path],
    compressed_parameters: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bag = compressed_bag(tmp_path / "bag", record(seconds=4.0))
    code, _, err = run_replay(
        capfd, monkeypatch, bag, "--params", compressed_parameters, "--rate", "2",
        "--out", tmp_path,
    )  # fmt: skip
    assert code == 0, err
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["player"]["seconds"] == pytest.approx(2.0, abs=0.4)
    assert report["decisions"] >= 10 and report["refused_by_reason"].keys() <= {
        "decision: stale input"
    }
