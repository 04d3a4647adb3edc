"""Results of ``flashrt eval`` as the documents show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markdown import table, wrap
from result_files import Result


def directly(result: Result) -> str:
    """Every tier on the same starts, in step mode."""
    rows = []
    for tier in result["tiers"]:
        errors = {name: joint["rms"] for name, joint in tier["joints"].items()}
        worst = max(errors, key=errors.__getitem__, default="")
        error = f"{errors[worst]:.1e} ({worst})" if worst else ""
        rows.append([tier["name"], _rate(tier), _difference(tier), _score(tier), error])
    columns = ["decided by", "success (95 %)", "difference (95 %), points", "score (95 %)"]
    return _origin(result) + table([*columns, "rms error of the worst joint, rad"], rows)


def states(result: Result) -> str:
    """Forks of one state, and an episode that was interrupted."""
    forks, resumed = result["forks"], result["resumed"]
    single, best = forks["single"], forks["best"]
    equal = "bit-identical" if resumed["bit_identical"] else "DIFFERENT"
    score = forks["score"]
    text = [
        f"A single rollout succeeds at {single['successes']} of {single['total']} starts, the best",
        f"of {forks['forks']} forks of one state at {best['successes']}; it scores more at",
        f"{forks['improved']}: {_interval(score)}. Of an episode that was saved, waited while",
        f"another ran, and was restored, the rest is {equal}.",
    ]
    return _origin(result) + wrap(text) + "\n"


def looped(result: Result) -> str:
    """Every setting through the node, in real time."""
    rows = []
    for tier in result["tiers"]:
        loop = result["loops"][tier["name"]]
        counts, jump = loop["counts"], max(each["p95"] for each in loop["jumps"].values())
        safe = f"{loop['safe_actions']} / {counts['stale']}"
        rough = f"{loop['acceleration']['p99']:.1f}"
        pace, jumped = f"{loop['pace']:.2f}", f"{jump:.3f}"
        rows.append([tier["name"], _rate(tier), _score(tier), safe, jumped, rough, pace])
    columns = ["decided by", "success (95 %)", "score (95 %)", "safe actions / stale decisions"]
    columns += ["jump at a hand-over, p95, rad", "acceleration p99, rad/s²", "pace"]
    return _origin(result) + table(columns, rows)


def draw_strategies(result: Result, path: Path) -> None:
    """What the strategies gain, and how far the set points jump, side by side."""
    from flashrt_core.plotting import pyplot as plt

    settings = [(tier, result["loops"][tier["name"]]) for tier in result["tiers"]]
    names = [tier["name"].split(", ")[1].replace("_", " ") for tier, _ in settings]
    jumps = [max(each["p95"] for each in loop["jumps"].values()) for _, loop in settings]
    scores = [tier["score"] or {"mean": 0.0, "low": 0.0, "high": 0.0} for tier, _ in settings]
    means = [score["mean"] for score in scores]
    ends = [[s["mean"] - s["low"] for s in scores], [s["high"] - s["mean"] for s in scores]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 2.2), layout="constrained")
    left.errorbar(means, names, xerr=ends, fmt="o", capsize=3)
    left.axvline(0.0, color="0.8")
    left.set_title(f"score against {names[0]}, 95 %", fontsize=10)
    right.barh(names, jumps)
    right.set_title("jump at a hand-over, p95, rad", fontsize=10)
    for axes in (left, right):
        axes.set_ylim(len(names) - 0.5, -0.5)  # the first on top
    right.set_yticklabels([])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _origin(result: Result) -> str:
    where = result["machine"]
    gpu = f"an {result['gpu']['name']} and " if result.get("gpu") else ""
    said = f"`{result['command']}` on {gpu}{where['cores']} cores of {where['cpu']}, commit"
    return wrap([f"{said} {result['commit']}:"]) + "\n\n"


def _rate(tier: dict[str, Any]) -> str:
    found = tier["success"]
    between = f"{100 * found['low']:.1f} to {100 * found['high']:.1f} %"
    return f"{found['successes']} of {found['total']} ({between})"


def _difference(tier: dict[str, Any]) -> str:
    if (paired := tier["paired"]) is None:
        return ""
    low, high = (f"{100 * paired[name]:+.1f}" for name in ("low", "high"))
    return f"{100 * paired['difference']:+.1f} ({low} to {high})"


def _score(tier: dict[str, Any]) -> str:
    return "" if tier["score"] is None else _interval(tier["score"])


def _interval(found: dict[str, Any]) -> str:
    return f"{found['mean']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"
