"""Small recordings and parameter files for the tests of the replay tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flashrt_ros.replay.parameter_file import ParameterFile, read_parameters
from flashrt_ros.replay.recording import Recorder, write_recording

JOINT_NAMES = [f"joint_{i}" for i in range(1, 8)]

PARAMETERS = f"""
/**:
  ros__parameters:
    policy: pi05
    preset: tiny
    prompt: move the block to the ring
    rate_hz: 10.0
    threads: 1
    cameras: [base, wrist]
    camera:
      base: {{topic: /camera/base/image_raw, slot: base_0_rgb, encoding: rgb8}}
      wrist: {{topic: camera/wrist/image_raw, slot: left_wrist_0_rgb}}
    joints:
      topic: /joint_states
      names: {JOINT_NAMES}
    action.dt_s: 0.02
"""


@pytest.fixture(scope="session")
def parameter_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parameter file with two cameras and seven joints."""
    path = tmp_path_factory.mktemp("parameters") / "robot.yaml"
    path.write_text(PARAMETERS)
    return path


@pytest.fixture(scope="session")
def parameters(parameter_path: Path) -> ParameterFile:
    """The same, read."""
    return read_parameters(parameter_path)


@pytest.fixture(scope="session")
def record(
    tmp_path_factory: pytest.TempPathFactory, parameters: ParameterFile
) -> Callable[..., Path]:
    """Writes a small recording for ``parameters``; keywords are those of Recorder."""

    def write(**options: object) -> Path:
        path = tmp_path_factory.mktemp("bags") / "recording"
        given = {"seconds": 1.0, "width": 96, "height": 64, **options}
        write_recording(path, parameters.inputs, JOINT_NAMES, Recorder(**given))
        return path

    return write


@pytest.fixture(scope="session")
def recording(record: Callable[..., Path]) -> Path:
    """One second of small images in an mcap."""
    return record()


@pytest.fixture
def private_graph(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A DDS domain of this test's own, on this host only; yields its number."""
    from flashrt_ros.replay.transport import choose_graph

    graph = choose_graph()
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_STATIC_PEERS"):
        monkeypatch.setenv(name, "")
    graph.enter()
    yield graph.domain
