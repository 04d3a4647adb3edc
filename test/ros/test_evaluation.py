"""Episodes through the node: a made-up task, the tiny policy, two processes, real time."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("rclpy")

from flashrt_core.cli.eval import RosOptions
from flashrt_core.errors import DeviceError, OptionError
from flashrt_core.evaluation.command import EvalOptions, Result, about, plan_for
from flashrt_core.evaluation.own_code import CheckedTask
from flashrt_core.evaluation.rollout import Outcome
from flashrt_core.evaluation.task import TaskError, find_task
from flashrt_core.evaluation.tiers import Starts
from flashrt_core.load import LoadOptions
from flashrt_ros.evaluation.command import _folder, run_ros_eval
from flashrt_ros.evaluation.live import LiveOptions, run_live
from flashrt_ros.evaluation.loop import Loop, LoopResult, SimulatorProcess
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


@pytest.mark.timed
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


@pytest.mark.timed
def test_a_live_demo_leaves_a_film_and_a_report(tmp_path: Path) -> None:
    run_live(LiveOptions(str(FOLDER), 1, tmp_path), Reporter())
    from PIL import Image, ImageSequence

    report = json.loads((tmp_path / "live.json").read_text())
    (outcome,) = report["outcomes"]
    assert report["loop"]["safe_actions"] == 0 and report["task"] == "point_arm"
    with Image.open(tmp_path / "live.gif") as film:
        # A picture each 80 ms, the last for 0.9 s; of two that are equal one is shown for longer.
        times = [frame.info["duration"] for frame in ImageSequence.Iterator(film)]
        assert sum(times) == pytest.approx(outcome["time_s"] * 1e3 + 900, abs=1.5 * 80)
        assert film.n_frames > 5 and film.size[0] == 400


@pytest.mark.parametrize(
    ("ros", "changes", "names"),
    [
        (RosOptions("hurry"), {}, "--strategy.*one or several of replace, .*got hurry"),
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


def test_options_of_the_other_kind_of_demo(capsys: pytest.CaptureFixture[str]) -> None:
    from flashrt_ros.cli import app, run

    for words, message in (
        (["--live", "--seconds", "3"], "option '--seconds': expected a recording"),
        (["--live", "--seed", "-1"], "option '--seed': expected 0 to"),
        (["--episodes", "3"], "option '--episodes': expected --live beside it"),
        (["--task", "tabletop"], "option '--task': expected --live beside it"),
    ):
        code = run(lambda words=words: app(["demo", *words]))  # type: ignore[misc]
        assert code == 2 and message in capsys.readouterr().err


def test_a_live_demo_begins_at_the_seed_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashrt_ros.cli import app, run

    asked: list[LiveOptions] = []
    monkeypatch.setattr(
        "flashrt_ros.evaluation.live.run_live", lambda options, _: asked.append(options) or 0
    )
    for words in (["--seed", "7"], []):
        assert run(lambda words=words: app(["demo", "--live", *words])) == 0  # type: ignore[misc]
    assert [each.first_seed for each in asked] == [7, 200_000]


@pytest.mark.parametrize("live", [True, False])
def test_what_the_machine_lacks_is_said_before_a_process_starts(
    live: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lacking(_task: object) -> None:
        raise DeviceError("OpenGL", expected="some", got="none", remedy="apt-get install it")

    monkeypatch.setattr(CheckedTask, "check", lacking)
    monkeypatch.setattr(SimulatorProcess, "__enter__", lambda _: pytest.fail("started"))
    with pytest.raises(DeviceError, match="OpenGL: expected some, got none; apt-get install it$"):
        if live:
            run_live(LiveOptions(str(FOLDER), 1, tmp_path / "out"), Reporter())
        else:
            run_ros_eval(asked(), RosOptions(), lambda *_: lambda _outcome: None)
    assert not (tmp_path / "out").exists()


def test_the_log_of_a_simulator_that_ended_is_kept(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "gone_arm")
    found = find_task(str(tmp_path / "gone_arm"))
    options = EvalOptions(found, plan_for(found, LoadOptions()), Starts(1, 200_000))
    (found.folder / "__init__.py").unlink()
    with pytest.raises(TaskError) as error:
        run_ros_eval(options, RosOptions(), lambda *_: lambda _outcome: None)
    said = str(error.value)
    assert said.startswith("task: expected a shipped one (") and " ... " not in said
    log = Path(said.rpartition("; see ")[2])
    try:
        assert "simulator: error: task: expected a shipped one" in log.read_text()
    finally:
        shutil.rmtree(log.parent)


def test_folders_of_logs_go_unless_an_error_names_them() -> None:
    with _folder(None) as quiet:
        assert quiet.is_dir()
    with pytest.raises(TaskError), _folder(None) as other:
        raise TaskError("something else")
    with pytest.raises(KeyboardInterrupt), _folder(None) as left:
        raise KeyboardInterrupt
    assert not any(each.exists() for each in (quiet, other, left))


def test_settings_that_ended_before_an_error_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Outcome(200_000, "go", True, 3.0, 1.0, 9, 12.3)

    def run_loop(loop: Loop, seeds: Sequence[int], told: Callable[[Outcome], None]) -> LoopResult:
        told(one)
        if loop.added_s:
            raise TaskError("the simulator", expected="to run", got="an end")
        told(one)
        parts = {"total": {}, "observation age": {}}
        counts = dict.fromkeys(("decisions", "stale", "late_chunks", "skipped_rows"), 0)
        return LoopResult([one, one], counts, 0, parts)

    monkeypatch.setattr("flashrt_ros.evaluation.command.run_loop", run_loop)
    options = asked()
    result = Result(about(options))
    with pytest.raises(TaskError, match="an end"):
        ros = RosOptions(added_delay_ms="0,50")
        run_ros_eval(options, ros, lambda *_: lambda _outcome: None, result)
    whole, part = result.tiers
    assert (whole.success.total, part.success.total) == (2, 1)
    assert part.name == "cpu fp32, replace, +50 ms" and part.paired is not None
    assert list(result.as_dict()["loops"]) == ["cpu fp32, replace"] and len(result.tables) == 1
    console = Console(file=io.StringIO(), width=80)
    result.show(console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "through the node" in shown and max(map(len, shown.splitlines())) <= 80


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
    back = build_config(
        parameters_for(options.found, replace(options.plan, policy="lingbot_va"), **given)
    )
    assert (back.rate_hz, back.execution.replan_rows) == (50.0, 0), "whole chunks"
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


def test_an_episode_may_last_as_long_as_its_time_goes_on(tmp_path: Path) -> None:
    options = SimulatorOptions(str(tmp_path), {}, "joints", "trajectory", "state", "prompt")
    simulator = SimulatorProcess(options, tmp_path / "simulator.log")
    simulator._process = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    signs = [json.dumps({"time_s": at}) for at in range(4)]

    def go_on() -> None:
        if signs:
            simulator._lines.put(signs.pop())

    begun = time.monotonic()
    with pytest.raises(TaskError, match="expected the end within 0.15 s, got none; look; see "):
        simulator.answer(0.15, go_on, "the end", "look; ")
    assert not signs and time.monotonic() - begun > 0.5


def test_acceleration_is_that_of_the_set_points() -> None:
    time_s = np.arange(50) * 0.02
    smooth = np.stack([3.0 * time_s**2, 4.0 * time_s**2], axis=1)
    found = acceleration(smooth)
    assert found["rms"] == pytest.approx(np.sqrt((6.0**2 + 8.0**2) / 2))
    assert found["p99"] == pytest.approx(found["max"]) == pytest.approx(8.0)
    smooth[25:, 0] += 0.01  # a leap
    assert acceleration(smooth)["max"] == pytest.approx(0.01 / 0.02**2 + 6.0)
    assert set(acceleration(np.zeros((2, 2))).values()) == {0.0}
