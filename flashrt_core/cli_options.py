"""Options that say which plan a command is about, in one wording for all commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import OptionError
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
Precision = Annotated[str, option("Precision plan: fp32, bf16, fp8, or a YAML file.")]
Scales = Annotated[Path | None, option("Calibration of an fp8 plan; else where it was put.")]
Numerics = Annotated[str, option("Profile, and switches behind it; empty: the checkpoint's.")]
Views = Annotated[str, option("Camera slots in use, separated by commas.")]
Dims = Annotated[int | None, option("Numbers of the robot; the checkpoint's, else 7.", 0)]
Stats = Annotated[Path | None, option("Statistics instead of the checkpoint's.")]
Tokenizer = Annotated[Path | None, option("SentencePiece model file.")]
InPrompt = Annotated[bool, option("The checkpoint reads the state from the prompt.")]
Size = Annotated[int | None, option("Instead of the checkpoint's or preset's.", 1)]
Buckets = Annotated[str, option("Prompt lengths, separated by commas, instead of the preset's.")]
CameraBytes = Annotated[int, option("Room for a raw image that the device resizes; 0: none.", 0)]
Threads = Annotated[int, option("torch threads; 0: its own choice.", 0)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of tables.")]


def plan_options(
    *, checkpoint: str, preset: str, views: str, state_in_prompt: bool, **others: Any
) -> LoadOptions:
    """The options above as LoadOptions; ``others`` have its own names."""
    buckets = others.pop("prompt_buckets", "")
    return LoadOptions(
        checkpoint=checkpoint,
        prompt_buckets=_whole_numbers(buckets) or None,
        preset=preset or ("base" if checkpoint_path(checkpoint) else "tiny"),
        views=tuple(view.strip() for view in views.split(",") if view.strip()),
        extra={} if state_in_prompt else {"state_in_prompt": False},
        **others,
    )


def plan_of(arguments: Mapping[str, Any]) -> LoadOptions:
    """The plan among a command's arguments, for commands that name them as this module does."""
    names = ["checkpoint", "preset", "views", "state_in_prompt"]
    names += [field.name for field in fields(LoadOptions) if field.name not in (*names, "prompt")]
    return plan_options(**{name: arguments[name] for name in names if name in arguments})


def _whole_numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise OptionError(
            "option 'prompt_buckets'", expected="whole numbers, separated by commas", got=repr(text)
        )
    return tuple(map(int, parts))
