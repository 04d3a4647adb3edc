"""Presets of a policy's sizes with single values replaced, each checked by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from ..errors import OptionError

Check = Callable[[str, Any], Any]  # what the value is of, for messages, and the value; it back
Rule = tuple[bool, str, str]  # whether it holds, the size it is about, and what that must be


def overridden(
    policy: str,
    preset: str,
    presets: Mapping[str, Any],
    values: Mapping[str, Any],
    checks: Mapping[str, Check],
    limits: Mapping[str, tuple[int, int]],
) -> Any:
    """The configuration of ``preset`` with ``values``.

    Args:
        policy: its name, for messages.
        preset: a key of ``presets``.
        presets: frozen dataclasses of one kind; parts of one may be dataclasses too.
        values: by field name; those of a part with its name in front (``trunk_depth``).
        checks: of the fields that are no whole numbers. A part with one is a value by itself.
        limits: of whole numbers: by the name, or what it ends in behind its part's.

    Raises:
        OptionError: unknown preset or name, a value of the wrong type or out of range.
    """
    if preset not in presets:
        raise OptionError("option 'preset'", expected=f"one of {sorted(presets)}", got=repr(preset))
    config = presets[preset]
    known = _setters(config, frozenset(checks))
    unknown = sorted(set(values) - set(known))
    if unknown:
        near = get_close_matches(unknown[0], known, 3, 0.5)
        raise OptionError(
            f"override {unknown[0]!r} of policy {policy!r}",
            expected=f"the name of a value, like {', '.join(near)}" if near else "a value's name",
            got="no such value",
            remedy=f"flashrt inspect {policy} --json lists them under config, those of a part with "
            "its name and _ in front",
        )
    for name, value in values.items():
        where = f"override {name!r} of policy {policy!r}"
        check = checks.get(name)
        config = known[name](
            config, _whole(where, value, name, limits) if check is None else check(where, value)
        )
    return config


def _setters(config: Any, single: frozenset[str]) -> dict[str, Callable[[Any, Any], Any]]:
    """Override name -> function that puts a value there."""

    def top(name: str) -> Callable[[Any, Any], Any]:
        return lambda old, value: replace(old, **{name: value})

    def part(group: str, name: str) -> Callable[[Any, Any], Any]:
        return lambda old, value: replace(
            old, **{group: replace(getattr(old, group), **{name: value})}
        )

    setters: dict[str, Callable[[Any, Any], Any]] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value) and each.name not in single:
            for inner in fields(value):
                setters[f"{each.name}_{inner.name}"] = part(each.name, inner.name)
        elif each.name != "preset":
            setters[each.name] = top(each.name)
    return setters


def _whole(where: str, value: Any, name: str, limits: Mapping[str, tuple[int, int]]) -> int:
    low, high = limits[name if name in limits else name.split("_", 1)[1]]
    if type(value) is not int or not low <= value <= high:
        raise OptionError(where, expected=f"a whole number in {low}..{high}", got=repr(value))
    return value


def whole_list(expected: str, low: int, high: int, *, rising: bool, count: int = 0) -> Check:
    """A list of whole numbers in ``low``..``high``, each above the last where ``rising``.

    ``count``: of its entries; 0: one or more. ``expected`` says all of it, for messages.
    """

    def check(where: str, value: Any) -> tuple[int, ...]:
        found = tuple(value) if isinstance(value, list | tuple) else ()
        whole = all(type(each) is int and low <= each <= high for each in found)
        fits = found and whole and count in (0, len(found))
        if not fits or (rising and sorted(set(found)) != list(found)):
            raise OptionError(where, expected=expected, got=value)
        return found

    return check


buckets = whole_list("ascending token counts in 1..4096", 1, 4096, rising=True)


def flag(where: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise OptionError(where, expected="true or false", got=repr(value))
    return value


def positive(where: str, value: Any) -> float:
    """A number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise OptionError(where, expected="a number in (0, 1e9)", got=repr(value))
    return float(value)


#: Checks of fields that every policy's configuration has, or may have.
CHECKS: Mapping[str, Check] = {
    "prompt_buckets": buckets,
    "real_time_chunking": flag,
    "rope_theta": positive,
    "eps": positive,
}
#: Limits of whole numbers, likewise.
LIMITS: Mapping[str, tuple[int, int]] = {
    "patch": (2, 64),
    "vocab": (16, 1 << 20),
    "action_dim": (1, 256),
    "horizon": (1, 256),
    "steps": (1, 1000),
    "depth": (1, 256),
    "heads": (1, 256),
    "head_dim": (2, 1024),
    "width": (4, 1 << 16),
    "ffn": (4, 1 << 18),
}


def numerics(kind: type, parse: Callable[[str], Any]) -> Check:
    """A policy's switches, or the text that ``parse`` reads."""

    def check(where: str, value: Any) -> Any:
        if isinstance(value, str):
            return parse(value)
        if not isinstance(value, kind):
            raise OptionError(where, expected="a profile or Numerics", got=repr(value))
        return value

    return check


def require_rules(policy: str, config: Any, rules: Iterable[Rule]) -> None:
    """OptionError with the first rule that does not hold, its size and what that is."""
    for holds, name, expected in rules:
        if not holds:
            group, _, inner = name.partition("_")
            part = getattr(config, group, None)
            got = getattr(part, inner) if is_dataclass(part) else getattr(config, name)
            raise OptionError(f"size {name!r} of policy {policy!r}", expected=expected, got=got)
