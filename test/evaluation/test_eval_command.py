"""``flashrt eval`` without ROS: options, JSON, files and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashrt_core.cli import eval as eval_module
from flashrt_core.cli.main import USER_ERROR, app, run
from flashrt_core.errors import OptionError
from flashrt_core.evaluation.branches import Resumption
from flashrt_core.evaluation.command import EvalOptions, plan_for
from flashrt_core.evaluation.task import FoundTask
from flashrt_core.load import LoadOptions

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
        ([str(FOLDER), "--replan-rows", "11"], "--replan-rows"),
        ([str(FOLDER), "--precision", "int1"], "int1"),
        ([str(FOLDER), "--output", "/"], "--output"),
        ([str(FOLDER), "--reference-device", "moon"], "moon"),
    ],
)
def test_what_is_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], names: str
) -> None:
    code, _, err = call(capsys, *arguments, "--episodes", "1")
    assert code == USER_ERROR and len(err.splitlines()) == 1 and names in err


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
