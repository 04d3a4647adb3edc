"""Measuring, as far as a machine without a GPU can check it: traces, rows, files, refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from flashrt_core.bench import command, peer_lerobot
from flashrt_core.bench.case import Case, parse_cases
from flashrt_core.bench.command import BenchOptions, run_bench
from flashrt_core.bench.layers import layer_traces
from flashrt_core.bench.machine import command_line
from flashrt_core.bench.report import describe_run, draw, peer_lines, write_json
from flashrt_core.bench.trace import KernelTime
from flashrt_core.errors import DeviceError, OptionError

PREFIX = ["norm", "product a", "turn", "attention", "product b", "norm", "product c"]
EXPERT = ["qkv", "few queries", "out", "geglu", "out"]


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
        "replay_ms": times,
        "call_ms": {name: value + 1.0 for name, value in times.items()},
        "kernels": 1300,
        "stage_ms": {"context": 5.0, "action": 4.0},
        "expert_layer_us": 22.2,
        "roofline_ms": {"vision": 1.0, "prefix": 2.0, "action": 1.5},
        "share_of_roofline": 0.5,
    }
    slow = {"name": "LeRobot", "version": "0.6.1", "path": "compiled_graph", "kernels": 5661}
    row = slow | {"ms": {"p50": 31.5, "p95": 31.6, "p99": 31.7}, "set_up_s": 102.0}
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


def test_a_command_names_files_without_their_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["x", "bench", "--output", "/somewhere/r.json", "--cases", "2x48x10", "--figure"]
    monkeypatch.setattr(sys, "argv", given)
    expected = "flashrt bench --output r.json --cases 2x48x10 --figure"
    assert command_line("flashrt") == expected


def test_no_peer_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    options = BenchOptions(cases=(Case(2, 48, 10),), peer="lerobot")
    with pytest.raises(DeviceError, match=r"\Apeer 'lerobot': .*pip install [^\n]*\Z"):
        run_bench(options, Console())


def test_a_peer_that_breaks_leaves_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Our cases are in the file before minutes of compiling begin, and then each row."""
    seen = []

    def peer(case: Case, samples: int, paths: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        seen.append((case, len(json.loads(output.read_text())["cases"])))
        yield {"name": "LeRobot", "version": "1", "path": "eager", "ms": {"p50": 90.0}}
        raise RuntimeError("compiler")

    cases, output = (Case(2, 48, 10), Case(3, 200, 50)), tmp_path / "r.json"
    monkeypatch.setattr(command, "Bench", lambda **options: SimpleNamespace(
        library="abc", gpu={}, close=lambda: None
    ))  # fmt: skip
    lines = [line(case, False) for case in cases]
    monkeypatch.setattr(command, "_measure", lambda *args: lines)
    monkeypatch.setattr(command, "require_lerobot", lambda: "0.6.1")
    monkeypatch.setattr(command, "run_peer", peer)
    options = BenchOptions(cases=cases, peer="lerobot", peer_cases=cases[1:], output=output)
    with pytest.raises(RuntimeError, match="compiler"):
        run_bench(options, Console())
    assert seen == [(cases[1], 2)]
    light, heavy = json.loads(output.read_text())["cases"]
    assert "peers" not in light
    assert [row["ratio_to_replay"] for row in heavy["peers"]] == [10.0]


def test_other_overlaps_of_chosen_cases() -> None:
    """Each way in one pass over its cases, and equal bits of what was measured twice."""
    ran: list[tuple[str, list[Case]]] = []

    def run(cases: Sequence[Case], samples: int, overlap: str, traced: bool = False) -> Any:
        ran.append((overlap, list(cases)))
        for case in cases:
            times = line(case, False)
            yield SimpleNamespace(case=case, actions=np.ones(3), to_json=lambda _, t=times: t)

    cases = (Case(2, 48, 10), Case(3, 200, 50))
    options = BenchOptions(cases=cases, overlap="both", overlap_cases=cases[1:])
    plain, chosen = command._measure(SimpleNamespace(run=run), options, cases)  # type: ignore[arg-type]
    assert ran == [("on", list(cases)), ("off", [cases[1]])]
    assert "other_overlaps" not in plain
    assert list(chosen["other_overlaps"]) == ["off"] and chosen["overlap_equal_bits"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BenchOptions(peer="openpi"), "option 'peer'"),
        (BenchOptions(peer="lerobot", peer_paths=("fast",)), "option 'peer-paths'.*eager"),
        (BenchOptions(peer="lerobot", preset="tiny"), "the peer's sizes"),
        (
            BenchOptions(cases=(Case(2, 48, 10),), peer_cases=(Case(1, 48, 10),)),
            "option 'peer-cases' of bench: expected some of the cases, got 1x48x10",
        ),
        (
            BenchOptions(cases=(Case(2, 48, 10),), overlap_cases=(Case(2, 48, 50),)),
            "option 'overlap-cases' of bench: expected some of the cases, got 2x48x50",
        ),
        (BenchOptions(samples=0), "samples"),
        (BenchOptions(overlap="action+expert"), "overlap.*got .'expert'"),
        (BenchOptions(overlap=""), "option 'overlap'"),
    ],
)
def test_options_are_refused_before_anything_is_opened(options: BenchOptions, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run_bench(options, Console())


def test_cases_are_read_from_text() -> None:
    assert parse_cases("2x48x10, 3X200x50") == (Case(2, 48, 10), Case(3, 200, 50))
    assert parse_cases("") == ()
    for bad in ("2x48", "0x48x10", "4x48x10", "axbxc"):
        with pytest.raises(OptionError, match="case"):
            parse_cases(bad)
