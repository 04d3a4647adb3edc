"""``flashrt demo``: play a recording into a node, measure and verify.

The recording is the one that ships, of the simulated task that the policy beside it was trained
for; or, of a length that is asked for, a synthetic workcell with random weights.
"""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_core.bench.machine import machine
from flashrt_core.errors import OptionError
from flashrt_core.load import load
from flashrt_ros.loading import load_options

from .bag import Bag
from .expert import expert_error, expert_table
from .figure import RESULTS, write_results
from .node_process import refuse_running
from .output import results_folder
from .parameter_file import ParameterFile, read_parameters
from .progress import Reporter
from .recording import Recorder, write_recording
from .report import render, summarise, versions
from .run import DEFAULT_HZ, LiveNode, Settings, run_steps, run_timed
from .step import steps
from .transport import choose_graph, default_parameters, shipped_demo, use_shared_memory
from .verify import (
    bit_identical,
    capsule_bit_exact,
    capsule_over_services,
    full_equals_split,
    observations,
)

LEAST_DECISIONS = 50
_SECONDS = 10.0  # of a synthetic recording
_STEPS = 10  # decisions of each of the two runs that are compared
_FURTHER = 4  # decisions that follow them, before and after a restore


@dataclass(frozen=True)
class DemoOptions:
    """Seconds of a synthetic recording (None: the one that ships, else 10), folder for results,
    seed, DDS domain (None: a private one).
    """

    seconds: float | None = None
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
    shipped = shipped_demo() if options.seconds is None else None
    parameters = read_parameters(default_parameters() if shipped is None else shipped.parameters)
    seconds = _SECONDS if options.seconds is None else options.seconds
    _check_length(seconds, parameters.config.rate_hz or DEFAULT_HZ)
    choose_graph(options.domain).enter()
    if warning := use_shared_memory():
        reporter.say(f"note: {warning}")
    refuse_running(options.domain)
    with results_folder(options.out, [f"demo{end}" for end in RESULTS]) as out:
        if shipped is None:
            if options.seconds is None:
                reporter.say("no recording ships with this installation: a synthetic one is made")
            recorder = Recorder(seconds=seconds, seed=options.seed)
            recording, images = out / "demo_bag", _images(recorder)
            names = parameters.config.joints_names
            with reporter.phase("recording the synthetic workcell") as phase:
                write_recording(recording, parameters.inputs, names, recorder, phase)
        else:
            recording, images = shipped.recording, "of a simulated robot"
        return _demo_into(out, parameters, recording, images, options.seed, reporter)


def _images(recorder: Recorder) -> str:
    return (
        f"{recorder.width} x {recorder.height} at {recorder.camera_hz:g} Hz, "
        f"joints at {recorder.joint_hz:g} Hz"
    )


def _demo_into(
    out: Path,
    parameters: ParameterFile,
    recording: Path,
    images: str,
    seed: int,
    reporter: Reporter,
) -> int:
    settings = Settings(parameters, out / "demo_node.log", seed)
    with Bag(recording) as bag:
        with reporter.phase("playing it into the policy node") as phase:
            run = run_timed(bag, settings, 1.0, phase)
        checks = _checks(bag, settings, reporter)
        expert = expert_error(bag, run.chunks)
    report = summarise(run) | checks | ({"expert_error": expert} if expert else {})
    report |= {"seed": seed, "versions": versions(), "machine": machine()}
    report["command"] = shlex.join(["flashrt", *sys.argv[1:]])
    write_results(out / "demo", report, run, _subtitle(parameters, images, report))
    reporter.console.print(render(report, checks))
    if expert:
        reporter.console.print(expert_table(expert))
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


def _subtitle(parameters: ParameterFile, images: str, report: Mapping[str, Any]) -> str:
    config = parameters.config
    where = report["machine"]
    return (
        f"preset {config.preset}, {config.device}, {config.precision}  |  "
        f"{len(config.cameras)} cameras {images}, over DDS  |  "
        f"{where['cpu']}, {where['cores']} cores"
    )
