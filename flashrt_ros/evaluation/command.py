"""``flashrt eval TASK --ros``: every setting on the same starts, through the node."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from flashrt_core.cli.eval import RosOptions
from flashrt_core.errors import FlashRTError, OptionError
from flashrt_core.evaluation.command import EvalOptions, Progress, Result, about
from flashrt_core.evaluation.options import check_plans
from flashrt_core.evaluation.rollout import Outcome
from flashrt_core.evaluation.tables import Grouped
from flashrt_core.evaluation.tiers import summarise
from flashrt_ros.execution.strategies import STRATEGIES
from flashrt_ros.replay.node_process import refuse_running
from flashrt_ros.replay.transport import choose_graph

from .loop import Loop, run_loop
from .parameters import parameters_for


def run_ros_eval(
    options: EvalOptions, ros: RosOptions, progress: Progress, result: Result | None = None
) -> Result:
    """Run each plan, strategy and added delay through a node of its own.

    Args:
        options, ros: what to run.
        progress: told how far it is.
        result: takes what is found as it comes, for who is interrupted.

    Raises:
        FlashRTError: an option or a file does not do, or a process did not start or ended.
    """
    result = Result(about(options)) if result is None else result
    settings = list(_settings(options, ros))
    choose_graph(ros.domain).enter()
    refuse_running(ros.domain)
    result.extra = {"through": "the node, real time", "camera_hz": ros.camera_hz, "loops": {}}
    try:
        with _folder(ros.log) as folder:
            for name, delay_ms, values in settings:
                file = name.replace(", ", "_").replace(" ", "_").replace("/", "_")
                task = options.found.folder
                loop = Loop(task, values, delay_ms * 1e-3, ros.camera_hz, folder, file)
                _run_one(options, name, loop, result, progress)
    finally:
        if result.extra["loops"]:
            result.tables.append(loop_table(result.extra["loops"]))
    return result


def _settings(options: EvalOptions, ros: RosOptions) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Name, added delay in ms, and the node's parameters of everything that is to run, checked."""
    strategies, delays = _strategies(ros.strategies), _delays(ros.added_delay_ms)
    _refuse_direct(options)
    check_plans(options)
    for plan, strategy, delay_ms in product(options.plans, strategies, delays):
        values = parameters_for(
            options.found,
            plan,
            strategy=strategy,
            replan_rows=options.starts.replan_rows,
            file=ros.params,
        )
        name = f"{plan.device} {plan.precision}, {strategy}"
        yield name + (f", +{delay_ms:g} ms" if delay_ms else ""), delay_ms, values


def _run_one(
    options: EvalOptions, name: str, loop: Loop, result: Result, progress: Progress
) -> None:
    """One setting, added to ``result`` with the episodes that ended, however it ends."""
    baseline = result.tiers[0].outcomes if result.tiers else None
    outcomes: list[Outcome] = []
    told = progress(name, options.starts.episodes)

    def ended(outcome: Outcome) -> None:
        outcomes.append(outcome)
        told(outcome)

    try:
        found = run_loop(loop, options.starts.seeds, ended)
        result.extra["loops"][name] = found.as_dict(loop.values)
    finally:
        if outcomes:
            same = None if baseline is None else baseline[: len(outcomes)]
            result.tiers.append(summarise(name, "", outcomes, same))


def _refuse_direct(options: EvalOptions) -> None:
    """These compare bits, or observations, which a run in real time does not repeat."""
    for name in ("forks", "resume", "observations"):
        if given := getattr(options, name):
            raise OptionError(
                f"option '--{name}'", expected="a direct run", got=f"{given} with --ros"
            )


@contextmanager
def _folder(log: Path | None) -> Iterator[Path]:
    """A folder for logs; one of our own is kept where an error names what lies in it."""
    if log is not None:
        yield log
        return
    folder = Path(tempfile.mkdtemp(prefix="flashrt-eval-"))
    kept = False
    try:
        yield folder
    except FlashRTError as error:
        kept = str(folder) in str(error)
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _strategies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown or not names:
        raise OptionError(
            "option '--strategy'",
            expected=f"one or several of {', '.join(STRATEGIES)}, separated by commas",
            got=", ".join(unknown) or "none",
        )
    return list(dict.fromkeys(names))


def _delays(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or not all(0.0 <= delay <= 10_000.0 for delay in found):
        raise OptionError(
            "option '--added-delay'", expected="milliseconds of 0 to 10000", got=f"'{text}'"
        )
    return list(dict.fromkeys(found))


def loop_table(loops: Mapping[str, Any]) -> Grouped:
    """A line a setting: what the node counted."""
    counted = ("decisions", "safe actions", "stale", "late chunks", "skipped rows")
    moved = ("total ms p50", "age ms p50", "accel. rms", "p99", "jump p95", "pace")
    groups = {"decisions through the node": counted, "times and motion": moved}
    table = Grouped("setting", groups, "through the node")
    for name, loop in loops.items():
        counts = loop["counts"]
        jump = max((each.get("p95", 0.0) for each in loop["jumps"].values()), default=0.0)
        table.add_row(
            name,
            (
                str(counts["decisions"]),
                str(loop["safe_actions"]),
                *(str(counts[key]) for key in ("stale", "late_chunks", "skipped_rows")),
                *(f"{loop['latency_ms'][part].get('p50', 0.0):.0f}" for part in _SHOWN),
                *(f"{loop['acceleration'].get(key, 0.0):.1f}" for key in ("rms", "p99")),
                f"{jump:.2g}",
                f"{loop['pace']:.2f}",
            ),
        )
    return table


_SHOWN = ("total", "observation age")
