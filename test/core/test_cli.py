"""The commands that need no ROS."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from flashrt_core.cli.main import USER_ERROR, app, run
from flashrt_core.load import LoadOptions, describe


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(lambda: app(list(arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_inspect_as_json_says_what_the_contract_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "inspect", "pi05", "--json")
    assert code == 0
    found = json.loads(out)
    description = describe(LoadOptions())
    contract = description.contract
    assert [b["name"] for b in found["buffers"]] == [b.name for b in contract.buffers]
    assert found["bytes"]["total"] == sum(b.nbytes for b in contract.buffers)
    assert sum(v for k, v in found["bytes"].items() if k != "total") == found["bytes"]["total"]
    stages = {s["name"]: s for s in found["stages"]}
    assert stages["action"]["requires"] == list(contract.stage("action").requires)
    assert len(found["regions"]) == len(contract.shapes)
    first = contract.regions[contract.shapes[0]]
    assert found["regions"][0]["bytes"] == sum(region.nbytes for region in first)
    assert found["fingerprint"]["digest"] == description.fingerprint.digest
    assert found["fingerprint"]["parts"] == dict(description.fingerprint.parts)


@pytest.mark.parametrize("columns", ["20", "80", "160"])
def test_inspect_as_tables_names_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    # Captured output is no terminal, so that nothing is cut whatever the environment says.
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = call(capsys, "inspect", "pi05", "--preset", "tiny")
    assert code == 0
    assert "\u2026" not in out, "rich's mark of what it cut"
    contract = describe(LoadOptions()).contract
    for spec in (*contract.inputs, *contract.outputs, *contract.stages, *contract.buffers):
        assert spec.name in out
    for region in contract.regions[contract.shapes[-1]]:
        assert region.name in out
        assert f"{region.nbytes:,}" in out


def test_options_change_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "inspect", "--views", "base_0_rgb", "--json")
    one = json.loads(out)
    assert {shape["views"] for shape in one["shapes"]} == {1}
    assert [i["name"] for i in one["inputs"] if i["name"].startswith("image.")] == [
        "image.base_0_rgb"
    ]
    _, out, _ = call(capsys, "inspect", "--preset", "base", "--precision", "bf16", "--json")
    base = json.loads(out)
    assert base["bytes"]["static"] > 1000 * one["bytes"]["static"]
    assert base["fingerprint"]["digest"] != one["fingerprint"]["digest"]
    _, out, _ = call(capsys, "inspect", "--camera-bytes", "2764800", "--json")
    raw = json.loads(out)
    shapes = {spec["name"]: spec["shape"] for spec in raw["inputs"]}
    assert shapes["image.base_0_rgb"] == [2764800] and shapes["picture.base_0_rgb"] == [16]
    assert raw["config"]["camera_bytes"] == 2764800


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["pi06"], "pi06"),
        (["pi05", "--preset", "huge"], "huge"),
        (["pi05", "--precision", "int1"], "int1"),
        (["pi05", "--views", "rear"], "rear"),
        (["pi05", "--checkpoint", "random:x"], "random:x"),
        (["pi05", "--device", "abacus"], "abacus"),
        (["pi05", "--checkpoint", "hf://lerobot/pi05_base"], "download it first"),
        (["pi05", "--norm-stats", "https://x.org/n.json"], "download it first"),
        (["pi05", "--camera-bytes", "9"], "9408"),
    ],
)
def test_user_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], names: str
) -> None:
    code, out, err = call(capsys, "inspect", *arguments)
    assert code == USER_ERROR == 2
    assert out == ""
    assert err.startswith("flashrt: error: ") and err.count("\n") == 1
    assert names in err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "eval tabletop --episodes 0",
            "option '--episodes': expected >= 1, got '0'; flashrt eval --help tells what there is",
        ),
        ("eval tabletop --episodes x", "option '--episodes': expected a valid integer, got 'x';"),
        ("eval tabletop --camera-hz 0.1", "option '--camera-hz': expected >= 0.5, got '0.1';"),
        ("eval", "missing argument 'task'; flashrt eval --help"),
        ("eval tabletop --episodes", "option '--episodes' requires an argument; --help"),
        ("inspect --state-in-prompt=3", "option '--state-in-prompt' does not take a value;"),
        ("inspect --jason", "no such option: --jason (Possible options: --json);"),
        ("inspect pi05 b c", "got unexpected extra argument(s) (b c); flashrt inspect --help"),
        ("bench decision pi05 b", "got unexpected extra argument(s) (b); flashrt bench decision"),
        ("calibrate --limit -3", "option '--limit': expected >= 1, got '-3';"),
        ("wat", "no such command 'wat'; flashrt --help"),
    ],
)
def test_a_refused_command_line_is_one_line(
    capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    code = run(lambda: app(line.split(), prog_name="flashrt"))
    out, err = capsys.readouterr()
    assert (code, out) == (USER_ERROR, "")
    assert err.startswith(f"flashrt: error: {says}") and err.count("\n") == 1


def test_with_nothing_the_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys)
    assert code == USER_ERROR and "error" not in err
    assert "inspect" in out + err and "--help" in out + err


def test_a_status_is_that_of_the_application(capsys: pytest.CaptureFixture[str]) -> None:
    assert (run(lambda: 1), run(lambda: None), run(lambda: sys.exit(3))) == (1, 0, 3)
    assert run(lambda: sys.exit("why")) == 1
    assert capsys.readouterr().err == "why\n"


def test_a_seed_that_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (2**64, 2**130):
        code, _, err = call(capsys, "qualify", "--seed", str(seed), "--threads", "1")
        assert code == USER_ERROR and f"got {seed}" in err and err.count("\n") == 1


def test_other_errors_are_not_hidden() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(broken)


@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")],
)
def test_a_signal_ends_a_command_in_one_line(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, says: str
) -> None:
    before = signal.getsignal(number)
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append(True)

    assert run(work) == 128 + number
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"flashrt: {says}\n")
    assert cleaned
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(lambda: signal.raise_signal(signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_module_runs_and_rejects_unknown_options() -> None:
    command = [sys.executable, "-m", "flashrt_core", "inspect"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--precision" in done.stdout
    done = subprocess.run([*command, "--colour"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
