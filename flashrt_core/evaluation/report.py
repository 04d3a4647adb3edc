"""Results of an evaluation: plain values for JSON, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .branches import Forks, Resumption
from .statistics import Rate
from .tables import Grouped
from .tiers import Tier


def tier_values(tier: Tier) -> dict[str, Any]:
    """A tier for JSON."""
    values = asdict(tier)
    values["by_instruction"] = {
        name: {"successes": won, "total": total}
        for name, (won, total) in tier.by_instruction.items()
    }
    values["joints"] = {each.pop("name"): each for each in values["joints"]}
    return values


def fork_values(forks: Forks) -> dict[str, Any]:
    """The fork experiment for JSON."""
    return asdict(forks)


def resumption_values(found: Resumption) -> dict[str, Any]:
    """The experiment of an interrupted episode for JSON."""
    return asdict(found) | {"bit_identical": found.bit_identical}


def percent(rate: Rate) -> tuple[str, str]:
    """A rate and its interval, in per cent."""
    return f"{100 * rate.rate:.1f}", f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"


def show_tiers(tiers: Sequence[Tier], console: Console) -> None:
    """A line a tier; then the error of each joint."""
    first = tiers[0].name if tiers else ""
    table = Grouped(
        "decided by",
        {
            "what came out": ("success %", "95 %", "of", "mean score", "ms a decision"),
            f"success against {first}": ("difference", "95 %", "lost", "won", "p"),
            f"score against {first}": ("score", "95 %"),
        },
    )
    for tier in tiers:
        rate, interval = percent(tier.success)
        row = [rate, interval, str(tier.success.total), f"{tier.mean_score:.3f}"]
        row.append(f"{tier.mean_decide_ms:.1f}")
        if (paired := tier.paired) is not None:
            row.append(f"{100 * paired.difference:+.1f}")
            row.append(f"{100 * paired.low:+.1f} to {100 * paired.high:+.1f}")
            row += [str(paired.only_first), str(paired.only_second), f"{paired.p_value:.2g}"]
        if (score := tier.score) is not None:
            row += [f"{score.mean:+.3f}", f"{score.low:+.3f} to {score.high:+.3f}"]
        table.add_row(tier.name, row)
    console.print(table)
    if erring := [tier for tier in tiers if tier.joints]:
        console.print(_errors(erring))


def _errors(tiers: Sequence[Tier]) -> Table:
    """A line a joint."""
    table = Table(box=SIMPLE_HEAD, header_style="dim", title="error of actions, rms (largest)")
    table.add_column("joint")
    for tier in tiers:
        table.add_column(tier.name, justify="right")
    for row_index, joint in enumerate(tiers[0].joints):
        cells = [tier.joints[row_index] for tier in tiers]
        table.add_row(joint.name, *(f"{cell.rms:.2g} ({cell.largest:.2g})" for cell in cells))
    return table


def show_forks(forks: Forks, console: Console) -> None:
    """One rollout against the best of several."""
    table = Table(box=SIMPLE_HEAD, header_style="dim")
    name = f"rollouts of one state, by {forks.name}"
    for column in (name, "success %", "95 %", "mean score"):
        table.add_column(column, justify="left" if column is name else "right")
    table.add_row("single", *percent(forks.single), f"{forks.single_score:.3f}")
    table.add_row(f"best of {forks.forks}", *percent(forks.best), f"{forks.best_score:.3f}")
    console.print(table)
    paired = forks.paired
    if forks.forked < forks.single.total:
        console.print(
            f"{forks.forked} of {forks.single.total} starts forked: the others were over before"
            f" decision {forks.fork_at}",
            highlight=False,
        )
    console.print(
        f"the better branch won {paired.only_second} starts that the single rollout lost"
        f" (p {paired.p_value:.2g}), and scored more at {forks.improved} of {forks.single.total}:"
        f" {forks.score.mean:+.3f}, 95 % {forks.score.low:+.3f} to {forks.score.high:+.3f}",
        highlight=False,
    )


def show_resumption(found: Resumption, console: Console) -> None:
    """One line."""
    word = "bit-identical" if found.bit_identical else "DIFFERENT"
    console.print(
        f"{found.name}: episode {found.seed} saved at decision {found.saved_at},"
        f" episode {found.other} run, restored: the rest is {word}"
        f" ({found.equal_actions} of {found.compared} chunks, world"
        f" {'equal' if found.equal_world else 'different'})",
        highlight=False,
    )
