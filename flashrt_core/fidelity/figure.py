"""The figure of a comparison: how far action rows turn, and how far each joint is off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..outputs import whole_file

# Okabe-Ito: told apart with any colour vision, and in print.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_LEAST = 1e-9  # of 1 - cosine: what float64 leaves of equal rows


def draw_fidelity(plans: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the reports of some plans; OutputError where that cannot be written.

    Args:
        plans: as ``flashrt qualify --json`` has them.
        path: file; missing folders are made.
    """
    from ..plotting import pyplot

    figure, (rows, joints) = pyplot.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    for index, plan in enumerate(plans):
        colour = _COLOURS[index % len(_COLOURS)]
        decision = list(plan["stages"].values())[-1]
        points = [(100.0 - float(name), 1.0 - at) for name, at in decision["cosines"].items()]
        percent = [point for point, _ in points]
        turned = [max(value, _LEAST) for _, value in points]
        rows.plot(turned, percent, color=colour, marker=".", label=plan["plan"])
        width = 0.8 / len(plans)
        places = [
            joint + (index - (len(plans) - 1) / 2) * width for joint in range(len(plan["joints"]))
        ]
        middle, most = (
            [joint["errors"][name] for joint in plan["joints"]] for name in ("50", "100")
        )
        joints.vlines(places, middle, most, color=colour, linewidth=2.0)
        joints.plot(places, middle, linestyle="", marker="o", markersize=4, color=colour)
    rows.set(xscale="log", xlabel="1 - cosine with float32", ylabel="action rows below, %")
    rows.legend(frameon=False)
    joints.set(xlabel="action", ylabel="error, robot units: median to largest", yscale="log")
    pairs = ", ".join(sorted({str(plan["decisions"]) for plan in plans}))
    figure.suptitle(f"{plans[0]['checkpoint']}: {pairs} pairs of observation and noise")
    try:
        with whole_file("figure", path) as part:
            figure.savefig(part, dpi=160)
    finally:
        pyplot.close(figure)
