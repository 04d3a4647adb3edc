"""Options that say which plan a command is about, in one wording for all commands."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import OptionError
from ..load import LoadOptions, precision_of
from ..load_options import parse_settings
from ..weights import checkpoint_path

_ASKED = ("COMMANDLINE", "ENVIRONMENT", "PROMPT")  # where a value comes from that is no default


def option(text: str, least: float | None = None) -> Any:
    """A typer option with that help."""
    return typer.Option(help=text, min=least)


PolicyName = Annotated[str, typer.Argument(help="Policy, by registry name.")]
Checkpoint = Annotated[str, option("Checkpoint folder, random:<seed> or outliers:<seed>.")]
Preset = Annotated[str, option("Sizes; empty: base for a checkpoint, tiny for random weights.")]
DeviceName = Annotated[str, option("cpu or cuda.")]
Precision = Annotated[
    str, option("Precision plan: fp32, bf16, fp8, int4, fp8_int4, or a YAML file.")
]
Plans = Annotated[str, option("Precision plans, separated by commas: bf16,fp8.")]
Scales = Annotated[Path | None, option("Calibration of an fp8 plan; else where it was put.")]
Numerics = Annotated[str, option("Profile, and switches behind it; empty: the checkpoint's.")]
Views = Annotated[
    str | None, option("Camera slots in use, separated by commas; else the policy's first two.")
]
Dims = Annotated[int | None, option("Numbers of the robot; the checkpoint's, else 7.", 0)]
Stats = Annotated[Path | None, option("Statistics instead of the checkpoint's.")]
Tokenizer = Annotated[Path | None, option("SentencePiece model, or tokenizer.json.")]
InPrompt = Annotated[bool, option("The checkpoint reads the state from the prompt.")]
Embodiment = Annotated[int | None, option("Slot of the robot, for a policy with several.", 0)]
Size = Annotated[int | None, option("Instead of the checkpoint's or preset's.", 1)]
Buckets = Annotated[str, option("Prompt lengths, separated by commas, instead of the preset's.")]
CameraBytes = Annotated[int, option("Room for a raw image that the device resizes; 0: none.", 0)]
Continues = Annotated[bool, option("Steps that can continue the chunk before.")]
Threads = Annotated[int, option("torch threads; 0: its own choice.", 0)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="name=value of the policy's configuration; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of tables.")]


def plan_options(
    policy: PolicyName = "pi05",
    checkpoint: Checkpoint = str(LoadOptions.checkpoint),
    preset: Preset = "",
    device: DeviceName = LoadOptions.device,
    precision: Precision = LoadOptions.precision,
    calibration: Scales = None,
    numerics: Numerics = "",
    views: Views = None,
    state_dim: Dims = None,
    action_dim: Dims = None,
    norm_stats: Stats = None,
    tokenizer: Tokenizer = None,
    state_in_prompt: InPrompt = True,
    embodiment: Embodiment = None,
    horizon: Size = None,
    steps: Size = None,
    prompt_buckets: Buckets = "",
    camera_bytes: CameraBytes = 0,
    real_time_chunking: Continues = False,
    threads: Threads = 0,
    settings: Settings = None,
) -> LoadOptions:
    """What the options of a command come to."""
    return LoadOptions(
        policy=policy,
        checkpoint=checkpoint,
        preset=preset or ("base" if checkpoint_path(checkpoint) else "tiny"),
        device=device,
        precision=precision,
        calibration=calibration,
        numerics=numerics,
        views=None
        if views is None
        else tuple(view.strip() for view in views.split(",") if view.strip()),
        state_dim=state_dim,
        action_dim=action_dim,
        norm_stats=norm_stats,
        tokenizer=tokenizer,
        extra=parse_settings(settings or ())
        | ({} if state_in_prompt else {"state_in_prompt": False})
        | ({} if embodiment is None else {"embodiment": embodiment}),
        horizon=horizon,
        steps=steps,
        prompt_buckets=_whole_numbers(prompt_buckets) or None,
        camera_bytes=camera_bytes,
        real_time_chunking=real_time_chunking,
        threads=threads,
    )


def given(context: typer.Context, *names: str) -> list[str]:
    """Those of a command's parameters that were given, as options: ``--fork-at``."""
    sources = {name: context.get_parameter_source(name) for name in names}
    asked = (name for name, source in sources.items() if source and source.name in _ASKED)
    return [f"--{name.replace('_', '-')}" for name in asked]


def refuse_idle(context: typer.Context, names: Iterable[str], needed: str) -> None:
    """OptionError where one of these options was given though nothing would come of it.

    Args:
        context: of the command that runs.
        names: of its parameters.
        needed: what they go with and was not given.
    """
    if idle := given(context, *names):
        add = f"add {needed}, or " if needed.startswith("--") else ""
        raise OptionError(
            f"option '{idle[0]}'",
            expected=f"{needed} beside it, without which it changes nothing",
            remedy=f"{add}leave it out",
        )


def refuse_idle_calibration(options: LoadOptions, plans: Iterable[LoadOptions]) -> None:
    """OptionError where a calibration was given though none of the plans reads one."""
    if options.calibration is not None and not any(precision_of(each).observed for each in plans):
        raise OptionError(
            "option '--calibration'",
            expected="a plan that quantises activations or to four bits, such as --precision fp8",
            got=f"'{options.calibration}' with {options.precision}",
            remedy="leave it out: no other plan reads it",
        )


def takes_plan(
    *, without: Container[str] = (), **changes: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command whose first parameter is a plan the options of :func:`plan_options` for it.

    Args:
        without: options that the command does not have.
        changes: option -> what is other for this command, its ``default`` or ``annotation``.
    """
    known = signature(plan_options, eval_str=True).parameters
    plan = [known[name].replace(**changes.get(name, {})) for name in known if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(command, eval_str=True).parameters.values())[1:]

        def run(**given: Any) -> None:
            chosen = {option.name: given.pop(option.name) for option in plan}
            command(plan_options(**chosen), **given)

        # typer reads what a command takes from these.
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        # What must be given stands first there, as in any signature.
        taken = sorted((*plan, *own), key=lambda each: each.default is not Parameter.empty)
        run.__signature__ = Signature(taken)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*plan, *own)}
        return run

    return decorate


def _whole_numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise OptionError(
            "option 'prompt_buckets'", expected="whole numbers, separated by commas", got=repr(text)
        )
    return tuple(map(int, parts))
