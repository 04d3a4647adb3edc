"""A node under load: started, fed by sensors in another process, watched from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_core.errors import FlashRTError
from flashrt_ros.replay.client import PolicyClient
from flashrt_ros.replay.counters import NOT_MADE
from flashrt_ros.replay.node_process import NodeProcess
from flashrt_ros.replay.parameter_file import ParameterFile
from flashrt_ros.replay.progress import Phase
from flashrt_ros.replay.records import PARTS
from flashrt_ros.replay.report import statistics, unique
from flashrt_ros.replay.transport import child_environment, use_shared_memory

from .sensors import SensorOptions

_WARM_DECISIONS = 20
_STALL_S = 0.4  # of the node: more images than the queue of any camera holds
_START_S, _SAMPLE_S = 60.0, 0.5


class LoadError(FlashRTError):
    """The sensors of a run under load ended, or the node did not begin to decide."""

    code = 94


@dataclass(frozen=True)
class Snapshot:
    """The node's own account at one moment."""

    at_ns: int  # monotonic
    diagnostics: Mapping[str, Mapping[str, str]]

    def part(self, name: str) -> Mapping[str, str]:
        """One status of the node."""
        return self.diagnostics[f"policy: {name}"]

    def seconds(self, key: str) -> float:
        """A time that the node counts."""
        return float(self.part("decisions")[key])

    def count(self, part: str, key: str) -> int:
        """A counter of the node."""
        return int(self.part(part)[key])


def run_load(
    parameters: ParameterFile, sensors: SensorOptions, seconds: float, log: Path, phase: Phase
) -> dict[str, Any]:
    """Run it for ``seconds`` after a warm-up; the report, ready for JSON.

    The warm-up is an activation of its own. It ends with a stall of the node, after which every
    queue of images has been full once and holds its memory.

    Args:
        parameters: of the node.
        sensors: what is published.
        seconds: that are measured.
        log: file for what the node prints.
        phase: told of progress.

    Raises:
        FlashRTError: the node or the sensors did not start, or ended.
    """
    with NodeProcess(parameters.path, log) as node, PolicyClient() as client:
        client.watch = node.check
        node.wait_ready(client)
        node.configure(client)
        with _sensors(sensors) as process:
            _warm_up(node, client, process)
            start = _snapshot(client, 2)
            client.chunks.clear()
            client.timings.clear()
            _say(process, "go")
            node.activate(client)
            before, memory = _snapshot(client), []
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, _SAMPLE_S))
                node.check()
                _check_sensors(process)
                memory.append(_anonymous_mb(node.pid))
                phase(1 - max(left, 0) / seconds, f"{len(client.chunks)} decisions")
            after = _snapshot(client)
            client.deactivate()
            sent = _stop(process)
        account = _snapshot(client, 2)
        return {
            "seconds": seconds,
            "sensors": asdict(sensors) | {"parameters": parameters.path.name},
            "inputs": _inputs(start, account, sent["sent"]),
            "sensors_late_ms": sent["late_ms"],
            "decisions": _decisions(start, account, client),
            "latency_ms": _latency(client),
            "overhead_ms": _overhead(account),
            "cpu": _cpu(before, after),
            "memory_mb": _memory(memory),
        }


@contextmanager
def _sensors(options: SensorOptions) -> Iterator[subprocess.Popen[str]]:
    environment = child_environment()
    use_shared_memory(environment)
    command = [sys.executable, "-m", "flashrt_ros.bench.sensors", json.dumps(asdict(options))]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if line.strip() != "ready":
            raise LoadError("the sensors", expected="'ready'", got=line.strip() or "an end")
        yield process
    finally:
        process.kill()
        process.communicate()


def _say(process: subprocess.Popen[str], word: str) -> None:
    if process.stdin is None:
        raise LoadError("the sensors", expected="a standard input", got="none")
    process.stdin.write(word + "\n")
    process.stdin.flush()


def _stop(process: subprocess.Popen[str]) -> dict[str, Any]:
    _say(process, "stop")
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise LoadError("the sensors", expected="what was sent", got="an end")
    found: dict[str, Any] = json.loads(line)
    return found


def _check_sensors(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        raise LoadError("the sensors", expected="to run", got=f"status {process.returncode}")


def _warm_up(node: NodeProcess, client: PolicyClient, process: subprocess.Popen[str]) -> None:
    """Decide for a while, stall, go on, and stop."""
    _say(process, "go")
    node.activate(client)
    _wait_for_chunks(node, client, _WARM_DECISIONS)
    os.kill(node.pid, signal.SIGSTOP)
    try:
        time.sleep(_STALL_S)
    finally:
        os.kill(node.pid, signal.SIGCONT)
    _wait_for_chunks(node, client, len(client.chunks) + _WARM_DECISIONS // 2)
    client.deactivate()
    _stop(process)


def _wait_for_chunks(node: NodeProcess, client: PolicyClient, count: int) -> None:
    limit = time.monotonic() + _START_S
    while len(client.chunks) < count:
        node.check()
        if time.monotonic() > limit:
            raise LoadError(
                "the node under load",
                expected=f"{count} decisions within {_START_S:g} s",
                got=f"{len(client.chunks)}; {node.reason()}",
            )
        time.sleep(0.02)


def _snapshot(client: PolicyClient, arrays: int = 1) -> Snapshot:
    """After so many further arrays: the second one began after all that came before the call."""
    if not client.wait_for_diagnostics(arrays, 10.0):
        raise LoadError("the node's diagnostics", expected="one a second", got="none in 10 s")
    values = {name: dict(each) for name, each in client.diagnostics.items()}
    return Snapshot(client.diagnostics_ns, values)


def _anonymous_mb(pid: int) -> float:
    """Anonymous and shared memory of a process: what it allocated. Pages of files come and go."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}
    return (int(sizes["RssAnon"]) + int(sizes["RssShmem"])) * 1024 / 1e6


def _inputs(start: Snapshot, end: Snapshot, sent: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, count in sent.items():
        part = f"input {name}"
        values = end.part(part)
        counted = {
            key: end.count(part, key) - start.count(part, key)
            for key in ("received", "accepted", "refused", "used")
        }
        found[name] = {
            "sent": count,
            **counted,
            "lost": count - counted["received"],
            "oldest_used_s": float(values["oldest_used_s"]),  # that of the warm-up included
            "max_age_s": float(values["max_age_s"]),
        }
    return found


def _decisions(start: Snapshot, end: Snapshot, client: PolicyClient) -> dict[str, Any]:
    counted = {
        key: end.count("decisions", key) - start.count("decisions", key)
        for key in ("decisions", "deadline_missed", *NOT_MADE)
    }
    chunks = unique(client.chunks)
    seconds = (chunks[-1].received_ns - chunks[0].received_ns) * 1e-9 if len(chunks) > 1 else 0.0
    return {
        "made": counted["decisions"],
        "received": len(chunks),
        "lost": counted["decisions"] - len(chunks),
        "not_finite": sum(not np.isfinite(chunk.actions).all() for chunk in chunks),
        "rate_hz": round((len(chunks) - 1) / seconds, 4) if seconds else 0.0,
        "deadline_missed": counted["deadline_missed"],
        "refused": {words: counted[key] for key, words in NOT_MADE.items() if counted[key]},
    }


def _latency(client: PolicyClient) -> dict[str, dict[str, float]]:
    timings = unique(client.timings)
    found = {part: statistics(t.parts_ms[part] for t in timings) for part in PARTS}
    found["total"] = statistics(t.total_ms for t in timings)
    found["observation age"] = statistics(t.age_ms for t in timings)
    return found


def _overhead(end: Snapshot) -> dict[str, float]:
    mark = "overhead_ms."
    values = end.part("decisions").items()
    return {k.removeprefix(mark): float(value) for k, value in values if k.startswith(mark)}


def _cpu(before: Snapshot, after: Snapshot) -> dict[str, float]:
    wall = (after.at_ns - before.at_ns) * 1e-9
    process, policy = (
        100.0 * (after.seconds(key) - before.seconds(key)) / wall
        for key in ("cpu_s", "policy_cpu_s")
    )
    return {
        "process_percent": round(process, 2),
        "policy_percent": round(policy, 2),
        "outside_percent": round(process - policy, 2),
        "seconds": round(wall, 3),
    }


def _memory(samples: list[float]) -> dict[str, float]:
    """The first and the last tenth against each other: a median does not follow a short peak."""
    tenth = max(1, len(samples) // 10)
    start, end = float(np.median(samples[:tenth])), float(np.median(samples[-tenth:]))
    return {
        "start": round(start, 3),
        "end": round(end, 3),
        "growth": round(end - start, 3),
        "greatest": round(max(samples), 3),
    }
