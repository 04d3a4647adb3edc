"""Nothing is timed behind a profiler: it slows what its process does afterwards."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from flashrt_core.bench import command, latency, machine, peer_lerobot
from flashrt_core.bench.case import Case
from flashrt_core.bench.command import BenchOptions, run_bench
from flashrt_core.bench.latency import Bench, CaseTrace
from flashrt_core.bench.trace import KernelTime
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.devices.overlap import DEFAULT
from flashrt_core.engine import Engine
from flashrt_core.load import LoadOptions
from test.bench.test_bench import HEAVY, LIGHT, line, plan


class _Timed:
    """A case that was measured."""

    def __init__(self, case: Case, precision: str) -> None:
        self.case, self.actions = case, np.ones(3)
        self._line = line(case, False) | {"precision": precision, "kernel_totals": []}

    def to_json(self, precision: str) -> dict[str, Any]:
        assert precision == self._line["precision"]
        return dict(self._line)


class _Recorded:
    """A bench of one plan that notes what it is asked for."""

    library, gpu = "abc", {"name": "a GPU"}

    def __init__(self, plan: LoadOptions, asked: list[tuple[Any, ...]]) -> None:
        self.plan, self._asked, self._packed = plan, asked, False

    def _note(self, what: str, *more: Any) -> None:
        self._packed = self._packed or what != "close"
        self._asked.append((what, self.plan.precision, *more))

    def run(self, cases: Sequence[Case], samples: int, *, overlap: str) -> Iterator[_Timed]:
        for case in cases:
            self._note("time", str(case), overlap)
            yield _Timed(case, str(self.plan.precision))

    def traces(self, cases: Sequence[Case], *, overlap: str) -> Iterator[CaseTrace]:
        for case in cases:
            self._note("trace", str(case), overlap)
            yield CaseTrace([KernelTime(f"{case} {self.plan.precision}", 0.0, 2.0)])

    def close(self) -> None:
        if self._packed:
            self._note("close")
        self._packed = False


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is asked of benches and of the peer, in order."""
    noted: list[tuple[Any, ...]] = []

    def peer(
        cases: Sequence[Case], samples: int, paths: Sequence[str], policy: str
    ) -> Iterator[tuple[Case, dict[str, Any]]]:
        for case in cases:
            noted.append(("time", "peer", str(case)))
            yield case, {"name": "LeRobot", "version": "1", "path": "eager", "ms": {"p50": 90.0}}
        for case in cases:
            noted.append(("trace", "peer", str(case)))
            yield case, {"path": "eager", "kernels": 7}

    monkeypatch.setattr(command, "check_loadable", lambda options: None)
    monkeypatch.setattr(command, "Bench", partial(_Recorded, asked=noted))
    monkeypatch.setattr(command, "run_peer", peer)
    monkeypatch.setattr(command, "require_lerobot", lambda policy: "1")
    monkeypatch.setattr(machine, "gpu_state", dict)
    return noted


def test_traces_come_behind_all_times_of_all_plans(
    asked: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    options = BenchOptions(
        plan(precision="fp8,bf16"),
        cases=(LIGHT, HEAVY),
        overlap="both",
        overlap_cases=(LIGHT,),
        trace=True,
        output=tmp_path / "r.json",
    )
    result = run_bench(options, Console(file=io.StringIO()))
    light, heavy = str(LIGHT), str(HEAVY)
    assert asked == [
        *(("time", "fp8", heavy, DEFAULT), ("time", "fp8", light, DEFAULT)),
        *(("time", "fp8", light, "off"), ("close", "fp8")),
        *(("time", "bf16", heavy, DEFAULT), ("time", "bf16", light, DEFAULT)),
        ("time", "bf16", light, "off"),
        # Those weights are on the device still.
        *(("trace", "bf16", heavy, DEFAULT), ("trace", "bf16", light, DEFAULT), ("close", "bf16")),
        *(("trace", "fp8", heavy, DEFAULT), ("trace", "fp8", light, DEFAULT), ("close", "fp8")),
    ]
    assert json.loads(options.output.read_text()) == result  # type: ignore[union-attr]
    for case in result["cases"]:
        name = f"{case['views']}x{case['prompt_tokens']}x{case['horizon']} {case['precision']}"
        assert [row["kernel"] for row in case["kernel_totals"]] == [name]


def test_a_peer_is_timed_in_front_of_our_traces(asked: list[tuple[Any, ...]]) -> None:
    options = BenchOptions(cases=(LIGHT, HEAVY), trace=True, peer="lerobot", peer_paths=("eager",))
    result = run_bench(options, Console(file=io.StringIO()))
    kinds = [(what, whose) for what, whose, *_ in asked]
    assert kinds == [
        *([("time", "bf16")] * 2 + [("close", "bf16")]),  # room for the peer's network
        *([("time", "peer")] * 2 + [("trace", "peer")] * 2),
        *([("trace", "bf16")] * 2 + [("close", "bf16")]),
    ]
    for case in result["cases"]:
        (row,) = case["peers"]
        assert (row["kernels"], row["ratio_to_replay"]) == (7, 10.0)


def test_what_was_timed_is_in_the_file_if_tracing_fails(
    asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object, **__: object) -> Iterator[CaseTrace]:
        raise RuntimeError("CUPTI")

    monkeypatch.setattr(_Recorded, "traces", fails)
    output = tmp_path / "r.json"
    with pytest.raises(RuntimeError, match="CUPTI"):
        run_bench(BenchOptions(cases=(LIGHT,), trace=True, output=output), Console(quiet=True))
    (case,) = json.loads(output.read_text())["cases"]
    assert case["replay_ms"]["p50"] == 9.0 and case["kernel_totals"] == []
    assert asked[-1] == ("close", "bf16")


def test_a_peer_is_counted_behind_all_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[Any, ...]] = []

    class Network:
        """LeRobot's code, as far as the order of calls goes."""

        @staticmethod
        def build(case: Case) -> list[Any]:
            noted.append(("build", str(case)))
            return [str(case)]

        @staticmethod
        def call(model: list[Any], case: Case) -> Callable[[], Any]:
            return lambda: tuple(model)

        @staticmethod
        def compiled_graph(model: list[Any], case: Case) -> Callable[[], Any]:
            model.append("compiled")  # as torch.compile of a part of it does
            return lambda: tuple(model)

    def sample(run: Callable[[], Any], samples: int) -> np.ndarray[Any, Any]:
        noted.append(("time", *run()))
        return np.full(samples, 90.0)

    def count(run: Callable[[], Any]) -> int:
        noted.append(("count", *run()))
        return len(run())

    monkeypatch.setattr(peer_lerobot, "_peer", lambda policy: Network)
    monkeypatch.setattr(peer_lerobot, "require_lerobot", lambda policy: "1")
    monkeypatch.setattr(peer_lerobot, "_sample", sample)
    monkeypatch.setattr(peer_lerobot, "_count_kernels", count)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    light, heavy = str(LIGHT), str(HEAVY)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for case, found in peer_lerobot.run_peer((LIGHT, HEAVY), 4):
        rows.setdefault((str(case), found["path"]), {}).update(found)
    assert noted == [
        *(("build", light), ("time", light)),
        *(("build", light), ("time", light, "compiled")),
        *(("build", heavy), ("time", heavy)),
        *(("build", heavy), ("time", heavy, "compiled"), ("count", heavy, "compiled")),
        *(("build", light), ("count", light)),
        *(("build", light), ("count", light, "compiled")),
        *(("build", heavy), ("count", heavy)),
    ]
    assert len(rows) == 4
    for (_, path), row in rows.items():
        assert row["kernels"] == (1 if path == "eager" else 2)
        assert (row["name"], row["samples"], row["ms"]["p50"]) == ("LeRobot", 4, 90.0)


class _Device(CpuDevice):
    """The CPU in the place of a GPU: the same sessions, and programs of one kernel."""

    library = "none"

    def __init__(self, overlap: str = "on") -> None:
        super().__init__(threads=1)


def test_traced_sessions_are_the_bench_s_own_and_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine with the most rows stays for its weights, the others one by one."""
    left: list[Any] = []
    start, close = latency.start, Engine.close

    def started(*given: Any) -> Any:
        session = start(*given)
        left.append(session.engine)
        return session

    def closed(engine: Any) -> None:
        left.remove(engine)
        close(engine)

    def trace(device: Any, program: Any) -> list[KernelTime]:
        device.replay(program)
        return [KernelTime(f"of {len(left)}", 0.0, device.elapsed_ms(program)["action"] * 1e3)]

    monkeypatch.setattr(latency, "CudaDevice", _Device)
    monkeypatch.setattr(latency, "trace", trace)
    monkeypatch.setattr(latency, "start", started)
    monkeypatch.setattr(Engine, "close", closed)
    bench = Bench(plan(preset="tiny", precision="fp32"))
    cases = [Case(2, 32, 4, 1), Case(1, 32, 4, 1), Case(1, 32, 6, 1)]
    for again in range(3):
        found = [each.to_json() for each in bench.traces(cases)]
        assert [case["kernel_totals"][0]["kernel"] for case in found] == ["of 1", "of 2", "of 2"]
        assert all(case["kernel_totals"][0]["total_us"] > 0.0 for case in found)
        assert len(left) == 1
        if again:  # the last time it is a bench that was closed
            bench.close()
            assert not left
