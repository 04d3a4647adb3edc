"""Episodes through a node: it and the simulator as processes, in real time."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flashrt_core.evaluation.command import shown
from flashrt_core.evaluation.rollout import Outcome
from flashrt_core.evaluation.task import TaskError
from flashrt_ros.parameters import build_config
from flashrt_ros.replay.client import PolicyClient
from flashrt_ros.replay.node_process import NodeProcess
from flashrt_ros.replay.output import writing
from flashrt_ros.replay.records import PARTS, TimingRecord
from flashrt_ros.replay.report import statistics, unique
from flashrt_ros.replay.transport import child_environment, use_shared_memory

from .parameters import topics
from .simulator import SimulatorOptions

_START_S, _PROMPT_S, _FIRST_S, _END_S, _LEAVE_S = 60.0, 8.0, 20.0, 120.0, 5.0
_STUCK = "no trajectory came to the controller, or the task's `advance` does not return; "
#: What diagnostics count, and what it is called in a result.
_COUNTED = {
    "decisions": ("decisions", "stale", "skewed", "failed", "stopped", "deadline_missed"),
    "execution": ("chunks", "late_chunks", "skipped_rows", "trajectories"),
}
_SAFE = "safe."
_DEACTIVATED = "safe.deactivated"  # the end of every episode, and no event in one


@dataclass(frozen=True)
class Loop:
    """One setting.

    Attributes:
        task: folder of the task's package.
        values: the node's parameters.
        added_s: by which every decision takes longer.
        camera_hz: observations a second.
        folder: for the parameter file and logs.
        name: of the setting, in file names.
        frames_hz: pictures a second of simulated time that are kept; 0: none.
    """

    task: Path
    values: Mapping[str, Any]
    added_s: float
    camera_hz: float
    folder: Path
    name: str = "loop"
    frames_hz: float = 0.0


@dataclass
class LoopResult:
    """What became of a setting.

    Attributes:
        outcomes: of every start.
        counts: by diagnostics' names, since the node was configured.
        safe_actions: times that the safe action was taken in an episode, for any cause.
        latency_ms: by part of a decision.
        jumps: how far the action that is due moved where a chunk came in, by joint.
        acceleration: of the set points, means over episodes, 1/s^2.
        pace: simulated over wall time, of the slowest episode.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    safe_actions: int = 0
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    jumps: dict[str, dict[str, float]] = field(default_factory=dict)
    acceleration: dict[str, float] = field(default_factory=dict)
    pace: float = 0.0

    def as_dict(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Plain values for JSON, without the outcomes, with the node's parameters."""
        values = asdict(self)
        del values["outcomes"]
        own = dict(parameters) | {"checkpoint": shown(parameters["checkpoint"])}
        return values | {"parameters": own}


class SimulatorProcess:
    """The simulator of a task; use as a context manager."""

    def __init__(self, options: SimulatorOptions, log: Path) -> None:
        self._command = [sys.executable, "-m", "flashrt_ros.evaluation.simulator"]
        self._command.append(json.dumps(asdict(options)))
        self.log = log
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> SimulatorProcess:
        environment = child_environment()
        use_shared_memory(environment)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with writing("log", self.log), self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                bufsize=1,
                env=environment,
            )
        threading.Thread(target=self._read, name="simulator", daemon=True).start()
        try:
            self.answer(_START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def order(self, timeout_s: float = _START_S, **order: Any) -> dict[str, Any]:
        """Give an order; the answer."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
        except OSError as error:
            raise self._failure() from error
        return self.answer(timeout_s)

    def answer(
        self,
        timeout_s: float,
        watch: Callable[[], None] = lambda: None,
        what: str = "an answer",
        remedy: str = "",
    ) -> dict[str, Any]:
        """The next line.

        Args:
            timeout_s: how long it may take, from the last sign that an episode goes on.
            watch: called while it does.
            what: that is waited for, for the message.
            remedy: what to do where none comes, with a stop behind.

        Raises:
            TaskError: the process ended, with its own reason, or none came in time.
        """
        limit = time.monotonic() + timeout_s
        while True:
            try:
                found: dict[str, Any] = json.loads(self._lines.get(timeout=0.1))
                if found.keys() == {"time_s"}:  # the task says how long that may be
                    limit = time.monotonic() + timeout_s
                    continue
                if said := found.get("error"):
                    raise self._error(**said)
                return found
            except queue.Empty:
                watch()
                if self._process.poll() is not None and self._lines.empty():
                    raise self._failure() from None
                if time.monotonic() > limit:
                    raise TaskError(
                        "the simulator",
                        expected=f"{what} within {timeout_s:g} s",
                        got="none",
                        remedy=f"{remedy}see {self.log}",
                    ) from None

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)

    def _error(
        self, what: str, expected: str | None, got: str | None, remedy: str | None
    ) -> TaskError:
        """An error of the process, in its own words, and where its log is."""
        with suppress(subprocess.TimeoutExpired):  # it logs what it said, and ends
            self._process.wait(_LEAVE_S)
        also = f"{remedy}; " if remedy else ""
        return TaskError(what, expected=expected, got=got, remedy=f"{also}see {self.log}")

    def _failure(self) -> TaskError:
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        return TaskError(
            "the simulator", expected="to run", got=f"an end: {lines[-1]}", remedy=f"see {self.log}"
        )


def run_loop(
    loop: Loop,
    seeds: Sequence[int],
    told: Callable[[Outcome], None] = lambda _: None,
    ended: Callable[[SimulatorProcess, Outcome], None] = lambda _simulator, _outcome: None,
) -> LoopResult:
    """Run the starts one after the other.

    The node is activated for each and deactivated behind it; the world stands still until its first
    trajectory comes, and goes on in real time from then.

    Args:
        loop: the setting; this process has entered its DDS graph.
        seeds: the starts.
        told: called after each episode.
        ended: called with the simulator, before the next one begins.

    Raises:
        FlashRTError: node or simulator did not start, or ended.
    """
    result, notes = LoopResult(), list[dict[str, Any]]()
    timings: list[TimingRecord] = []
    with _opened(loop) as (node, client, simulator):
        for seed in seeds:
            asked = simulator.order(start=seed, frames_hz=loop.frames_hz)
            _wait_for_prompt(node, client, asked["instruction"])
            before = len(client.timings)
            node.activate(client)
            watch = _first_chunk(node, client, before)
            end = f"the end of episode {seed}, or that its time goes on,"
            found = simulator.answer(_END_S, watch, end, _STUCK)
            client.deactivate()
            made = unique(client.timings[before:])
            timings += made
            spent = [timing.total_ms for timing in made]
            mean = {"decide_ms": round(sum(spent) / max(1, len(spent)), 3), "decisions": len(made)}
            result.outcomes.append(Outcome(**(found["outcome"] | mean)))
            notes.append(found)
            told(result.outcomes[-1])
            ended(simulator, result.outcomes[-1])
        if not client.wait_for_diagnostics(2, 10.0):
            raise TaskError(
                "the node's diagnostics",
                expected="one a second",
                got="none in 10 s",
                remedy=f"see {node.log}",
            )
        _account(result, client, timings)
    for key in notes[0]["acceleration"] if notes else ():
        result.acceleration[key] = float(np.mean([note["acceleration"][key] for note in notes]))
    result.pace = min((note["pace"] for note in notes), default=0.0)
    return result


@contextmanager
def _opened(loop: Loop) -> Iterator[tuple[NodeProcess, PolicyClient, SimulatorProcess]]:
    """Both processes, the node configured."""
    file = loop.folder / f"{loop.name}.yaml"
    values = dict(loop.values)
    with writing("parameter file", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": values}}, sort_keys=False))
    sensors = SimulatorOptions(
        task=str(loop.task), camera_hz=loop.camera_hz, **topics(build_config(values))
    )
    program = ("flashrt_ros.evaluation.slow_node", str(loop.added_s)) if loop.added_s else ()
    with (
        SimulatorProcess(sensors, loop.folder / f"{loop.name}_simulator.log") as simulator,
        NodeProcess(file, loop.folder / f"{loop.name}_node.log", program=program) as node,
        PolicyClient("/policy") as client,
    ):
        client.watch = node.check
        node.wait_ready(client)
        node.configure(client)
        yield node, client, simulator


def _wait_for_prompt(node: NodeProcess, client: PolicyClient, text: str) -> None:
    """Until the node says that it has this instruction."""
    limit = time.monotonic() + _PROMPT_S
    while client.diagnostics.get("policy: decisions", {}).get("prompt") != text:
        node.check()
        if time.monotonic() > limit:
            raise TaskError(
                "the prompt of the node",
                expected=f"'{text}' within {_PROMPT_S:g} s",
                got=node.reason(),
                remedy=f"see {node.log}",
            )
        time.sleep(0.02)


def _first_chunk(node: NodeProcess, client: PolicyClient, before: int) -> Callable[[], None]:
    """To be called while an episode runs: the node lives, and made a first decision in time."""
    limit = time.monotonic() + _FIRST_S

    def watch() -> None:
        node.check()
        if len(client.timings) == before and time.monotonic() > limit:
            raise TaskError(
                "the first decision of an episode",
                expected=f"within {_FIRST_S:g} s",
                got=f"none: {node.reason()}",
                remedy=f"see {node.log}",
            )

    return watch


def _account(result: LoopResult, client: PolicyClient, timings: Sequence[TimingRecord]) -> None:
    """Take over what the node counted."""
    parts = {name: client.diagnostics.get(f"policy: {name}", {}) for name in _COUNTED}
    for part, names in _COUNTED.items():
        result.counts |= {name: int(parts[part].get(name, 0)) for name in names}
    execution = parts["execution"]
    safe = {k: int(v) for k, v in execution.items() if k.startswith(_SAFE) and k != _DEACTIVATED}
    result.counts |= safe
    result.safe_actions = sum(safe.values())
    for key, value in execution.items():
        if key.startswith("jump."):
            name, _, kind = key.removeprefix("jump.").rpartition(".")
            result.jumps.setdefault(name, {})[kind] = float(value)
    result.latency_ms = {part: statistics(t.parts_ms[part] for t in timings) for part in PARTS}
    result.latency_ms["total"] = statistics(t.total_ms for t in timings)
    result.latency_ms["observation age"] = statistics(t.age_ms for t in timings)
