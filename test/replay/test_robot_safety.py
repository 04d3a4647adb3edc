"""A replay on a robot's own domain: it moves nothing, and drives no node but its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lifecycle_msgs.msg import State
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.replay.client import PolicyClient
from flashrt_ros.replay.node_process import NodeProcess
from test.replay.test_endings import wait_until
from test.replay.test_node_runs import run_flashrt, run_replay

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]

OUTPUTS = """
    output.commands.topic: /commands
    output: {trajectory.topic: /trajectory, rate_hz: 50.0}
    execution.interpolation: hold
    limits: {lower: [-9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0], on_violation: stop}
    safe.action: stop
"""


@pytest.mark.parametrize("options", [["--rate", "0.5"], ["--step", "--limit", "4"]])
def test_no_controller_hears_of_a_replay(
    recording: Path,
    parameter_path: Path,
    tmp_path: Path,
    private_graph: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
) -> None:
    heard: list[Any] = []
    file = tmp_path / "robot.yaml"
    file.write_text(parameter_path.read_text() + OUTPUTS)
    with PolicyClient("/policy") as listener:
        for kind, topic in ((Float64MultiArray, "/commands"), (JointTrajectory, "/trajectory")):
            listener.node.create_subscription(kind, topic, heard.append, 100)

        def activate(process: NodeProcess, client: PolicyClient) -> None:
            """Not before the listener would hear: a busy machine discovers late."""
            assert wait_until(lambda: listener.node.count_publishers("/policy/action_chunk"), 20.0)
            activated(process, client)

        activated = NodeProcess.activate
        monkeypatch.setattr(NodeProcess, "activate", activate)
        code, out, err = run_replay(
            capfd, monkeypatch, recording, "--params", file, "--domain", private_graph,
            "--out", tmp_path / "out", *options,
        )  # fmt: skip
        assert code == 0, err
        assert wait_until(lambda: len(listener.chunks) > 3, 5.0) and heard == []
    said = "outputs are off in a replay; without effect: output.commands.topic, output.trajectory"
    assert said in out.replace("\n", " ")
    report = json.loads((tmp_path / "out" / "replay.json").read_text())
    left_out = report["parameters_without_effect"]
    assert {name.split(".")[0] for name in left_out} == {"output", "execution", "limits", "safe"}
    given = (tmp_path / "out" / "replay_node.yaml").read_text()
    assert "camera.base.topic" in given and not any(name in given for name in left_out)


@pytest.mark.parametrize("command", ["replay", "demo"])
def test_a_node_that_runs_already_is_not_driven(
    recording: Path,
    parameter_path: Path,
    tmp_path: Path,
    private_graph: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    words = [recording, "--params", parameter_path] if command == "replay" else []
    with (
        NodeProcess(parameter_path, tmp_path / "node.log") as process,
        PolicyClient("/policy") as client,
    ):
        process.wait_ready(client)
        code, _, err = run_flashrt(
            capfd, monkeypatch, command, *words, "--domain", private_graph, "--out", tmp_path / "o"
        )
        assert client.state() == State.PRIMARY_STATE_UNCONFIGURED
    assert code == 2 and err.count("\n") == 1
    assert f"node '/policy': expected none on domain {private_graph}, got one that runs" in err
    assert "stop it or use another --domain" in err
