"""Runs of a bag through a real node process: timed, step by step, and refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from flashrt_core.load import load
from flashrt_ros.cli import main
from flashrt_ros.loading import load_options
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.client import PolicyClient
from flashrt_ros.replay.node_process import NodeProcess, NodeStartError
from flashrt_ros.replay.parameter_file import ParameterFile
from flashrt_ros.replay.progress import Phase
from flashrt_ros.replay.run import Settings, run_steps
from flashrt_ros.replay.transport import shipped_demo
from flashrt_ros.replay.verify import observations

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]


def flashrt(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user starts it."""
    environment = {**os.environ, "COLUMNS": "160"}
    command = [sys.executable, "-m", "flashrt_ros.cli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=220
    )


def test_demo_end_to_end(tmp_path: Path) -> None:
    """Of the recording that ships; a checkout without it makes one."""
    shipped = shipped_demo()
    arguments = [] if shipped else ["--seconds", 6]
    done = flashrt("demo", *arguments, "--out", tmp_path)
    assert (tmp_path / "demo.json").is_file(), done.stdout + done.stderr
    report = json.loads((tmp_path / "demo.json").read_text())
    for check in ("full_equals_split", "capsule_bit_exact", "replay_bit_identical"):
        assert report[check] is True
    # 60 are due, or more; a machine that does other work at the same time may miss some.
    assert 10 < report["decisions"] <= 10 * report["recorded_seconds"] + 1
    assert done.returncode == (0 if report["decisions"] >= 50 else 1), done.stdout + done.stderr
    assert report["chunk_shape"] == [10, 7]
    for part in ("ingest", "context", "action", "publish", "total"):
        values = report["latency_ms"][part]
        assert 0 < values["p50"] <= values["p95"] <= values["p99"]
    assert report["latency_ms"]["total"]["p50"] >= report["latency_ms"]["context"]["p50"]
    assert 0 < report["observation_age_ms"]["p50"] < 1000
    assert report["refused"] == 0 and report["seed"] == 0
    assert isinstance(report["dropped"], int)
    assert report["versions"]["torch"] and report["machine"]["cores"] >= 1
    assert report["command"].startswith(" ".join(["flashrt demo", *map(str, arguments)]))
    assert (tmp_path / "demo.png").stat().st_size > 30_000
    assert "Traceback" not in (tmp_path / "demo_node.log").read_text()
    recorded = "expert's plans" if shipped else "recording the synthetic workcell"
    for text in ("full equals split", "observation age", recorded):
        assert text in done.stdout
    if shipped:  # the policy knows what it was told: its chunks are those of the expert, nearly
        for joint in ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1"):
            error = report["expert_error"][joint]
            assert error["chunks"] == report["decisions"]
            assert error["mean"] < 0.5 * error["standing_still"], joint


def run_replay(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    """``flashrt replay`` in this process; status, output, errors."""
    return run_flashrt(capfd, monkeypatch, "replay", *arguments)


def run_flashrt(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    """The command in this process; status, output, errors."""
    monkeypatch.setattr(sys, "argv", ["flashrt", *map(str, arguments)])
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    code = main()
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_step_mode_repeats_exactly_and_follows_the_seed(
    record: Callable[..., Path],
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = {}
    for name, storage, seed in (("a", "mcap", 3), ("b", "sqlite3", 3), ("c", "mcap", 4)):
        out = tmp_path / name
        code, _, err = run_replay(
            capfd, monkeypatch, record(storage=storage), "--params", parameter_path, "--step",
            "--limit", 5, "--out", out, "--seed", seed,
        )  # fmt: skip
        assert code == 0, err
        report = json.loads((out / "replay.json").read_text())
        assert report["decisions"] == 5
        assert report["mode"] == "step"
        assert report["seed"] == seed
        assert report["refused"] == 0
        digests[name] = report["chunks_sha256"]
    assert digests["a"] == digests["b"]
    assert digests["a"] != digests["c"]


def test_the_node_decides_what_a_session_in_this_process_decides(
    recording: Path, parameters: ParameterFile, tmp_path: Path, private_graph: int
) -> None:
    config = parameters.config
    with Bag(recording) as bag:
        settings = Settings(parameters, tmp_path / "node.log")
        _, chunks = run_steps(bag, settings, Phase(), 4)
        routes = bag.routes(parameters.inputs, parameters.path)
        seen = observations(bag, routes, config, config.rate_hz, 4)
    session = load(load_options(config))
    for index, (chunk, observation) in enumerate(zip(chunks, seen, strict=True)):
        decision = session.decide(observation)
        assert chunk.sequence == decision.index == index
        assert chunk.stamp_ns == observation.stamp_ns
        assert chunk.actions.tobytes() == decision.actions.tobytes()
    session.engine.close()


def add_foreign_topics(path: Path, source: Path) -> Path:
    """A copy of the bag ``source`` with a topic of an unknown type and one that nobody needs."""
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("int32 number", "acme_msgs/msg/Number"))
    with Bag(source) as bag, Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        links = {
            topic.name: writer.add_connection(topic.name, topic.msgtype, typestore=store)
            for topic in bag.topics.values()
        }
        number = writer.add_connection("/number", "acme_msgs/msg/Number", typestore=store)
        text = writer.add_connection("/text", "std_msgs/msg/String", typestore=store)
        types: Any = store.types
        for message in bag.messages(list(bag.topics)):
            writer.write(links[message.topic], message.time_ns, message.data)
        value = types["acme_msgs/msg/Number"](number=1)
        writer.write(number, bag.start_ns, store.serialize_cdr(value, "acme_msgs/msg/Number"))
        value = types["std_msgs/msg/String"](data="x")
        writer.write(text, bag.start_ns, store.serialize_cdr(value, "std_msgs/msg/String"))
    return path


@pytest.mark.timed
def test_timed_replay_of_a_bag_with_foreign_topics(
    record: Callable[..., Path],
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bag = add_foreign_topics(tmp_path / "bag", record(seconds=2.0))
    code, out, err = run_replay(
        capfd, monkeypatch, bag, "--params", parameter_path, "--rate", 0.5, "--out", tmp_path
    )
    assert code == 0, err
    assert "skipped /number: message type acme_msgs/msg/Number is not installed" in out
    assert "not played, no input of the node: /text" in out
    report = json.loads((tmp_path / "replay.json").read_text())
    # Decisions follow the recording's clock: 10 Hz of 2 s, at whatever rate it is played.
    assert 5 <= report["decisions"] <= 21
    assert report["player"]["seconds"] == pytest.approx(4.0, abs=0.5)
    assert report["player"]["sent"] == {"base": 60, "wrist": 60, "joints": 200}
    assert report["rate"] == 0.5
    assert report["seed"] == 0, "that of the parameter file"
    assert report["player"]["malformed"] == {}
    assert (tmp_path / "replay.png").is_file()
    assert set(report["chunk_jump"]) == {f"joint_{i}" for i in range(1, 8)}


def test_a_node_that_cannot_be_configured_says_why(
    recording: Path,
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(parameter_path.read_text().replace("preset: tiny", "preset: gigantic"))
    code, _, err = run_replay(capfd, monkeypatch, recording, "--params", broken, "--out", tmp_path)
    assert code == 2
    (line,) = [text for text in err.splitlines() if text.startswith("flashrt: error:")]
    assert "could not be configured" in line
    assert "gigantic" in line
    assert "replay_node.log" in line
    assert "Traceback" not in err


def test_images_of_another_encoding_are_refused_and_reported(
    recording: Path,
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "bgr.yaml"
    other.write_text(parameter_path.read_text().replace("encoding: rgb8", "encoding: bgr8"))
    code, out, err = run_replay(capfd, monkeypatch, recording, "--params", other, "--out", tmp_path)
    assert code == 1, err
    assert "no decision was made" in out
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["decisions"] == 0
    assert report["refused_by_reason"]["base: encoding"] >= 25
    assert report["refused_by_reason"]["decision: stale input"] >= 5


@pytest.mark.parametrize(
    ("bag", "options", "expected"),
    [
        ("nowhere", [], "nothing there"),
        ("parameters", [], "rosbag2"),
        ("recording", ["--rate", "-1"], "--rate"),
        ("recording", ["--rate", "inf"], "--rate"),
        ("recording", ["--rate", "fast"], "0.001 to 1000, or max, got 'fast'"),
        ("recording", ["--rate", "1", "--step"], "--rate"),
        ("recording", ["--limit", "0"], "--limit"),
        ("recording", ["--limit", "5"], "add --step"),
        ("recording", ["--seed", "-1"], "0 to 9223372036854775807"),
        ("recording", ["--seed", "99999999999999999999999"], "0 to 9223372036854775807"),
        ("recording", ["--out", "/dev/null/x"], "/dev/null/x"),
        ("recording", ["--remap", "/a"], "--remap"),
        ("recording", ["--remap", "/joint_states:=/arm"], "joints.topic"),
        ("recording", ["--domain", "4000"], "domain"),
    ],
)
def test_user_errors_are_one_line(
    recording: Path,
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    bag: str,
    options: list[str],
    expected: str,
) -> None:
    paths = {"recording": recording, "parameters": parameter_path, "nowhere": tmp_path / "nowhere"}
    code, _, err = run_replay(
        capfd, monkeypatch, paths[bag], "--params", parameter_path, "--out", tmp_path, *options
    )
    assert code == 2
    assert err.count("\n") == 1 and err.startswith("flashrt: error: ")
    assert expected in err


def test_a_node_that_ends_is_noticed(
    parameter_path: Path, tmp_path: Path, private_graph: int
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("/**: {ros__parameters: {joints.names: [1, two, 3.5]}}")
    with (
        NodeProcess(bad, tmp_path / "node.log") as process,
        PolicyClient("/policy") as client,
        pytest.raises(NodeStartError) as error,
    ):
        process.wait_ready(client, 30.0)
    assert "ended with exit status" in str(error.value)
    assert "\n" not in str(error.value)


def test_stopping_a_node_ends_its_process(
    parameter_path: Path, tmp_path: Path, private_graph: int
) -> None:
    with (
        NodeProcess(parameter_path, tmp_path / "node.log") as process,
        PolicyClient("/policy") as client,
    ):
        process.wait_ready(client)
        process.check()
        assert process.stop() == 0
        with pytest.raises(NodeStartError, match="exit status 0"):
            process.check()


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "it printed nothing"),
        ("[INFO] [1.5] [policy]: hello\n", "hello"),
        (
            "[ERROR] [1.5] [policy]: configure failed: no\n[INFO] [1.6] [policy]: bye\n",
            "configure failed: no",
        ),
        (
            "Traceback (most recent call last):\n  x\nImportError: no torch\n",
            "ImportError: no torch",
        ),
    ],
)
def test_reason_from_the_log(tmp_path: Path, log: str, reason: str) -> None:
    path = tmp_path / "node.log"
    path.write_text(log)
    assert NodeProcess(tmp_path / "p.yaml", path).reason() == reason


def test_the_demo_leaves_a_folder_of_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "demo_bag"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    done = flashrt("demo", "--seconds", 2, "--out", tmp_path)
    assert done.returncode == 2
    assert "something else" in done.stderr and "Traceback" not in done.stderr
    assert (folder / "notes.txt").read_text() == "mine"
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--seed", "-1"], "0 to 9223372036854775807"),
        (["--seconds", "0.05"], "at least 1.5"),
        (["--seconds", "1.49"], "at least 1.5"),
        (["--seconds", "nan"], "600"),
        (["--out", "/dev/null/x"], "/dev/null/x"),
        (["--out", "/proc/x"], "/proc/x"),
    ],
)
def test_user_errors_of_the_demo_are_one_line_and_come_before_the_recording(
    options: list[str],
    expected: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_flashrt(capfd, monkeypatch, "demo", *options)
    assert code == 2
    assert err.count("\n") == 1 and err.startswith("flashrt: error: ")
    assert expected in err
    assert "recording" not in out
    assert not list(tmp_path.rglob("*.mcap"))


def test_the_shortest_demo_runs_its_checks(tmp_path: Path) -> None:
    done = flashrt("demo", "--seconds", 1.5, "--out", tmp_path)
    assert done.returncode == 1, "fewer than 50 decisions"
    assert "at least 50 expected" in done.stdout and "Traceback" not in done.stderr
    report = json.loads((tmp_path / "demo.json").read_text())
    for check in ("full_equals_split", "capsule_bit_exact", "replay_bit_identical"):
        assert report[check] is True


def spoil(path: Path, source: Path) -> Path:
    """A copy of the bag ``source`` where every third joint state has two bytes, and one image."""
    store = get_typestore(Stores.ROS2_JAZZY)
    count = 0
    with Bag(source) as bag, Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        links = {
            topic.name: writer.add_connection(topic.name, topic.msgtype, typestore=store)
            for topic in bag.topics.values()
        }
        for message in bag.messages(list(bag.topics)):
            count += message.topic == "/joint_states"
            broken = count == 50 if "base" in message.topic else count % 3 == 0
            broken = broken and "wrist" not in message.topic
            data = message.data[:2] if broken else message.data
            writer.write(links[message.topic], message.time_ns, data)
    return path


@pytest.mark.parametrize("options", [["--step", "--limit", "4"], []])
def test_malformed_messages_are_left_out_and_counted(
    record: Callable[..., Path],
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
) -> None:
    bag = spoil(tmp_path / "bag", record(seconds=2.0))
    code, out, err = run_replay(
        capfd, monkeypatch, bag, "--params", parameter_path, "--out", tmp_path, *options
    )
    assert code == 0 and "Traceback" not in err, err
    assert "malformed" in out
    report = json.loads((tmp_path / "replay.json").read_text())
    malformed, sent = report["player"]["malformed"], report["player"]["sent"]
    if options:
        assert report["decisions"] == 4
        assert malformed["joints"] >= 10
    else:
        assert malformed["joints"] == 66 and sent["joints"] == 200 - 66
        assert sent["base"] + malformed.get("base", 0) == 60
        assert report["decisions"] >= 5
    assert "Traceback" not in (tmp_path / "replay_node.log").read_text()
