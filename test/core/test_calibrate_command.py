"""``flashrt calibrate``, and ``flashrt qualify`` of several plans on what it wrote."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flashrt_core.calibration.run import _recorder as recorder_of
from flashrt_core.cli import calibrate as calibrate_module
from flashrt_core.cli import qualify as qualify_module
from flashrt_core.cli.main import NOT_LOADABLE, USER_ERROR, app, run
from flashrt_core.errors import OptionError
from flashrt_core.images import Frame
from flashrt_core.load import LoadOptions
from flashrt_core.observations import digest_of, made_up_observations, read_observations
from flashrt_core.scales import read_calibration

VIEWS = ("base_0_rgb", "left_wrist_0_rgb")
FEW = ["--steps", "2", "--prompt-buckets", "32", "--threads", "1"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate_module, "bag_readers", [])
    return tmp_path / "cache"


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(lambda: app(list(arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def write_npz(path: Path, count: int = 3, seed: int = 4, **changes: Any) -> Path:
    samples = list(made_up_observations(VIEWS, 7, count, seed))
    arrays: dict[str, Any] = {
        "prompt": np.array([prompt for prompt, _ in samples]),
        "state": np.stack([observation.state for _, observation in samples]),
    }
    for view in VIEWS:
        arrays[f"image.{view}"] = np.stack([each.images[view] for _, each in samples])
    arrays |= changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_a_plan_finds_the_scales_where_the_command_put_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, own_cache: Path
) -> None:
    file = write_npz(tmp_path / "robot.npz")
    code, out, err = call(capsys, "calibrate", "pi05", "--npz", str(file), *FEW)
    assert code == 0, err
    (written,) = (own_cache / "flashrt" / "calibration").iterdir()
    assert "3 observations (npz: robot.npz), scales from the amax" in out
    assert str(written) in out and read_calibration(written).digest in out
    figure = tmp_path / "out" / "fidelity.png"
    arguments = ["--precision", "bf16, fp8", "--decisions", "2", "--noises", "2", *FEW, "--json"]
    code, out, err = call(capsys, "qualify", "pi05", *arguments, "--figure", str(figure))
    plans = json.loads(out)["plans"]
    assert [plan["plan"] for plan in plans] == ["bf16", "fp8"]
    assert plans[0]["calibration"] == "none"
    assert plans[1]["calibration"] == read_calibration(written).digest
    assert plans[1]["precision"].startswith("bf16; fp8: vision.out")
    rows = [plan["stages"]["decision: actions"] for plan in plans]
    assert rows[0]["mean_cosine"] > rows[1]["mean_cosine"] > 0.99
    assert plans[0]["decisions"] == 4 and len(plans[1]["joints"]) == 7
    for row, plan in zip(rows, plans, strict=True):
        assert plan["fidelity"] == {
            "cosine_mean": row["mean_cosine"],
            "cosine_min_row": row["min_cosine"],
            "pairs": 4,
        }
        assert row["cosines"]["0"] == row["min_cosine"]
        assert row["errors"]["100"] == row["max_abs"]
    assert figure.read_bytes().startswith(b"\x89PNG") and figure.stat().st_size > 10_000
    code, out, err = call(capsys, "qualify", "pi05", "--precision", "fp8", "--npz", str(file), *FEW)
    assert (code, out) == (USER_ERROR, "")
    assert "observation 1 of npz: robot.npz: expected one that the plan was not calibrated" in err
    code, out, _ = call(capsys, "inspect", "pi05", "--precision", "fp8", *FEW[:-2])
    digest = read_calibration(written).digest[:16]
    assert code == 0
    assert f"calibration: {written} (3 observations, npz: robot.npz; digest {digest})" in out


def test_what_is_wrong_in_a_file_names_file_and_observation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = np.zeros((3, 7), np.float32)
    state[1, 2] = np.nan
    file = write_npz(tmp_path / "robot.npz", state=state)
    code, _, err = call(capsys, "calibrate", "pi05", "--npz", str(file), *FEW)
    assert code == USER_ERROR and err.count("\n") == 1
    assert "observation 2 of npz: robot.npz, state[2]: expected a finite number, got nan" in err


def test_without_scales_the_command_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "qualify", "pi05", "--precision", "fp8", *FEW)
    assert code == USER_ERROR and err.count("\n") == 1
    assert "run flashrt calibrate pi05 --checkpoint random:0 --precision fp8 --steps 2" in err
    assert "got none for this plan; make one of a file of observations (or of --bag" in err
    code, out, _ = call(capsys, "inspect", "pi05", "--precision", "fp8")
    assert code == NOT_LOADABLE and "not loadable like this: option 'calibration'" in out


def test_what_a_later_plan_lacks_is_said_before_the_first_is_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qualify_module, "compare", lambda *_: pytest.fail("compared"))
    code, _, err = call(capsys, "qualify", "pi05", "--precision", "bf16,fp8", *FEW)
    assert code == USER_ERROR and "run flashrt calibrate pi05" in err


def test_a_first_calibration_and_a_first_comparison_share_no_observation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(capsys, "calibrate", "pi05", "--made-up", "2", *FEW)[0] == 0
    code, _, err = call(
        capsys, "qualify", "pi05", "--precision", "fp8", "--decisions", "1", *FEW,
        *("--min-cosine", "0.5", "--max-error", "9", "--max-stage-error", "9"),
    )  # fmt: skip
    assert code == 0, err


def test_a_link_stays_one_and_a_pipe_is_written_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    arguments = ["calibrate", "pi05", "--made-up", "1", *FEW, "--output"]
    assert call(capsys, *arguments, str(link))[0] == 0
    assert link.is_symlink() and read_calibration(target).digest
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert call(capsys, *arguments, str(pipe))[0] == 0
        assert os.read(reader, 1 << 16).startswith(b"{") and pipe.is_fifo()
    finally:
        os.close(reader)


def test_made_up_observations_are_said_to_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "scales.json"
    arguments = ["--made-up", "4", "--seed", "3", "--limit", "2", "--output", str(output), *FEW]
    code, out, _ = call(capsys, "calibrate", "pi05", *arguments, "--method", "percentile")
    found = read_calibration(output)
    assert code == 0 and len(found.observations) == 2 and found.method == "percentile"
    assert found.recorder["observations"] == "made up: 4 with seed 3"
    assert "made up: 4 with seed 3" in out
    code, out, _ = call(
        capsys, "inspect", "pi05", "--precision", "fp8", "--calibration", str(output)
    )
    assert code == NOT_LOADABLE and "a stale one" in out  # inspect's shapes are the preset's


def test_the_command_that_is_said_makes_what_was_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    named = tmp_path / "my scales.json"
    plan = ["pi05", "--precision", "fp8", "--calibration", str(named), *FEW]
    code, _, err = call(capsys, "qualify", *plan)
    assert code == USER_ERROR and f"--output '{named}' --npz FILE" in err
    said = shlex.split(err.rpartition("run flashrt ")[2].strip())
    assert call(capsys, *said[:-2], "--made-up", "1")[0] == 0
    limits = ["--min-cosine", "0.5", "--max-error", "9", "--max-stage-error", "9"]
    assert call(capsys, "qualify", *plan, *limits, "--decisions", "1")[0] == 0
    code, out, _ = call(capsys, *said[:-2], "--made-up", "1")
    was = now = "1 observations (made up: 1 with seed 1)"
    assert code == 0 and f"{was} are replaced by {now}: replaced {named}" in out


def test_what_is_replaced_is_said_and_of_what_checkpoint_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, own_cache: Path
) -> None:
    few, more = (write_npz(tmp_path / f"{n}.npz", n) for n in (1, 3))
    assert call(capsys, "calibrate", "pi05", "--npz", str(more), *FEW)[0] == 0
    code, out, _ = call(capsys, "calibrate", "pi05", "--npz", str(few), *FEW)
    (written,) = (own_cache / "flashrt" / "calibration").iterdir()
    said = "3 observations (npz: 3.npz) are replaced by 1 observations (npz: 1.npz): replaced"
    assert code == 0 and f"{said} {written}" in out
    assert json.loads(written.read_text())["recorder"]["checkpoint"] == "random:0"
    written.write_text("no calibration")
    code, out, _ = call(capsys, "calibrate", "pi05", "--npz", str(few), *FEW)
    assert code == 0 and f"\nreplaced {written}" in out


def test_a_checkpoint_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = SimpleNamespace(arch="a", library="b")
    monkeypatch.setenv("HOME", str(tmp_path))
    for place, named in (
        (tmp_path / "policies" / "mine", "~/policies/mine"),
        ("/elsewhere/mine", "/elsewhere/mine"),
        ("random:4", "random:4"),
    ):
        found = recorder_of(device, place, "npz: x")  # type: ignore[arg-type]
        assert found["checkpoint"] == named


def test_a_pipe_is_told_how_many_decisions_were_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["qualify", "pi05", "--precision", "fp32,bf16", "--decisions", "1", "--noises", "3"]
    code, _, err = call(capsys, *words, *FEW)
    assert code == 0
    assert err.splitlines() == [f"decision 3 compared, {name}" for name in ("fp32", "bf16")]
    monkeypatch.setattr("flashrt_core.cli.progress._EVERY_S", 0.0)
    assert len(call(capsys, *words, *FEW)[2].splitlines()) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--calibration", "x.json"], "option '--calibration': expected a plan that quantises"),
        (["--npz", "x.npz", "--seed", "3"], "option '--seed': expected made-up observations"),
        (["--npz", "x.npz", "--decisions", "3"], "option '--decisions': expected made-up"),
        (["--reference-device", "moon"], "option 'reference_device': expected cpu or cuda"),
        (["--precision", "fp8", "--calibration", "README.md"], "name the file that flashrt cali"),
        (["--precision", "fp8", "--calibration", "docs"], "name the file that flashrt calibrate"),
    ],
)
def test_refusals_of_qualify(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = call(capsys, "qualify", "pi05", *arguments, *FEW)
    assert (code, out) == (USER_ERROR, "") and err.count("\n") == 1
    assert message in err


def test_a_reference_on_a_gpu_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = call(capsys, "qualify", "pi05", "--reference-device", "cuda", *FEW)
    assert code == USER_ERROR and "leave it out: the CPU computes the same" in err


def test_one_plan_is_compared_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def compare(options: LoadOptions, *_: object) -> SimpleNamespace:
        compared.append(str(options.precision))
        return SimpleNamespace(passed=True, as_dict=dict)

    monkeypatch.setattr(qualify_module, "compare", compare)
    monkeypatch.setattr(qualify_module, "show", lambda *_, **__: None)
    assert call(capsys, "qualify", "pi05", "--precision", "bf16, fp32,bf16", *FEW)[0] == 0
    assert compared == ["bf16", "fp32"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "observations: expected one of --npz FILE, --bag BAG --params FILE, --made-up N"),
        (["--made-up", "1", "--npz", "x.npz"], "observations: expected one of"),
        (["--bag", "x"], "option '--params': expected a parameter file"),
        (["--bag", "x", "--params", "y"], "the flashrt command of a ROS environment, got the core"),
        (["--npz", "none.npz"], "observations 'none.npz': expected a readable .npz file"),
        (["--made-up", "1", "--precision", "bf16"], "expected a plan with fp8 products"),
        (["--made-up", "1", "--device", "cuda"], "option 'device': expected one of"),
        (["--made-up", "1", "--method", "mean"], "option 'method': expected one of"),
        (["--made-up", "1", "--method", "percentil"], "expected one of ['amax', 'percentile']"),
        (["--made-up", "1", "--percentile", "0"], "option 'percentile': expected more than 0"),
        (["--npz", "x.npz", "--params", "y"], "option '--params': expected --bag beside it"),
        (["--npz", "x.npz", "--seed", "4"], "option '--seed': expected --made-up beside it"),
        (["--made-up", "1", "--output", "/"], "option '--output': expected a file that can be"),
        (["--made-up", "1", "--prompt-buckets", "9" * 5000], "option 'prompt_buckets': expected"),
        (["--made-up", "1", "--prompt-buckets", "32,x"], "option 'prompt_buckets': expected whole"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = call(capsys, "calibrate", "pi05", *arguments, "--threads", "1")
    assert (code, out) == (USER_ERROR, "") and err.count("\n") == 1
    assert message in err


def test_a_cache_that_cannot_be_written_is_found_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    monkeypatch.setattr(calibrate_module, "calibrate", lambda *_, **__: pytest.fail("observed"))
    code, out, err = call(capsys, "calibrate", "pi05", "--made-up", "1", *FEW)
    assert (code, out) == (USER_ERROR, "") and "option '--output': expected a file" in err


@pytest.mark.parametrize("figure", ["/", "report", "report.xyz", "/proc/none/report.png"])
def test_a_figure_is_refused_before_the_comparison(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, figure: str
) -> None:
    monkeypatch.setattr(qualify_module, "compare", lambda *_: pytest.fail("compared"))
    code, out, err = call(capsys, "qualify", "pi05", *FEW, "--figure", figure)
    assert (code, out) == (USER_ERROR, "") and err.count("\n") == 1
    assert "option '--figure': expected" in err


def test_observations_of_a_file_are_those_that_were_written(tmp_path: Path) -> None:
    file = write_npz(tmp_path / "a.npz")
    found = list(read_observations(file, VIEWS))
    wanted = list(made_up_observations(VIEWS, 7, 3, 4))
    assert [digest_of(each) for each in found] == [digest_of(each) for each in wanted]
    prompt, seen = wanted[0]
    frames = {view: Frame.of_rgb(np.asarray(image)) for view, image in seen.images.items()}
    assert digest_of((prompt, replace(seen, images=frames, stamp_ns=7))) == digest_of(wanted[0])
    without = list(read_observations(write_npz(tmp_path / "b.npz", state=None), VIEWS[:1]))
    assert without[0][1].state is None and set(without[0][1].images) == {VIEWS[0]}
    assert digest_of(without[0]) != digest_of(found[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": None}, "expected arrays .'prompt', .*got no 'prompt'"),
        ({"image.base_0_rgb": None}, "got no 'image.base_0_rgb'"),
        ({"prompt": np.array([1, 2, 3])}, r"array 'prompt' .* expected text \[n\], got int64"),
        ({"prompt": np.array(["a", "b"])}, r"array 'image.*uint8 \[2, H, W, 3\], got uint8 .3, 24"),
        ({"state": np.zeros(3, np.float32)}, "array 'state'"),
        ({"image.base_0_rgb": np.zeros((3, 8, 8, 3), np.float32)}, "array 'image.base_0_rgb'"),
        ({"image.base_0_rgb": np.zeros((2, 8, 8, 3), np.uint8)}, "array 'image.base_0_rgb'"),
        ({"prompt": np.array([{}, {}, {}], object)}, "plain arrays, got Python objects; write one"),
    ],
)
def test_files_of_other_arrays(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = write_npz(tmp_path / "a.npz", **changes)
    with pytest.raises(OptionError, match=message) as found:
        list(read_observations(file, VIEWS))
    assert "\n" not in str(found.value)


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    for name, content in (("a.npz", b"PK\x03\x04 broken"), ("b.npz", b"text"), ("c.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(OptionError, match=r"expected a readable .npz file") as found:
            list(read_observations(tmp_path / name, VIEWS))
        assert "pickle" not in str(found.value) and "eval TASK --observations" in str(found.value)
    np.save(tmp_path / "d.npy", np.zeros(3))
    with pytest.raises(OptionError, match="readable .npz file, got one array"):
        list(read_observations(tmp_path / "d.npy", VIEWS))
