"""``flashrt replay``: any rosbag2 through the node of a parameter file, and a report of it."""

from __future__ import annotations

import hashlib
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashrt_core.bench.machine import machine

from .bag import Bag, Route
from .figure import RESULTS, write_results
from .messages import message_class
from .node_process import refuse_running
from .output import results_folder
from .parameter_file import ParameterFile, read_parameters
from .progress import Reporter
from .records import ChunkRecord, RunRecord
from .report import render, summarise, versions
from .run import Settings, run_steps, run_timed
from .transport import choose_graph, use_shared_memory


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay; see ``flashrt replay --help``."""

    bag: Path
    parameters: Path
    rate: float = 1.0
    step: bool = False
    limit: int | None = None
    remaps: Mapping[str, str] = field(default_factory=dict)
    out: Path = Path("out")
    seed: int | None = None
    domain: int | None = None


def run_replay(options: ReplayOptions, reporter: Reporter) -> int:
    """Run it; 0 when the node decided at least once, else 1.

    Writes ``replay.json``, ``replay.csv``, ``replay.png`` and the node's log into ``options.out``.

    Raises:
        FlashRTError: bag and parameter file do not fit, the folder cannot be used, the domain has
            such a node already, or the node failed.
    """
    parameters = read_parameters(options.parameters)
    with Bag(options.bag) as bag:
        routes = bag.routes(parameters.inputs, parameters.path, options.remaps)
        for line in _left_out(bag, routes):
            reporter.say(line)
        choose_graph(options.domain).enter()
        if warning := use_shared_memory():
            reporter.say(f"note: {warning}")
        if parameters.outputs:
            reporter.say(
                f"outputs are off in a replay; without effect: {', '.join(parameters.outputs)}"
            )
        refuse_running(options.domain)
        with results_folder(options.out, [f"replay{end}" for end in RESULTS]) as out:
            return _replay_into(out, bag, parameters, options, reporter)


def _replay_into(
    out: Path, bag: Bag, parameters: ParameterFile, options: ReplayOptions, reporter: Reporter
) -> int:
    log = out / "replay_node.log"
    settings = Settings(parameters, log, options.seed, options.remaps)
    with reporter.phase(f"replaying {options.bag.name}") as phase:
        if options.step:
            run, chunks = run_steps(bag, settings, phase, options.limit)
        else:
            run, chunks = run_timed(bag, settings, options.rate, phase), []
    report = summarise(run)
    if options.step:
        report["chunks_sha256"] = digest(chunks)
    report["parameters_without_effect"] = list(parameters.outputs)
    report["seed"] = parameters.config.seed if options.seed is None else options.seed
    report |= {"versions": versions(), "machine": machine()}
    report["command"] = shlex.join(["flashrt", *sys.argv[1:]])
    stem = out / "replay"
    write_results(stem, report, run, _subtitle(parameters, options, run, report))
    reporter.console.print(render(report))
    reporter.say(f"wrote {stem}.json, .csv" + (" and .png" if run.timings else ""))
    if not report["decisions"]:
        reporter.say(f"FAILED: no decision was made; see the refusals above and {log}")
        return 1
    return 0


def _subtitle(
    parameters: ParameterFile, options: ReplayOptions, run: RunRecord, report: Mapping[str, Any]
) -> str:
    config = parameters.config
    return (
        f"{options.bag.name}, {run.mode}"
        + _pace(options)
        + f"  |  preset {config.preset}, {config.device}, {config.precision}  |  "
        + f"{report['machine']['cpu']}, {report['machine']['cores']} cores"
    )


def _pace(options: ReplayOptions) -> str:
    if options.step:
        return ""
    return " at full speed" if math.isinf(options.rate) else f" at {options.rate:g} x"


def digest(chunks: Sequence[ChunkRecord]) -> str:
    """SHA-256 (hex) over sequence, stamp and action bytes of every chunk, in order."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(f"{chunk.session} {chunk.sequence} {chunk.stamp_ns} ".encode())
        state.update(chunk.actions.tobytes())
    return state.hexdigest()


def _left_out(bag: Bag, routes: Sequence[Route]) -> list[str]:
    """Lines on the topics that are not played: the node does not use them, or nobody could."""
    played = {route.topic for route in routes}
    rest = [topic for topic in bag.topics.values() if topic.name not in played]
    foreign = [topic for topic in rest if message_class(topic.msgtype) is None]
    lines = [
        f"skipped {topic.name}: message type {topic.msgtype} is not installed" for topic in foreign
    ]
    unused = [topic.name for topic in rest if topic not in foreign]
    if unused:
        lines.append(f"not played, no input of the node: {', '.join(unused)}")
    return lines
