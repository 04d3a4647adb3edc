"""What a run under load must hold, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Limits:
    """What a run may show at most.

    Attributes:
        joints_lost: joint states that were sent and not accepted.
        cpu_percent: of one core, by the node outside the policy.
        overhead_ms: 99 % of the decisions, from the stamp of the newest image to the published
            chunk, without the engine's stages.
        memory_mb: by which anonymous memory may grow. Allocators move by a few MB; a leak of one
            640 x 480 image in two minutes, or of 1 kB a decision, passes it within ten.
    """

    joints_lost: int = 0
    cpu_percent: float = 60.0
    overhead_ms: float = 15.0
    memory_mb: float = 4.0


@dataclass(frozen=True)
class Check:
    """One line of the verdict; ``got`` and ``limit`` in the unit that the name says."""

    name: str
    got: float
    limit: float

    @property
    def passed(self) -> bool:
        """NaN, where nothing was measured, does not pass."""
        return self.got <= self.limit


def checks(report: Mapping[str, Any], limits: Limits) -> list[Check]:
    """Every limit against a report of :func:`flashrt_ros.bench.load.run_load`."""
    inputs = report["inputs"]
    found = [
        Check(f"{name}: oldest at a decision, s", values["oldest_used_s"], values["max_age_s"])
        for name, values in inputs.items()
    ]
    if "joints" in inputs:
        lost = inputs["joints"]["sent"] - inputs["joints"]["accepted"]
        found.append(Check("joint states lost or refused", lost, limits.joints_lost))
    decisions = report["decisions"]
    return [
        *found,
        Check("chunks lost or not finite", decisions["lost"] + decisions["not_finite"], 0),
        Check("no decision in the run", float(decisions["made"] == 0), 0),
        Check(
            "CPU outside the policy, % of a core",
            report["cpu"]["outside_percent"],
            limits.cpu_percent,
        ),
        Check("overhead p99, ms", report["overhead_ms"].get("p99", math.nan), limits.overhead_ms),
        Check("memory growth, MB", report["memory_mb"]["growth"], limits.memory_mb),
    ]


def verdict(report: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The limits and checks, as they stand in the result file."""
    lines = [asdict(check) | {"passed": check.passed} for check in checks(report, limits)]
    return {"limits": asdict(limits), "checks": lines}


def render(report: Mapping[str, Any]) -> RenderableType:
    """A report with its verdict for a terminal."""
    inputs = Table(title="inputs", title_justify="left", header_style="bold")
    for column in ("input", "sent", "received", "lost", "refused", "oldest used, s", "limit, s"):
        inputs.add_column(column, justify="left" if column == "input" else "right")
    for name, values in report["inputs"].items():
        cells = [str(values[key]) for key in ("sent", "received", "lost", "refused")]
        ages = [f"{values[key]:.3f}" for key in ("oldest_used_s", "max_age_s")]
        inputs.add_row(name, *cells, *ages)
    times = Table(title="a decision, ms", title_justify="left", header_style="bold")
    for column in ("part", "p50", "p95", "p99", "max"):
        times.add_column(column, justify="left" if column == "part" else "right")
    for part, values in {**report["latency_ms"], "overhead": report["overhead_ms"]}.items():
        cells = [f"{values[key]:.2f}" if values else "-" for key in ("p50", "p95", "p99", "max")]
        times.add_row(part, *cells, style="bold" if part == "overhead" else None)
    facts = Table.grid(padding=(0, 2))
    made, refused = report["decisions"]["made"], report["decisions"]["refused"]
    missed = report["decisions"]["deadline_missed"]
    facts.add_row(
        "decisions",
        f"{made} at {report['decisions']['rate_hz']:.2f} Hz, deadline missed {missed} times,"
        f" refused {sum(refused.values())} {refused or ''}",
    )
    cpu, memory = report["cpu"], report["memory_mb"]
    facts.add_row(
        "CPU, % of a core",
        f"{cpu['process_percent']:.1f}, of it policy {cpu['policy_percent']:.1f}",
    )
    facts.add_row("memory, MB", f"{memory['start']:.1f} to {memory['end']:.1f}")
    for check in report["checks"]:
        mark = Text("yes", style="green") if check["passed"] else Text("NO", style="bold red")
        facts.add_row(check["name"], f"{check['got']:.4g} of {check['limit']:.4g}", mark)
    return Group(inputs, times, facts)
