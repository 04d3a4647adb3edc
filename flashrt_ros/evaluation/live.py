"""``flashrt demo --live``: some episodes through the node in real time, and a film of them."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from flashrt_core.bench.machine import command_line, commit, machine, versions
from flashrt_core.bench.report import write_json
from flashrt_core.evaluation.options import EvalOptions, check_plans, plan_for
from flashrt_core.evaluation.rollout import REPLAN_ROWS, Outcome
from flashrt_core.evaluation.task import EVALUATION_SEED, find_task
from flashrt_core.load import LoadOptions
from flashrt_ros.replay.node_process import refuse_running
from flashrt_ros.replay.output import results_folder
from flashrt_ros.replay.progress import Reporter
from flashrt_ros.replay.transport import choose_graph

from .animation import captioned, write_animation
from .command import loop_table
from .loop import Loop, SimulatorProcess, run_loop
from .parameters import parameters_for

DEFAULT_TASK = "tabletop"
_FRAMES_HZ, _SIZE = 12.5, (400, 300)
_NAME = "live"


@dataclass(frozen=True)
class LiveOptions:
    """Task, number of episodes, folder for results, seed of the first, DDS domain."""

    task: str = DEFAULT_TASK
    episodes: int = 4
    out: Path = Path("out")
    first_seed: int = EVALUATION_SEED
    domain: int | None = None


def run_live(options: LiveOptions, reporter: Reporter) -> int:
    """Run them; 0 where most were done and no safe action was taken, else 1.

    Writes ``live.gif`` and ``live.json`` into ``options.out``, and the logs.

    Raises:
        FlashRTError: an option does not do, a process did not start, or there is no OpenGL.
    """
    found = find_task(options.task)
    plan = plan_for(found, LoadOptions())
    check_plans(EvalOptions(found, plan))
    choose_graph(options.domain).enter()
    refuse_running(options.domain)
    with results_folder(options.out, [f"{_NAME}.gif", f"{_NAME}.json"]) as out:
        values = parameters_for(found, plan, strategy="replace", replan_rows=REPLAN_ROWS)
        loop = Loop(found.folder, values, 0.0, 25.0, out, _NAME, frames_hz=_FRAMES_HZ)
        seeds = range(options.first_seed, options.first_seed + options.episodes)
        films: list[list[Image.Image]] = []
        aside = Path(tempfile.mkdtemp(prefix="flashrt-live-"))
        try:
            with reporter.phase("episodes through the node") as phase:

                def ended(simulator: SimulatorProcess, outcome: Outcome) -> None:
                    films.append(_film(simulator, outcome, aside))
                    phase(len(films) / len(seeds), outcome.instruction)

                result = run_loop(loop, seeds, ended=ended)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        write_animation(films, _FRAMES_HZ, out / f"{_NAME}.gif")
        report: dict[str, Any] = {
            "task": found.task.name,
            "outcomes": [asdict(one) for one in result.outcomes],
            "loop": result.as_dict(values),
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
            "command": command_line("flashrt"),
        }
        write_json(report, out / f"{_NAME}.json")
        for one in result.outcomes:
            word = "done" if one.success else "NOT DONE"
            reporter.say(f"{one.instruction}: {word} after {one.time_s:.1f} s")
        reporter.console.print(loop_table({found.task.name: report["loop"]}))
        reporter.say(f"wrote {out / f'{_NAME}.gif'} and .json")
    won = sum(one.success for one in result.outcomes)
    return int(2 * won <= len(result.outcomes) or result.safe_actions > 0)


def _film(simulator: SimulatorProcess, outcome: Outcome, folder: Path) -> list[Image.Image]:
    """Pictures of the episode that has just ended, drawn from the states that were kept."""
    file, (width, height) = folder / "frames.npy", _SIZE
    simulator.order(frames=str(file), width=width, height=height)
    return captioned(np.load(file), outcome.instruction, outcome.success)
