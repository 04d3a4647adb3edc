"""``flashrt eval`` without ROS: options, JSON, files and exit status."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from flashrt_core.cli import eval as eval_module
from flashrt_core.cli.main import USER_ERROR, app, run
from flashrt_core.devices import open_device
from flashrt_core.errors import DeviceError, OptionError
from flashrt_core.evaluation.branches import Resumption
from flashrt_core.evaluation.command import EvalOptions, plan_for
from flashrt_core.evaluation.pilot import EnginePilot
from flashrt_core.evaluation.report import show_tiers
from flashrt_core.evaluation.rollout import Outcome
from flashrt_core.evaluation.task import FoundTask
from flashrt_core.evaluation.tiers import summarise
from flashrt_core.load import LoadOptions
from flashrt_core.observations import read_observations

from .tasks import FOLDER, point_arm

SHORT = ["--episodes", "2", "--error-episodes", "1", "--first-seed", "70"]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(lambda: app(["eval", *arguments]))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_tiers_forks_and_a_resumed_episode_in_one_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, seen = tmp_path / "result.json", tmp_path / "seen.npz"
    further = ["--precision", "fp32,bf16", "--forks", "2", "--resume", "--output", str(file)]
    code, out, _ = call(
        capsys, str(FOLDER), *SHORT, *further, "--observations", str(seen), "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert found == json.loads(file.read_text())
    assert [tier["name"] for tier in found["tiers"]] == ["reference", "cpu fp32", "cpu bf16"]
    reference, fp32, bf16 = found["tiers"]
    assert reference["paired"] is None and fp32["paired"]["p_value"] <= 1.0
    assert [one["seed"] for one in fp32["outcomes"]] == [70, 71]
    assert set(bf16["joints"]) == {"slide_x", "slide_y"}
    assert bf16["joints"]["slide_x"]["rms"] > 100 * fp32["joints"]["slide_x"]["rms"]
    assert len(found["forks"]["branches"]) == 2 and found["resumed"]["bit_identical"] is True
    assert found["checkpoint"] == "random:3" and str(tmp_path) not in found["command"]
    # What the baseline saw is what a calibration can be made of.
    code = run(
        lambda: app(
            f"qualify --npz {seen} --views base_0_rgb --state-dim 2 --action-dim 2"
            " --steps 2 --threads 1".split()
        )
    )
    assert code == 0


def test_without_errors_of_joints(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--episodes", "1", "--error-episodes", "0", "--precision", "fp32,bf16"]
    code, out, _ = call(capsys, str(FOLDER), *arguments, "--no-reference", "--json")
    assert code == 0
    assert [tier["joints"] for tier in json.loads(out)["tiers"]] == [{}, {}]


def test_tables_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, str(FOLDER), *SHORT, "--no-reference", "--precision", "fp32,bf16")
    assert code == 0
    for text in ("cpu fp32", "cpu bf16", "success %", "slide_y", "2 starts"):
        assert text in out
    assert "reference" not in out


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nowhere"], "shipped one"),
        ([str(FOLDER), "--forks", "1"], "--forks"),
        (
            [str(FOLDER), "--policy", "lingbot_va", "--replan-rows", "4"],
            "--replan-rows': expected none: policy 'lingbot_va' decides where a chunk ends, got 4",
        ),
        ([str(FOLDER), "--replan-rows", "11"], "--replan-rows': expected at most 10"),
        (
            [str(FOLDER), "--horizon", "3"],
            "at most 3, as many rows as a chunk has, got 5, the default",
        ),
        (
            [str(FOLDER), "--preset", "bse"],
            "option 'preset': expected one of ['base', 'small', 'tiny']",
        ),
        ([str(FOLDER), "--precision", "int1"], "int1"),
        ([str(FOLDER), "--output", "/"], "--output"),
        ([str(FOLDER), "--reference-device", "moon"], "moon"),
        ([str(FOLDER), "--precision", " , "], "at least one plan"),
        # What would be found out behind the tiers in front.
        ([str(FOLDER), "--precision", "fp32,int1"], "int1"),
        ([str(FOLDER), "--precision", "fp32,moon:bf16"], "moon:bf16"),
        (
            [str(FOLDER), "--observations", "x.npz", "--error-episodes", "0"],
            "--error-episodes of 1",
        ),
        # What would change nothing.
        (
            [str(FOLDER), "--strategy", "replace"],
            "--ros beside it, without which it changes nothing",
        ),
        ([str(FOLDER), "--added-delay", "0"], "option '--added-delay': expected --ros"),
        ([str(FOLDER), "--camera-hz", "25"], "option '--camera-hz': expected --ros"),
        ([str(FOLDER), "--params", "x.yaml"], "option '--params': expected --ros"),
        ([str(FOLDER), "--domain", "3"], "option '--domain': expected --ros"),
        ([str(FOLDER), "--log", "x"], "option '--log': expected --ros"),
        (
            [str(FOLDER), "--ros", "--error-episodes", "3"],
            "'--error-episodes': expected a direct run",
        ),
        ([str(FOLDER), "--ros", "--fork-at", "3"], "'--fork-at': expected a direct run"),
        (
            [str(FOLDER), "--no-reference", "--reference-device", "cpu"],
            "expected a reference beside",
        ),
        ([str(FOLDER), "--fork-at", "3"], "option '--fork-at': expected --forks beside it"),
        (
            [str(FOLDER), "--calibration", "x.json"],
            "'--calibration': expected a plan that quantises",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], names: str
) -> None:
    code, _, err = call(capsys, *arguments, "--episodes", "1")
    assert code == USER_ERROR and len(err.splitlines()) == 1 and names in err


def test_a_tier_without_a_gpu_is_found_before_the_first_episode(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(name: str, **_: object) -> object:
        if name == "cuda":
            raise DeviceError("device 'cuda'", expected="an NVIDIA GPU", got="none")
        return open_device(name)

    monkeypatch.setattr("flashrt_core.load.open_device", without)
    code, out, err = call(capsys, str(FOLDER), *SHORT, "--precision", "fp32,cuda:bf16")
    assert (code, out) == (USER_ERROR, "")
    assert err == "flashrt: error: device 'cuda': expected an NVIDIA GPU, got none\n"


def test_a_tier_without_scales_is_told_the_two_commands_that_make_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    wanted = [str(FOLDER), *SHORT, "--precision", "fp32,fp8", "--no-reference"]
    code, out, err = call(capsys, *wanted)
    assert (code, out) == (USER_ERROR, "") and len(err.splitlines()) == 1
    assert "option 'calibration': expected a calibration file, as this" in err
    observe, make = err.partition("; make it: ")[2].split(" && ")
    # As they are said, with fewer episodes.
    few = observe.replace("--episodes 20", "--episodes 1")
    for command in (few, make):
        words = shlex.split(command)[1:]
        assert run(partial(app, words)) == 0
    assert call(capsys, *wanted)[0] == 0


def interrupted_at(seed: int, monkeypatch: pytest.MonkeyPatch, number: int = signal.SIGINT) -> None:
    """Ctrl-C when the second tier comes to that start."""
    arm = type(point_arm().task._task)
    start, seen = arm.start, [0]

    def begin(self: object, given: int) -> object:
        seen[0] += given == seed
        if seen[0] == 2:
            os.kill(os.getpid(), number)
        return start(self, given)

    monkeypatch.setattr(arm, "start", begin)


def test_what_ended_before_ctrl_c_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, seen = tmp_path / "result.json", tmp_path / "seen.npz"
    interrupted_at(72, monkeypatch)
    arguments = ["--episodes", "3", "--first-seed", "70", "--error-episodes", "1"]
    code, out, err = call(
        capsys, str(FOLDER), *arguments, "--output", str(file), "--observations", str(seen)
    )
    assert code == 130
    assert f"flashrt: interrupted; what ended before is in {file}" in err
    assert "PARTIAL: interrupted" in out and "reference" in out
    found = json.loads(file.read_text())
    assert found["partial"] == "interrupted"
    reference, fp32 = found["tiers"]
    assert [one["seed"] for one in reference["outcomes"]] == [70, 71, 72]
    assert [one["seed"] for one in fp32["outcomes"]] == [70, 71]
    pairs = fp32["paired"]
    assert sum(pairs[key] for key in ("both", "only_first", "only_second", "neither")) == 2
    assert list(read_observations(seen, ("base_0_rgb",)))


def test_what_ended_before_a_tier_failed_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(options: LoadOptions, **more: int) -> EnginePilot:
        if options.precision == "bf16":
            raise DeviceError("device 'cpu'", expected="memory", got="none")
        return EnginePilot(options, **more)

    monkeypatch.setattr("flashrt_core.evaluation.command.EnginePilot", failing)
    code, out, _ = call(
        capsys, str(FOLDER), *SHORT, "--no-reference", "--precision", "fp32,bf16", "--json"
    )
    found = json.loads(out)
    assert code == USER_ERROR and found["partial"].startswith("device 'cpu': expected memory")
    assert [tier["name"] for tier in found["tiers"]] == ["cpu fp32"]


def test_forks_that_ended_before_an_error_are_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_at(71, monkeypatch, signal.SIGTERM)
    code, out, _ = call(
        capsys, str(FOLDER), *SHORT, "--no-reference", "--forks", "2", "--resume", "--json"
    )
    found = json.loads(out)
    assert code == 143 and found["partial"] == "ended by SIGTERM"
    assert len(found["tiers"][0]["outcomes"]) == 2 and len(found["forks"]["branches"]) == 1
    assert "resumed" not in found


def test_nothing_found_is_nothing_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(*_: object, **__: object) -> EnginePilot:
        raise DeviceError("device 'cpu'", expected="memory", got="none")

    monkeypatch.setattr("flashrt_core.evaluation.command.EnginePilot", failing)
    file = tmp_path / "result.json"
    code, out, _ = call(capsys, str(FOLDER), *SHORT, "--no-reference", "--output", str(file))
    assert (code, out, file.exists()) == (USER_ERROR, "", False)


def test_starts_that_did_not_fork_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    late = ["--no-reference", "--forks", "2", "--fork-at", "300"]
    code, out, _ = call(capsys, str(FOLDER), *SHORT, *late)
    assert code == 0
    assert "0 of 2 starts forked: the others were over before decision 300" in out
    assert "rollouts of one state, by cpu fp32" in out


def test_a_pipe_is_told_of_each_tier(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, str(FOLDER), *SHORT, "--json")
    assert code == 0 and json.loads(out)
    begun, ended, *second = err.splitlines()
    assert begun == "reference: 2 episodes ..."
    assert re.fullmatch(r"reference: 2 episodes, \d done in \d+ s", ended)
    assert [line.split(":")[0] for line in second] == ["cpu fp32"] * 2


def test_a_narrow_terminal_has_two_tables() -> None:
    names = ("reference", "cpu fp32, temporal_ensemble, +150 ms")
    outcomes = [Outcome(seed, "go", True, 3.0, 1.0, 9, 12.3) for seed in range(200)]
    tiers = [summarise(names[0], "", outcomes), summarise(names[1], "", outcomes, outcomes)]
    shown = {}
    for width in (80, 400):
        console = Console(file=io.StringIO(), width=width)
        show_tiers(tiers, console)
        shown[width] = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, shown[80])) <= 80 and max(map(len, shown[400])) > 80
    text = "\n".join(shown[80])
    for heading in (" 95 % ", " decision ", "success against reference", "difference"):
        assert heading in text
    assert "98.1 to 100.0" in text and text.count("temporal_ensemble") == 3
    assert sum("success %" in line for line in shown[400]) == 1
    assert any("success %" in line and "difference" in line for line in shown[400])


def test_without_ros_the_node_is_out_of_reach(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_module, "ros_runners", [])
    code, _, err = call(capsys, str(FOLDER), "--ros")
    assert code == USER_ERROR and "source your workspace" in err


def test_bits_that_differ_are_an_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def differing(*arguments: object, **options: object) -> Resumption:
        return Resumption(1, 2, 3, 4, 3, True, None)  # type: ignore[arg-type]

    monkeypatch.setattr("flashrt_core.evaluation.command.resume_episode", differing)
    code, out, _ = call(capsys, str(FOLDER), *SHORT, "--no-reference", "--resume")
    assert code == eval_module.FAILED and "DIFFERENT (3 of 4 chunks" in out


def test_the_plan_is_what_was_asked_for_then_what_the_task_says(tmp_path: Path) -> None:
    found = point_arm()
    own = plan_for(found, LoadOptions(precision="bf16"))
    several = EvalOptions(found, plan_for(found, LoadOptions(precision="bf16,cuda:fp8, my:x.yaml")))
    named = [(each.device, each.precision) for each in several.plans]
    assert named == [("cpu", "bf16"), ("cuda", "fp8"), ("cpu", "my:x.yaml")]
    assert (own.checkpoint, own.preset, own.steps) == ("random:3", "tiny", 2)
    assert (own.views, own.state_dim, own.action_dim) == (("base_0_rgb",), 2, 2)
    assert own.precision == "bf16"
    given = plan_for(found, LoadOptions(steps=4), checkpoint="outliers:1", preset="base")
    assert (given.checkpoint, given.preset, given.steps) == ("outliers:1", "base", 4)
    bare = FoundTask(found.task, tmp_path)
    assert plan_for(bare, LoadOptions()).checkpoint == "random:0"
    (tmp_path / "policy").mkdir()
    shipped = plan_for(bare, LoadOptions())
    assert (shipped.checkpoint, shipped.preset) == (tmp_path / "policy", "base")
    with pytest.raises(OptionError, match="PLAN.*got colour"):
        plan_for(FoundTask(found.task, tmp_path, {"colour": 1}), LoadOptions())
