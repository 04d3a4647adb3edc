"""``flashrt demo``: record the synthetic workcell, play it into a node, measure and verify."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_core.errors import OptionError
from flashrt_core.load import load
from flashrt_ros.loading import load_options

from .bag import Bag
from .figure import RESULTS, write_results
from .node_process import refuse_running
from .output import results_folder
from .parameter_file import ParameterFile, read_parameters
from .progress import Reporter
from .recording import Recorder, write_recording
from .report import machine, render, summarise, versions
from .run import DEFAULT_HZ, LiveNode, Settings, run_steps, run_timed
from .step import steps
from .transport import choose_graph, default_parameters, use_shared_memory
from .verify import (
    bit_identical,
    capsule_bit_exact,
    capsule_over_services,
    full_equals_split,
    observations,
)

LEAST_DECISIONS = 50
_STEPS = 10  # decisions of each of the two runs that are compared
_FURTHER = 4  # decisions that follow them, before and after a restore


@dataclass(frozen=True)
class DemoOptions:
    """Seconds to record, folder for results, seed, DDS domain (None: a private one)."""

    seconds: float = 10.0
    out: Path = Path("out")
    seed: int = 0
    domain: int | None = None


def run_demo(options: DemoOptions, reporter: Reporter) -> int:
    """Run it; 0 when every check holds and enough decisions were made, else 1.

    Writes ``demo.json``, ``.csv`` and ``.png``, the recording and the node's log into
    ``options.out``.

    Raises:
        FlashRTError: an option or a file does not do, or the node did not do what it was asked.
    """
    parameters = read_parameters(default_parameters())
    _check_length(options.seconds, parameters.config.rate_hz or DEFAULT_HZ)
    choose_graph(options.domain).enter()
    if warning := use_shared_memory():
        reporter.say(f"note: {warning}")
    refuse_running(options.domain)
    with results_folder(options.out, [f"demo{end}" for end in RESULTS]) as out:
        return _demo_into(out, parameters, options, reporter)


def _demo_into(
    out: Path, parameters: ParameterFile, options: DemoOptions, reporter: Reporter
) -> int:
    recording = out / "demo_bag"
    recorder = Recorder(seconds=options.seconds, seed=options.seed)
    names = parameters.config.joints_names
    with reporter.phase("recording the synthetic workcell") as phase:
        write_recording(recording, parameters.inputs, names, recorder, phase)
    settings = Settings(parameters, out / "demo_node.log", options.seed)
    with Bag(recording) as bag:
        with reporter.phase("playing it into the policy node") as phase:
            run = run_timed(bag, settings, 1.0, phase)
        checks = _checks(bag, settings, reporter)
    report = summarise(run) | checks
    report |= {"seed": options.seed, "versions": versions(), "machine": machine()}
    report["command"] = shlex.join(["flashrt", *sys.argv[1:]])
    write_results(out / "demo", report, run, _subtitle(parameters, recorder, report))
    reporter.console.print(render(report, checks))
    reporter.say(f"wrote {out / 'demo.json'}, .csv and .png")
    return _verdict(report, checks, reporter)


def _check_length(seconds: float, rate_hz: float) -> None:
    """The checks need so many decisions, and one period until every input is there."""
    least = (_STEPS + _FURTHER + 1) / rate_hz
    if seconds < least:
        raise OptionError(
            "option '--seconds'",
            expected=f"at least {least:g}, which the checks need",
            got=f"{seconds:g}",
            remedy=f"{LEAST_DECISIONS} decisions, which exit status 0 needs, take "
            f"{(LEAST_DECISIONS + 1) / rate_hz:g}",
        )


def _checks(bag: Bag, settings: Settings, reporter: Reporter) -> dict[str, bool]:
    config = settings.parameters.config
    rate_hz = config.rate_hz or DEFAULT_HZ
    routes = bag.routes(settings.parameters.inputs, settings.parameters.path)
    # The steps after those that are compared: the stamps of a sensor never go back.
    further = list(itertools.islice(steps(bag, routes, rate_hz), _STEPS, _STEPS + _FURTHER))
    restored = True

    def over_services(live: LiveNode) -> None:
        nonlocal restored
        restored = capsule_over_services(live, further)

    with reporter.phase("replaying step by step") as phase:
        _, once = run_steps(bag, settings, phase, _STEPS)
    with reporter.phase("the same again, then save and restore") as phase:
        _, again = run_steps(bag, settings, phase, _STEPS, over_services)
    with reporter.phase("checking a session in this process") as phase:
        session = load(load_options(config))
        try:
            seen = observations(bag, routes, config, rate_hz, _FURTHER)
            split = full_equals_split(session, seen)
            phase(0.5)
            restored = restored and capsule_bit_exact(session, seen)
        finally:
            session.engine.close()
    return {
        "full_equals_split": split,
        "capsule_bit_exact": restored,
        "replay_bit_identical": bit_identical(once, again),
    }


def _verdict(report: Mapping[str, Any], checks: Mapping[str, bool], reporter: Reporter) -> int:
    failed = [name for name, passed in checks.items() if not passed]
    if report["decisions"] < LEAST_DECISIONS:
        failed.append(f"{report['decisions']} decisions, at least {LEAST_DECISIONS} expected")
    if failed:
        reporter.say("FAILED: " + "; ".join(failed))
    return 1 if failed else 0


def _subtitle(parameters: ParameterFile, recorder: Recorder, report: Mapping[str, Any]) -> str:
    config = parameters.config
    where = report["machine"]
    return (
        f"preset {config.preset}, {config.device}, {config.precision}  |  "
        f"{len(config.cameras)} cameras {recorder.width} x {recorder.height} at "
        f"{recorder.camera_hz:g} Hz, joints at {recorder.joint_hz:g} Hz, over DDS  |  "
        f"{where['cpu']}, {where['cores']} cores"
    )
