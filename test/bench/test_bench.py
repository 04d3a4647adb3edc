"""Measuring, as far as a machine without a GPU can check it: traces, rows, files, refusals."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from flashrt_core.bench import command, latency, machine, peer_lerobot
from flashrt_core.bench.case import Case, parse_cases
from flashrt_core.bench.command import BenchOptions, run_bench
from flashrt_core.bench.layers import layer_traces
from flashrt_core.bench.machine import command_line
from flashrt_core.bench.report import describe_run, draw, peer_lines, write_json
from flashrt_core.bench.trace import KernelTime
from flashrt_core.cli.main import USER_ERROR, app, run
from flashrt_core.devices.overlap import DEFAULT
from flashrt_core.errors import DeviceError, FlashRTError, OptionError
from flashrt_core.load import LoadOptions
from flashrt_core.outputs import OutputError

PREFIX = ["norm", "product a", "turn", "attention", "product b", "norm", "product c"]
LIGHT, HEAVY = Case(2, 48, 10), Case(3, 200, 50)
EXPERT = ["qkv", "few queries", "out", "geglu", "out"]


def plan(**given: Any) -> LoadOptions:
    return replace(latency.PLAN, **given)


def trace_of(names: list[str]) -> list[KernelTime]:
    """Kernels of 2 us that start every 3 us."""
    return [KernelTime(name, 3.0 * place, 2.0) for place, name in enumerate(names)]


def test_layers_are_found_by_what_repeats() -> None:
    tower = ["norm", "qkv product", "segments", "fc"] * 27
    step = ["in", *EXPERT * 18, "euler"]
    names = ["patches", *tower, "copy", *PREFIX * 17, "norm", "product kv", "turn", *step * 10]
    found = layer_traces(trace_of(names), {"prefix": 17, "expert": 18})
    assert [kernel.kernel for kernel in found["prefix"].kernels] == PREFIX
    assert [kernel.kernel for kernel in found["expert"].kernels] == EXPERT
    assert (found["prefix"].repeats, found["expert"].repeats) == (17, 180)
    assert found["expert"].layer_us == pytest.approx(15.0)
    assert [kernel.start_us for kernel in found["expert"].kernels] == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert found["expert"].to_json()["kernels"][1] == {
        "kernel": "few queries",
        "start_us": 3.0,
        "duration_us": 2.0,
        "share_us": 3.0,
    }


def test_what_does_not_repeat_is_left_out() -> None:
    assert layer_traces(trace_of(["in", *EXPERT * 18, "euler"]), {"prefix": 17}) == {}
    assert layer_traces(trace_of(EXPERT * 3), {"expert": 3}) == {}
    assert layer_traces([], {"expert": 18}) == {}


def line(case: Case, peers: bool) -> dict[str, Any]:
    """A line of a result file."""
    times = {"p50": 9.0, "p95": 9.1, "p99": 9.2}
    ours: dict[str, Any] = {
        "views": case.views,
        "prompt_tokens": case.prompt_tokens,
        "horizon": case.horizon,
        "steps": case.steps,
        "precision": "bf16",
        "fingerprint": f"{case}",
        "calibration": "none",
        "replay_ms": times,
        "call_ms": {name: value + 1.0 for name, value in times.items()},
        "kernels": 1300,
        "stage_ms": {"context": 5.0, "action": 4.0},
        "expert_layer_us": 22.2,
        "roofline_ms": {"vision": 1.0, "prefix": 2.0, "action": 1.5},
        "share_of_roofline": 0.5,
    }
    slow = {"name": "LeRobot", "version": "0.6.1", "path": "compiled_graph", "kernels": 5661}
    row = slow | {"ms": {"p50": 31.5, "p95": 31.6, "p99": 31.7}, "samples": 40, "set_up_s": 102.0}
    return ours | ({"peers": [peer_lerobot.with_ratios(row, ours)]} if peers else {})


def test_a_result_holds_what_is_needed_to_repeat_it(tmp_path: Path) -> None:
    state = {"name": "NVIDIA H200", "driver_version": "580", "clocks.sm": "1980 MHz"}
    lines = [line(Case(2, 48, 10), True), line(Case(3, 200, 50), False)]
    result = describe_run("abc", state, lines)
    path = tmp_path / "new" / "result.json"
    write_json(result, path)
    written = json.loads(path.read_text())
    needed = {"gpu", "driver", "versions", "commit", "kernel_library", "command", "clocks"}
    assert needed | {"cases"} <= set(written)
    assert written["clocks"] == {"clocks.sm": "1980 MHz"}
    (peer,) = written["cases"][0]["peers"]
    assert (peer["ratio_to_replay"], peer["ratio_to_call"]) == (3.5, 3.15)
    assert peer_lines(result) == [
        "2x48x10: LeRobot 0.6.1 compiled_graph 31.5 ms, 3.5 times our replay"
    ]
    draw(result, tmp_path / "figure.png")
    draw(describe_run("abc", {}, lines[1:]), tmp_path / "alone.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--output", "/some/r.json", "--cases", "2x48x10", "--figure"], None),
        (["--output=/some/r.json", "--figure=/some/f.png"], "--output=r.json --figure=f.png"),
        (["-o", "/some/r.json", "-o/some/r.json"], "-o r.json -or.json"),
        (["--output", "--figure", "--trace"], "--output --figure --trace"),
        (["--checkpoint=/some/folder"], "--checkpoint=folder"),
        (["--fidelity", "/some/q.json", "--bag", "own/bag"], "--fidelity q.json --bag own/bag"),
    ],
)
def test_a_command_names_files_without_their_folders(
    monkeypatch: pytest.MonkeyPatch, given: list[str], expected: str | None
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "bench", *given])
    expected = expected or "--output r.json --cases 2x48x10 --figure"
    assert command_line("flashrt") == f"flashrt bench {expected}"


@pytest.mark.parametrize(
    ("policy", "case", "extra"),
    [("pi05", Case(2, 48, 10), "pi"), ("groot_n17", Case(2, 32, 40, 4), "groot")],
)
def test_no_peer_is_said_with_the_remedy(
    policy: str, case: Case, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    options = BenchOptions(plan(policy=policy), cases=(case,), peer="lerobot")
    said = rf"\Apeer 'lerobot': .*pip install 'lerobot\[{extra}\][^\n]*\Z"
    with pytest.raises(DeviceError, match=said):
        run_bench(options, Console())


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("end", [RuntimeError("compiler"), SystemExit(143)])
def test_a_peer_run_that_ends_early_leaves_what_was_measured(
    end: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Our cases are in the file before minutes of compiling begin, then each row, and the gaps."""
    seen = []
    row = {"name": "LeRobot", "version": "1", "path": "eager", "ms": {"p50": 90.0}}

    def peer(
        cases: Sequence[Case], samples: int, paths: Sequence[str], policy: str
    ) -> Iterator[tuple[Case, dict[str, Any]]]:
        result = json.loads(output.read_text())
        seen.append((*cases, len(result["cases"]), len(result["peers_missing"])))
        yield cases[0], row
        raise end

    output, told = tmp_path / "r.json", io.StringIO()
    monkeypatch.setattr(command, "run_peer", peer)
    options = BenchOptions(cases=(LIGHT, HEAVY), peer="lerobot", peer_cases=(HEAVY,), output=output)
    with pytest.raises(type(end)):
        run_bench(options, Console(file=told, width=200))
    assert seen == [(HEAVY, 2, 2)]
    result = json.loads(output.read_text())
    light, heavy = result["cases"]
    assert "peers" not in light
    assert [row["ratio_to_replay"] for row in heavy["peers"]] == [10.0]
    assert result["peers_missing"] == [{"case": "3x200x50", "path": "compiled_graph"}]
    assert "2x48x10" in told.getvalue(), "the table comes first"
    assert "LeRobot 1 eager 90.0 ms, 10.0 times our replay" in told.getvalue()
    assert "3x200x50: lerobot compiled_graph: not measured" in told.getvalue()


@pytest.mark.usefixtures("measured")
def test_a_whole_run_writes_both_files_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def peer(
        cases: Sequence[Case], samples: int, paths: Sequence[str], policy: str
    ) -> Iterator[tuple[Case, dict[str, Any]]]:
        for case in cases:
            for path in paths:
                yield case, {"name": "LeRobot", "version": "1", "path": path, "ms": {"p50": 90.0}}

    monkeypatch.setattr(command, "run_peer", peer)
    output, figure = tmp_path / "new" / "r.json", tmp_path / "f.pdf"
    options = BenchOptions(cases=(LIGHT, LIGHT), peer="lerobot", output=output, figure=figure)
    result = run_bench(options, Console(file=io.StringIO()))
    assert json.loads(output.read_text()) == result and "peers_missing" not in result
    (only,) = result["cases"]
    assert [row["path"] for row in only["peers"]] == ["eager", "compiled_graph"]
    assert figure.read_bytes()[:4] == b"%PDF"


@pytest.mark.usefixtures("measured")
def test_a_table_is_printed_although_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*args: object) -> None:
        raise OutputError("result cannot be written")

    monkeypatch.setattr(command, "write_json", full)
    told = io.StringIO()
    with pytest.raises(OutputError):
        run_bench(BenchOptions(cases=(LIGHT,), output=tmp_path / "r.json"), Console(file=told))
    assert "2x48x10" in told.getvalue()


@pytest.mark.parametrize("name", ["command", "capsule_command"])
def test_the_options_of_a_plan_reach_what_measures_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    given: list[Any] = []
    part = "capsule" if name == "capsule_command" else "decision"
    what = "run_capsule_bench" if part == "capsule" else "run_bench"
    monkeypatch.setattr(f"flashrt_core.bench.{name}.{what}", lambda all, _: given.append(all))
    words = "--steps 2 --cases 1x48x4 --state-dim 3 --no-state-in-prompt --camera-bytes 150528"
    assert run(lambda: app(["bench", part, *words.split()])) == 0
    (options,) = given
    assert options.plan == plan(
        steps=2, state_dim=3, extra={"state_in_prompt": False}, camera_bytes=150528
    )
    assert options.cases == (Case(1, 48, 4, steps=2),)
    assert run(lambda: app(["bench", part, "--calibration", "x.json"])) == USER_ERROR
    assert "a plan that quantises activations" in capsys.readouterr().err


def test_without_a_gpu_the_remedy_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**options: object) -> None:
        raise DeviceError("device 'cuda'", got="none", remedy="install it, or set device to 'cpu'")

    monkeypatch.setattr(latency, "CudaDevice", none)
    with pytest.raises(DeviceError) as raised:
        run_bench(BenchOptions(cases=(LIGHT,)), Console())
    assert "install it, or use flashrt qualify or flashrt demo" in str(raised.value)
    assert "device to" not in str(raised.value)


def test_other_overlaps_of_chosen_cases() -> None:
    """Each way in one pass over its cases, and equal bits of what was measured twice."""
    ran: list[tuple[str, list[Case]]] = []

    def run(cases: Sequence[Case], samples: int, overlap: str) -> Any:
        ran.append((overlap, list(cases)))
        for case in cases:
            times = line(case, False)
            yield SimpleNamespace(case=case, actions=np.ones(3), to_json=lambda _, t=times: t)

    cases = (Case(2, 48, 10), Case(3, 200, 50))
    options = BenchOptions(cases=cases, overlap="both", overlap_cases=cases[1:])
    plain, chosen = command._measure(SimpleNamespace(run=run), options, cases)  # type: ignore[arg-type]
    assert ran == [(DEFAULT, list(cases)), ("off", [cases[1]])]
    assert "other_overlaps" not in plain
    assert list(chosen["other_overlaps"]) == ["off"] and chosen["overlap_equal_bits"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BenchOptions(peer="openpi"), "option 'peer'"),
        (BenchOptions(peer="lerobot", peer_paths=("fast",)), "option 'peer-paths'.*eager"),
        (BenchOptions(plan(preset="tiny"), peer="lerobot"), "the peer's sizes"),
        (
            BenchOptions(cases=(Case(2, 48, 10),), peer_cases=(Case(1, 48, 10),)),
            "option 'peer-cases' of bench: expected some of the cases, got 1x48x10",
        ),
        (
            BenchOptions(cases=(LIGHT,), overlap="both", overlap_cases=(Case(2, 48, 50),)),
            "option 'overlap-cases' of bench: expected some of the cases, got 2x48x50",
        ),
        (
            BenchOptions(cases=(LIGHT,), overlap="action", overlap_cases=(LIGHT,)),
            "option 'overlap-cases' of bench: expected --overlap both or each",
        ),
        (BenchOptions(cases=(LIGHT,), peer_cases=(LIGHT,)), "'peer-cases' of bench: .*--peer"),
        (BenchOptions(peer_paths=("eager",)), "option 'peer-paths' of bench: expected --peer"),
        (BenchOptions(samples=0), "samples"),
        (BenchOptions(cases=(Case(4, 48, 10),)), "case: expected at most 3 views, got 4x48x10"),
        (
            BenchOptions(plan(policy="pi0")),
            "'policy': expected one of .*'pi05'.*, got 'pi0'",
        ),
        (
            BenchOptions(plan(policy="groot_n17"), cases=(Case(2, 8, 40, 4),)),
            "9 to 8 tokens|tokens .marks of the chat",
        ),
        (
            BenchOptions(plan(policy="groot_n17"), overlap="vision+trunk"),
            "on, off, both, each, or of vision, context, action, kernel, product joined",
        ),
        (BenchOptions(samples=10**12), "samples"),
        (
            BenchOptions(plan(device="cpu")),
            "'device' of bench: .*got 'cpu'; use flashrt qualify",
        ),
        (BenchOptions(overlap="action+expert"), "overlap.*got 'action.expert'"),
        (BenchOptions(overlap="ON"), "on, off, both, each, or of context, action, kernel, product"),
        (BenchOptions(overlap=""), "option 'overlap'"),
        (BenchOptions(plan(preset="huge")), "option 'preset'"),
        (BenchOptions(plan(precision="int1")), "precision.*int1"),
        (BenchOptions(plan(checkpoint="random:x")), "checkpoint.*random:x"),
        (BenchOptions(plan(checkpoint=f"random:{'9' * 5000}")), "checkpoint"),
        (BenchOptions(plan(checkpoint="/none/at/all")), "checkpoint '/none/at/all'.*no such path"),
        (BenchOptions(cases=(Case(2, 48, 1000),)), "'horizon'.*1..256, got 1000"),
        (BenchOptions(cases=(Case(2, 10**8, 10),)), "'prompt_buckets'.*1..4096"),
        (BenchOptions(output=Path("/")), "option '--output': .*got '/': it is a folder"),
        (BenchOptions(figure=Path("x.doc")), "option '--figure': .*got 'x.doc'"),
    ],
)
def test_options_are_refused_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch, options: BenchOptions, message: str
) -> None:
    def opened(*args: object, **options: object) -> None:
        raise AssertionError("a device was opened")

    monkeypatch.setattr(latency, "CudaDevice", opened)
    with pytest.raises(FlashRTError, match=message) as raised:
        run_bench(options, Console())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", ","], "case: expected views x tokens x horizon"),
        (["--cases", "²x48x10"], "got '²x48x10'"),
        (["--overlap", "ON"], "on, off, both, each, or of context, action, kernel, product"),
        (["--peer-paths", "eager"], "'peer-paths' of bench: expected --peer, got none"),
        (["--peer", "lerobot", "--peer-paths", "eager,,"], "'peer-paths': expected some of"),
        (["--output", "/"], "it is a folder"),
        (["--figure", "f.txt"], "option '--figure': expected a name that ends in .png"),
    ],
)
def test_the_command_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(lambda: app(["bench", *arguments])) == USER_ERROR
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_one_name_for_two_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.png"
    with pytest.raises(OptionError, match="'figure' of bench: expected another file"):
        run_bench(BenchOptions(cases=(LIGHT,), output=path, figure=path), Console())


def test_cases_are_read_from_text() -> None:
    assert parse_cases("2x48x10, 3X200x50,2x048x10") == (LIGHT, HEAVY)
    assert parse_cases("") == ()
    bad = ["2x48", "0x48x10", "axbxc", ",", "2x48x10,", "²x48x10", "2x٤x10", "2x-1x1"]
    for text in (*bad, f"2x48x{'9' * 5000}"):
        with pytest.raises(OptionError, match="case"):
            parse_cases(text)


def test_a_commit_is_that_of_this_package_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An installed package may lie inside of another checkout, whose commit says nothing."""
    monkeypatch.delenv("FLASHRT_COMMIT", raising=False)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    installed = tmp_path / "site" / "flashrt_core" / "bench" / "machine.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("")
    (tmp_path / "other").write_text("")
    for words in (["init", "-q"], ["add", "other"], ["commit", "-q", "-m", "other"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    monkeypatch.setattr(machine, "__file__", str(installed))
    found = SimpleNamespace(version="1.2", read_text=lambda _: None)
    monkeypatch.setattr(machine, "distribution", lambda _: found)
    assert machine.commit() == "flashrt-ros 1.2, installed"
    found.read_text = lambda _: json.dumps({"vcs_info": {"commit_id": "0123456789abcdef"}})
    assert machine.commit() == "0123456789ab"
    subprocess.run([*git, "add", "site"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    ours = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    assert machine.commit() == ours.stdout.strip()
    installed.write_text("changed")
    assert machine.commit() == ours.stdout.strip() + "-dirty"
