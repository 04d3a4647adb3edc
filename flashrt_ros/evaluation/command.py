"""``flashrt eval TASK --ros``: every setting on the same starts, through the node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flashrt_core.cli.eval import RosOptions
from flashrt_core.errors import OptionError
from flashrt_core.evaluation.command import EvalOptions, Progress, Result, about
from flashrt_core.evaluation.rollout import Outcome
from flashrt_core.evaluation.tiers import summarise
from flashrt_ros.execution.strategies import STRATEGIES
from flashrt_ros.replay.node_process import refuse_running
from flashrt_ros.replay.transport import choose_graph

from .loop import Loop, run_loop
from .parameters import parameters_for


def run_ros_eval(options: EvalOptions, ros: RosOptions, progress: Progress) -> Result:
    """Run each plan, strategy and added delay through a node of its own.

    Raises:
        FlashRTError: an option or a file does not do, or a process did not start or ended.
    """
    strategies = _strategies(ros.strategies)
    delays = _delays(ros.added_delay_ms)
    _refuse_direct(options)
    choose_graph(ros.domain).enter()
    refuse_running(ros.domain)
    result = Result(about(options))
    result.extra = {"through": "the node, real time", "camera_hz": ros.camera_hz}
    result.extra["loops"] = {}
    baseline: list[Outcome] | None = None
    with _folder(ros.log) as folder:
        for plan, strategy, delay_ms in product(options.plans, strategies, delays):
            values = parameters_for(
                options.found,
                plan,
                strategy=strategy,
                replan_rows=options.starts.replan_rows,
                file=ros.params,
            )
            name = f"{plan.device} {plan.precision}, {strategy}"
            name += f", +{delay_ms:g} ms" if delay_ms else ""
            file_name = name.replace(", ", "_").replace(" ", "_").replace("/", "_")
            loop = Loop(
                options.found.folder, values, delay_ms * 1e-3, ros.camera_hz, folder, file_name
            )
            found = run_loop(loop, options.starts.seeds, progress(name, options.starts.episodes))
            result.tiers.append(summarise(name, "", found.outcomes, baseline))
            result.extra["loops"][name] = found.as_dict(values)
            baseline = found.outcomes if baseline is None else baseline
    result.tables.append(loop_table(result.extra["loops"]))
    return result


def _refuse_direct(options: EvalOptions) -> None:
    """These compare bits, or observations, which a run in real time does not repeat."""
    for name in ("forks", "resume", "observations"):
        if given := getattr(options, name):
            raise OptionError(
                f"option '--{name}'", expected="a direct run", got=f"{given} with --ros"
            )


@contextmanager
def _folder(log: Path | None) -> Iterator[Path]:
    if log is not None:
        yield log
        return
    with tempfile.TemporaryDirectory(prefix="flashrt-eval-") as folder:
        yield Path(folder)


def _strategies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown or not names:
        raise OptionError(
            "option '--strategy'", expected=f"of {', '.join(STRATEGIES)}", got=unknown or "none"
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


def loop_table(loops: Mapping[str, Any]) -> Table:
    """A line a setting: what the node counted."""
    table = Table(box=SIMPLE_HEAD, header_style="dim", title="through the node")
    columns = ("setting", "decisions", "safe actions", "stale", "late chunks", "skipped rows")
    for column in (*columns, "total ms p50", "age ms p50", "accel. rms", "p99", "jump p95", "pace"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for name, loop in loops.items():
        counts = loop["counts"]
        jump = max((each.get("p95", 0.0) for each in loop["jumps"].values()), default=0.0)
        table.add_row(
            name,
            str(counts["decisions"]),
            str(loop["safe_actions"]),
            *(str(counts[key]) for key in ("stale", "late_chunks", "skipped_rows")),
            *(f"{loop['latency_ms'][part].get('p50', 0.0):.0f}" for part in _SHOWN),
            *(f"{loop['acceleration'].get(key, 0.0):.1f}" for key in ("rms", "p99")),
            f"{jump:.2g}",
            f"{loop['pace']:.2f}",
        )
    return table


_SHOWN = ("total", "observation age")
