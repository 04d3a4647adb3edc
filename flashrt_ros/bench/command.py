"""``flashrt bench node``: the node of a parameter file under a robot's load, against limits."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flashrt_core.bench.machine import command_line, commit, gpu_state, machine
from flashrt_core.bench.report import write_json
from flashrt_core.errors import OptionError
from flashrt_core.outputs import check_output
from flashrt_ros.paths import config_file
from flashrt_ros.replay.node_process import refuse_running
from flashrt_ros.replay.parameter_file import read_parameters
from flashrt_ros.replay.progress import Reporter
from flashrt_ros.replay.report import versions
from flashrt_ros.replay.transport import choose_graph, use_shared_memory

from .load import run_load
from .report import Limits, render, verdict
from .sensors import SensorOptions

_SECONDS = (1.0, 86400.0)


@dataclass(frozen=True)
class NodeBenchOptions:
    """What to run; see ``flashrt bench node --help``."""

    parameters: Path | None = None
    changes: Mapping[str, object] = field(default_factory=dict)  # parameters instead of the file's
    seconds: float = 600.0
    camera_hz: float = 30.0
    joint_hz: float = 100.0
    width: int = 640
    height: int = 480
    limits: Limits = field(default_factory=Limits)
    domain: int | None = None
    output: Path | None = None


def run_node_bench(options: NodeBenchOptions, reporter: Reporter) -> int:
    """Run it; 0 where every limit holds, else 1.

    Raises:
        FlashRTError: an option or the parameter file does not do, or the node did not start.
    """
    if not _SECONDS[0] <= options.seconds <= _SECONDS[1]:
        raise OptionError("option '--seconds'", expected="1 to 86400", got=options.seconds)
    output = None if options.output is None else check_output("--output", options.output)
    file = read_parameters(options.parameters or config_file("node_bench.yaml"))
    file = file.changed(options.changes)
    if not file.config.rate_hz:
        raise OptionError(
            "parameter 'rate_hz'",
            expected="more than 0: timed decisions are measured",
            got=0,
            remedy="--set rate_hz:=10.0",
        )
    if warning := use_shared_memory({}):
        reporter.say(f"note: {warning}")
    if file.outputs:
        reporter.say(f"outputs are off under load; without effect: {', '.join(file.outputs)}")
    refuse_running(options.domain)
    code = commit()  # that runs: in ten minutes files may have been edited
    choose_graph(options.domain).enter()
    with tempfile.TemporaryDirectory(prefix="flashrt-bench-") as folder:
        # Its decisions are made from noise: no controller may hear of them.
        file.write_without_outputs(Path(folder) / "node.yaml")
        file = read_parameters(Path(folder) / "node.yaml")
        sensors = SensorOptions(
            str(file.path), options.camera_hz, options.joint_hz, options.width, options.height
        )
        log = Path(folder) / "node.log"
        with reporter.phase(f"node under load, {options.seconds:g} s") as phase:
            report = run_load(file, sensors, options.seconds, log, phase)
    report |= verdict(report, options.limits)
    report |= {"machine": machine(), "versions": versions(), "commit": code}
    if file.config.device == "cuda":
        report["gpu"] = gpu_state()
    report["command"] = command_line("flashrt")
    if output is not None:
        write_json(report, output)
    reporter.console.print(render(report))
    if output is not None:
        reporter.say(f"wrote {output}")
    failed = [check["name"] for check in report["checks"] if not check["passed"]]
    if failed:
        reporter.say(f"FAILED: {', '.join(failed)}")
    return int(bool(failed))
