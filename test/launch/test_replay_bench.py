"""launch/replay_bench.launch.py: the arguments become one command line, which ends the launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashrt_core.errors import OptionError

from .recording import Described, describe

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from flashrt_ros.replay.parameter_file import read_parameters  # noqa: E402
from flashrt_ros.replay.recording import Recorder, write_recording  # noqa: E402


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Described:
    monkeypatch.delitem(sys.modules, "flashrt_ros.replay.launching", raising=False)
    made = describe(ROOT / "launch" / "replay_bench.launch.py", monkeypatch)
    sys.modules.pop("flashrt_ros.replay.launching", None)
    return made


def test_arguments(described: Described) -> None:
    assert "default_value" not in described.arguments["bag"], "it must be given"
    assert described.arguments["step"]["choices"] == ["true", "false"]
    assert all(argument["description"] for argument in described.arguments.values())
    params = described.arguments["params_file"]["default_value"]
    assert Path(params) == ROOT / "config" / "pi05_tiny.yaml"


def command_of(described: Described, **given: str) -> list[str]:
    (process,) = described.start(**given)
    assert process.kind == "ExecuteProcess"
    (end,) = process.kwargs["on_exit"]
    assert end.kind == "Shutdown"
    command: list[str] = process.kwargs["cmd"]
    return command


def test_the_command(described: Described, tmp_path: Path) -> None:
    bag = str(tmp_path)
    plain = command_of(described, bag=bag)
    params = str(ROOT / "config" / "pi05_tiny.yaml")
    assert plain[1:] == [
        "-m", "flashrt_ros.cli", "replay", bag, "--params", params, "--out", "out", "--rate", "1",
    ]  # fmt: skip
    asked = command_of(
        described, bag=bag, step="true", seed="3", domain="7", remap="/a:=/b,/c:=/d", out="x"
    )
    assert asked[-9:] == [
        "--step", "--seed", "3", "--domain", "7", "--remap", "/a:=/b", "--remap", "/c:=/d",
    ]  # fmt: skip
    assert command_of(described, bag=bag, rate="max")[-2:] == ["--rate", "max"]


def test_what_is_not_there_is_named(described: Described, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="launch argument 'bag': expected a path, got .*nowhere"):
        described.start(bag=str(tmp_path / "nowhere"))
    with pytest.raises(OptionError, match="launch argument 'params_file'"):
        described.start(bag=str(tmp_path), params_file=str(tmp_path / "nowhere"))


@pytest.mark.timeout(240)
def test_the_command_runs(described: Described, tmp_path: Path) -> None:
    """What launch would start, started: four times the recorded timing."""
    file = read_parameters(ROOT / "config" / "pi05_tiny.yaml")
    options = Recorder(seconds=2.0, width=96, height=64)
    write_recording(tmp_path / "bag", file.inputs, file.config.joints_names, options)
    command = command_of(described, bag=str(tmp_path / "bag"), rate="4", out=str(tmp_path / "out"))
    environment = {**os.environ, "COLUMNS": "160"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=220
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert report["rate"] == 4.0 and report["decisions"] > 0
    assert report["player"]["seconds"] < 1.5
