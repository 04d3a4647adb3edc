"""What to load, as a host says it; every field checked before anything is done with it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from .devices.overlap import DEFAULT as OVERLAP
from .errors import OptionError
from .limits import MOST_SESSIONS, MOST_SLOTS
from .precision import Precision
from .session import SEEDS
from .whole_numbers import whole_number


@dataclass(frozen=True)
class LoadOptions:
    """What to run and where.

    Attributes:
        policy: name in the registry.
        preset: sizes (``base`` the real ones, ``small`` and ``tiny`` for machines without a GPU).
        checkpoint: ``random:<seed>``, ``outliers:<seed>`` (the same with outlier channels), or a
            checkpoint folder (or its weights file alone). In every path ``~`` stands for the home
            folder.
        device: ``cpu`` or ``cuda``; no fallback from one to the other.
        precision: precision plan: ``fp32``, ``bf16``, ``fp8``, of LingBot-VA also ``int4`` and
            ``fp8_int4``, or a YAML file (docs/numerics.md).
        calibration: file of ``flashrt calibrate``, for a plan that quantises activations; None
            looks where that command puts it. Other plans do not read it.
        views: cameras in use, a subset of the policy's slots; None: its first two.
        absent_views: how many of them an observation may lack; each number of cameras has stages of
            its own, captured at load.
        state_dim: numbers in the robot's state; None: what the checkpoint was trained with, and 7
            where it does not say.
        action_dim: numbers in one action row; None likewise.
        norm_stats: file with normalisation statistics; None means the checkpoint's own, and for
            random weights the identity.
        tokenizer: file of the text encoding; None looks into the checkpoint's folder, and for
            random weights takes the small one that ships.
        delta_actions: for each action dimension whether the network's value is added to the state;
            None means as the checkpoint says.
        numerics: profile of official roundings and conventions, with single switches behind it
            (docs/numerics.md); empty for that of the checkpoint's origin.
        extra: further values of the policy's configuration, by name.
        horizon, steps, prompt_buckets: overrides of the preset; None keeps its values.
        seed: seed of the main session's noise.
        prompt: first instruction of the main session; empty to set it later.
        max_sessions, capsule_slots: what is allocated for sessions and capsules.
        host_slots: the same for capsules in the host's memory, pinned where the device is a GPU.
        working_sets: sets of buffers that sessions are spread over. Sessions of one set make room
            for each other; with as many as ``max_sessions``, each has buffers of its own.
        threads: torch threads on the CPU device; 0 leaves torch's choice.
        overlap: on the CUDA device, where kernels may start before the one in front has finished:
            ``on``, ``off``, or classes of boundaries (:mod:`flashrt_core.devices.overlap`); by
            default in the stage ``action``, and behind our own kernels in all others.
        real_time_chunking: a decision may continue the chunk before it
            (:class:`flashrt_core.guidance.Previous`).
        camera_bytes: room for a camera's image: images of so many bytes or fewer go to the device
            as they come and are decoded and resized there, with the host's grey levels; larger ones
            the host resizes. 0: the host does it always, which is faster on the CPU device.
    """

    policy: str = "pi05"
    preset: str = "tiny"
    checkpoint: str | Path = "random:0"
    device: str = "cpu"
    precision: str = "fp32"
    calibration: str | Path | None = None
    views: tuple[str, ...] | None = None
    absent_views: int = 0
    state_dim: int | None = None
    action_dim: int | None = None
    norm_stats: str | Path | None = None
    tokenizer: str | Path | None = None
    delta_actions: tuple[bool, ...] | None = None
    numerics: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    horizon: int | None = None
    steps: int | None = None
    prompt_buckets: tuple[int, ...] | None = None
    seed: int = 0
    prompt: str = ""
    max_sessions: int = 4
    capsule_slots: int = 4
    host_slots: int = 0
    working_sets: int = 1
    threads: int = 0
    overlap: str | bool = OVERLAP
    camera_bytes: int = 0
    real_time_chunking: bool = False


#: Values of a policy's configuration that have options of their own, and how these are left alone.
OPTIONS_OF_SOME: Mapping[str, str] = {
    "numerics": "leave it empty",
    "camera_bytes": "leave it at 0",
    "state_in_prompt": "leave it true",
    "embodiment": "leave it out (as a parameter: -1)",
}
_WHOLE_NUMBER, _NUMBER = (
    re.compile(text, re.ASCII) for text in (r"-?[0-9]{1,18}", r"-?[0-9.]+(e-?[0-9]+)?")
)


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Values of a policy's configuration, of ``name=value`` each: ``channels=0,2,4``.

    true, false and numbers are such; a comma makes a list, also one behind a single number; all
    else is text. Later ones win. OptionError on what is no ``name=value``.
    """
    found = {}
    for text in texts:
        name, mark, value = (part.strip() for part in text.partition("="))
        if not (name.isidentifier() and mark and value):
            raise OptionError(
                "option 'settings'",
                expected="name=value of the policy's configuration, like action_steps=20 or "
                "channels=0,2,4",
                got=repr(text),
            )
        found[name] = _value(value)
    return found


def settings_of(extra: Mapping[str, Any]) -> list[str]:
    """``extra`` as :func:`parse_settings` reads it, without what has options of its own."""
    return [f"{n}={_shown(v)}" for n, v in extra.items() if n not in OPTIONS_OF_SOME]


def _value(text: str) -> Any:
    if "," in text:
        return tuple(_value(part.strip()) for part in text.split(",") if part.strip())
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    try:
        return float(text) if _NUMBER.fullmatch(text) else text
    except ValueError:
        return text


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value)) + ("," if len(value) == 1 else "")
    return str(value).lower() if isinstance(value, bool) else str(value)


def plans_of(options: LoadOptions) -> list[LoadOptions]:
    """One for each of the precision plans that it names, separated by commas; each once."""
    names = dict.fromkeys(name.strip() for name in str(options.precision).split(","))
    return [replace(options, precision=name) for name in names]


def calibrate_command(options: LoadOptions, npz: str = "FILE") -> str:
    """The command that makes the calibration of a plan of the observations in a file."""
    words = ["flashrt", "calibrate", options.policy, "--checkpoint", str(options.checkpoint)]
    plain = LoadOptions()
    names = ("preset", "precision", "horizon", "steps", "numerics", "state_dim", "norm_stats")
    for name in (*names, "tokenizer", "threads"):
        value = getattr(options, name)
        if value != getattr(plain, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    if options.extra.get("state_in_prompt") is False:
        words.append("--no-state-in-prompt")
    if "embodiment" in options.extra:
        words += ["--embodiment", str(options.extra["embodiment"])]
    for setting in settings_of(options.extra):
        words += ["--set", setting]
    if options.prompt_buckets:
        words += ["--prompt-buckets", ",".join(map(str, options.prompt_buckets))]
    if options.views is not None:
        words += ["--views", ",".join(options.views)]
    if options.calibration is not None:
        words += ["--output", str(options.calibration)]
    return f"{shlex.join(words)} --npz {npz}"


def checked(options: LoadOptions) -> LoadOptions:
    """The options in the types that they are declared with; numbers of NumPy become Python's.

    What a value may be beyond its type (a policy's sizes, say) is checked where it is known.

    Raises:
        OptionError: a value of another type, or a number out of range.
    """
    if not isinstance(options, LoadOptions):
        raise OptionError("options", expected="LoadOptions", got=type(options).__name__)
    values = {
        each.name: _FIELDS[each.name](f"option {each.name!r}", getattr(options, each.name))
        for each in fields(options)
    }
    made = replace(options, **values)
    if made.working_sets > made.max_sessions:
        raise OptionError(
            "option 'working_sets'",
            expected=f"at most {made.max_sessions}, the sessions that may exist (max_sessions)",
            got=made.working_sets,
            remedy="a set more would never hold anything",
        )
    return made


Check = Callable[[str, Any], Any]  # name of the option and its value; the value to use


def _wrong(what: str, expected: str, value: object) -> OptionError:
    return OptionError(what, expected=expected, got=f"{value!r} ({type(value).__name__})")


def _of(kinds: Any, expected: str) -> Check:
    """A value of these types as it is."""

    def check(what: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            raise _wrong(what, expected, value)
        return value

    return check


def _whole(what: str, value: Any) -> int:
    return whole_number(what, value, OptionError)


def _within(least: int, most: int | None = None) -> Check:
    """A whole number in a range."""

    def check(what: str, value: Any) -> int:
        number = _whole(what, value)
        if number < least or (most is not None and number > most):
            upper = "" if most is None else f" and at most {most}"
            raise OptionError(what, expected=f"a whole number >= {least}{upper}", got=number)
        return number

    return check


def _truth(what: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _wrong(what, "true or false", value)
    return bool(value)


def _list(each: Check, expected: str) -> Check:
    """A list, as a tuple; a text is none, though it has items."""

    def check(what: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple | np.ndarray):
            raise _wrong(what, f"a list of {expected}", value)
        return tuple(each(f"{what}, entry {at}", item) for at, item in enumerate(value))

    return check


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(what, "a mapping", value)
    return {_TEXT(f"{what}, key", key): item for key, item in value.items()}


def _maybe(check: Check) -> Check:
    return lambda what, value: None if value is None else check(what, value)


_TEXT = _of(str, "text")
_PATH = _of((str, os.PathLike), "a path")
#: One line a field: what it may be, and as what it is used.
_FIELDS: Mapping[str, Check] = {
    "policy": _TEXT,
    "preset": _TEXT,
    "checkpoint": lambda what, value: value,  # who opens it says more
    "device": _TEXT,
    "precision": _of((str, os.PathLike, Precision), "the name of a plan or a path"),
    "calibration": _maybe(_PATH),
    "views": _maybe(_list(_TEXT, "names of views")),
    "absent_views": _within(0),
    "state_dim": _maybe(_within(0)),
    "action_dim": _maybe(_within(0)),
    "norm_stats": _maybe(_PATH),
    "tokenizer": _maybe(_PATH),
    "delta_actions": _maybe(_list(_truth, "true or false, one an action")),
    "numerics": _TEXT,
    "extra": _mapping,
    "horizon": _maybe(_whole),
    "steps": _maybe(_whole),
    "prompt_buckets": _maybe(_list(_whole, "whole numbers")),
    "seed": _within(SEEDS.start, SEEDS.stop - 1),
    "prompt": _TEXT,
    "max_sessions": _within(1, MOST_SESSIONS),
    "capsule_slots": _within(0, MOST_SLOTS),
    "host_slots": _within(0, MOST_SLOTS),
    "working_sets": _within(1),
    "threads": _within(0, 1024),
    "overlap": _of((str, bool), "on, off, or classes of boundaries"),
    "camera_bytes": _within(0),
    "real_time_chunking": _truth,
}
