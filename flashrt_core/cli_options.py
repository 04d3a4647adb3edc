"""Options that say which plan a command is about, in one wording for all commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .load import LoadOptions
from .weights import checkpoint_path

DEFAULT_VIEWS = ",".join(LoadOptions.views)
DEFAULT_CHECKPOINT = str(LoadOptions.checkpoint)


def option(text: str, least: float | None = None) -> Any:
    """A typer option with that help."""
    return typer.Option(help=text, min=least)


PolicyName = Annotated[str, typer.Argument(help="Policy, by registry name.")]
Checkpoint = Annotated[str, option("Checkpoint folder, random:<seed> or outliers:<seed>.")]
Preset = Annotated[str, option("Sizes; empty: base for a checkpoint, tiny for random weights.")]
DeviceName = Annotated[str, option("cpu or cuda.")]
Precision = Annotated[str, option("Precision plan.")]
Numerics = Annotated[str, option("Profile, and switches behind it; empty: the checkpoint's.")]
Views = Annotated[str, option("Camera slots in use, separated by commas.")]
Dims = Annotated[int | None, option("Numbers of the robot; the checkpoint's, else 7.", 0)]
Stats = Annotated[Path | None, option("Statistics instead of the checkpoint's.")]
Tokenizer = Annotated[Path | None, option("SentencePiece model file.")]
InPrompt = Annotated[bool, option("The checkpoint reads the state from the prompt.")]
Size = Annotated[int | None, option("Instead of the checkpoint's or preset's.", 1)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of tables.")]


def plan_options(
    *, checkpoint: str, preset: str, views: str, state_in_prompt: bool, **others: Any
) -> LoadOptions:
    """The options above as LoadOptions; ``others`` have its own names."""
    return LoadOptions(
        checkpoint=checkpoint,
        preset=preset or ("base" if checkpoint_path(checkpoint) else "tiny"),
        views=tuple(view.strip() for view in views.split(",") if view.strip()),
        extra={} if state_in_prompt else {"state_in_prompt": False},
        **others,
    )
