"""The log of a training run: numbers in a JSON file, and the figure of the loss."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashrt_core.outputs import whole_file, write_text

NAME, FIGURE = "train_log.json", "loss.png"


class TrainingLog:
    """What a run did.

    Args:
        command: how it was called.

    Attributes:
        content: as it is written: ``runs`` (each call with its options and data), ``points`` (step,
            seconds, loss, rate) and ``held_out`` (step, seconds and the errors).
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self.content: dict[str, list[dict[str, Any]]] = {"runs": [], "points": [], "held_out": []}

    def go_on(self, content: dict[str, list[dict[str, Any]]]) -> None:
        """Continue the log of an earlier call."""
        self.content = content

    def begin(
        self,
        options: Mapping[str, Any],
        sizes: Mapping[str, Any],
        trained: Mapping[str, int],
        held_out: Mapping[str, int],
    ) -> None:
        """A call starts: its options, the network's sizes, and how much data it has."""
        cuda = options["device"] == "cuda"
        self.content["runs"].append(
            {
                "command": self._command,
                "seed": options["seed"],
                "torch": torch.__version__,
                "machine": torch.cuda.get_device_name() if cuda else platform.machine(),
                "threads": torch.get_num_threads(),
                "network": dict(sizes),
                "trained_on": dict(trained),
                "held_out": dict(held_out),
            }
        )

    def point(self, step: int, seconds: float, loss: float, rate: float) -> None:
        """Mean loss since the last point."""
        point = {"step": step, "seconds": round(seconds, 1), "loss": round(loss, 5), "rate": rate}
        self.content["points"].append(point)

    def held_out(self, step: int, seconds: float, errors: Mapping[str, float]) -> None:
        """Errors of the averaged weights on what is not trained on."""
        rounded = {name: round(value, 5) for name, value in errors.items()}
        self.content["held_out"].append({"step": step, "seconds": round(seconds, 1), **rounded})

    @property
    def last_held_out(self) -> str:
        """The latest errors, for people."""
        if not self.content["held_out"]:
            return ""
        last = self.content["held_out"][-1]
        return f"held out {last['loss']:.4f}, actions {last['action']:.4f} {last['first']:.4f}"

    def save(self, folder: Path, *, figure: bool = True) -> None:
        """Writes the numbers, and the figure where it is wanted; OutputError."""
        write_text(json.dumps(self.content, indent=1) + "\n", folder / NAME, "log")
        if figure and self.content["points"]:
            with whole_file("figure", folder / FIGURE) as part:
                self._draw(part)

    def _draw(self, path: Path) -> None:
        from flashrt_core.plotting import pyplot

        figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
        for key, label in (("points", "training"), ("held_out", "held-out episodes, averaged")):
            rows = self.content[key]
            axes.plot([r["step"] for r in rows], [r["loss"] for r in rows], label=label)
        axes.set(xlabel="step", ylabel="flow-matching loss", yscale="log")
        axes.legend(frameon=False)
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
