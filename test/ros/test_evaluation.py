"""Episodes through the node: a made-up task, the tiny policy, two processes, real time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_core.cli.eval import RosOptions
from flashrt_core.errors import OptionError
from flashrt_core.evaluation.command import EvalOptions, plan_for
from flashrt_core.evaluation.task import TaskError, find_task
from flashrt_core.evaluation.tiers import Starts
from flashrt_core.load import LoadOptions
from flashrt_ros.evaluation.command import run_ros_eval
from flashrt_ros.evaluation.live import LiveOptions, run_live
from flashrt_ros.evaluation.loop import SimulatorProcess
from flashrt_ros.evaluation.parameters import parameters_for
from flashrt_ros.evaluation.simulator import SimulatorOptions, acceleration
from flashrt_ros.parameters import build_config
from flashrt_ros.replay.progress import Reporter

pytestmark = pytest.mark.ros
FOLDER = Path(__file__).parents[1] / "evaluation" / "point_arm"
ADDED_MS = 60


@pytest.fixture(autouse=True)
def own_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says of the DDS graph ends with its test."""
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_STATIC_PEERS"):
        monkeypatch.setenv(name, "")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs other tests brings inputs late; here none is too old for that."""
    monkeypatch.setattr("flashrt_ros.evaluation.parameters._AGE_S", 3.0)


def asked(**changes: Any) -> EvalOptions:
    found = find_task(str(FOLDER))
    return EvalOptions(found, plan_for(found, LoadOptions()), Starts(2, 200_000), **changes)


def test_episodes_run_through_the_node_while_it_thinks_ahead(tmp_path: Path) -> None:
    told: list[Any] = []
    ros = RosOptions("temporal_ensemble", str(ADDED_MS), log=tmp_path)
    result = run_ros_eval(asked(), ros, lambda _name, _total: told.append)
    found = json.loads(json.dumps(result.as_dict()))
    (tier,), ((name, loop),) = found["tiers"], found["loops"].items()
    assert name == tier["name"] == f"cpu fp32, temporal_ensemble, +{ADDED_MS} ms"
    assert [one["seed"] for one in tier["outcomes"]] == [200_000, 200_001] and len(told) == 2
    for one in tier["outcomes"]:
        assert one["time_s"] == 3.0 or one["success"]
        # Every half second, and a little sooner for the time that a decision takes.
        assert one["time_s"] / 0.5 <= one["decisions"] <= one["time_s"] / 0.2 + 2
        assert ADDED_MS < one["decide_ms"] < ADDED_MS + 100
    counts = loop["counts"]
    assert counts["decisions"] == sum(one["decisions"] for one in tier["outcomes"])
    assert (loop["safe_actions"], counts["stale"], counts["failed"]) == (0, 0, 0), counts
    assert counts["chunks"] - counts["late_chunks"] <= counts["trajectories"]
    assert set(loop["jumps"]) == {"slide_x", "slide_y"} and loop["acceleration"]["p99"] > 0.0
    assert 0.5 < loop["pace"] <= 1.05, "real time, or as near as this machine comes"
    config = build_config(loop["parameters"])
    assert config.cameras[0].topic == "front_camera/image_raw"
    assert (config.action_dt_s, config.execution.replan_rows) == (0.1, 5)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".log", ".log", ".yaml"]


def test_a_live_demo_leaves_a_film_and_a_report(tmp_path: Path) -> None:
    run_live(LiveOptions(str(FOLDER), 1, tmp_path), Reporter())
    from PIL import Image

    report = json.loads((tmp_path / "live.json").read_text())
    (outcome,) = report["outcomes"]
    assert report["loop"]["safe_actions"] == 0 and report["task"] == "point_arm"
    with Image.open(tmp_path / "live.gif") as film:
        # A picture each 80 ms, and one of the end.
        assert film.n_frames == pytest.approx(outcome["time_s"] / 0.08 + 1, abs=1.5)
        assert film.size[0] == 400


@pytest.mark.parametrize(
    ("ros", "changes", "names"),
    [
        (RosOptions("hurry"), {}, "--strategy.*hurry"),
        (RosOptions(added_delay_ms="soon"), {}, "--added-delay"),
        (RosOptions(), {"forks": 2}, "--forks.*with --ros"),
        (RosOptions(), {"resume": True}, "--resume"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    ros: RosOptions, changes: dict[str, Any], names: str
) -> None:
    with pytest.raises(OptionError, match=names):
        run_ros_eval(asked(**changes), ros, lambda *_: lambda _outcome: None)


def test_the_command_knows_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    from flashrt_ros.cli import app, run

    code = run(lambda: app(["eval", str(FOLDER), "--ros", "--strategy", "hurry"]))
    assert code == 2 and "--strategy" in capsys.readouterr().err


def test_a_file_gives_what_the_run_does_not_fix(tmp_path: Path) -> None:
    options, file = asked(), tmp_path / "mine.yaml"
    text = """
    /**:
      ros__parameters:
        cameras: [top]
        camera.top: {topic: top, slot: base_0_rgb, transport: compressed, max_age_s: 0.5}
        joints: {names: [slide_x, slide_y], max_age_s: 0.4}
        limits: {lower: [-1.0, -1.0], upper: [1.0, 1.0]}
        output.trajectory.topic: mine
        checkpoint: "random:9"
        seed: 4
    """
    file.write_text(text)
    given = {"strategy": "replace", "replan_rows": 3, "file": file}
    config = build_config(parameters_for(options.found, options.plan, **given))
    assert (config.cameras[0].topic, config.cameras[0].transport) == ("top", "raw")
    assert (config.joints_max_age_s, config.seed) == (0.4, 4)
    assert config.execution.upper == (1.0, 1.0)
    assert config.execution.trajectory_topic == "mine"
    assert (config.checkpoint, config.execution.replan_rows) == ("random:3", 3)
    file.write_text(text.replace("[slide_x, slide_y]", "[slide_y, slide_x]"))
    with pytest.raises(OptionError, match=r"joints.names.*slide_x.*slide_y"):
        parameters_for(options.found, options.plan, **given)


def test_the_end_of_a_simulator_is_told_with_its_reason(tmp_path: Path) -> None:
    options = SimulatorOptions(str(tmp_path), {}, "joints", "trajectory", "state", "prompt")
    with (
        pytest.raises(TaskError, match="package folder"),
        SimulatorProcess(options, tmp_path / "simulator.log"),
    ):
        pass


def test_acceleration_is_that_of_the_set_points() -> None:
    time_s = np.arange(50) * 0.02
    smooth = np.stack([3.0 * time_s**2, 4.0 * time_s**2], axis=1)
    found = acceleration(smooth)
    assert found["rms"] == pytest.approx(np.sqrt((6.0**2 + 8.0**2) / 2))
    assert found["p99"] == pytest.approx(found["max"]) == pytest.approx(8.0)
    smooth[25:, 0] += 0.01  # a leap
    assert acceleration(smooth)["max"] == pytest.approx(0.01 / 0.02**2 + 6.0)
    assert set(acceleration(np.zeros((2, 2))).values()) == {0.0}
