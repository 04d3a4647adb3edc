"""Switches between the numbers of official implementations, set by the name of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ..errors import OptionError

Switches = TypeVar("Switches")


def parse_profile(
    text: str, profiles: Mapping[str, Switches], choices: Mapping[str, tuple[str, ...]]
) -> Switches:
    """A profile with single switches replaced: ``openpi`` or ``lerobot,state_text=padded``.

    Args:
        text: as an option has it.
        profiles: by name; frozen dataclasses whose fields are switches.
        choices: values that each switch may take.

    Raises:
        OptionError: an unknown profile, switch or value.
    """
    name, *changes = (part.strip() for part in text.split(","))
    where = "option 'numerics'"
    if name not in profiles:
        raise OptionError(where, expected=f"a profile of {sorted(profiles)} first", got=repr(name))
    values: dict[str, Any] = {}
    for change in changes:
        switch, _, value = (part.strip() for part in change.partition("="))
        if value not in choices.get(switch, ()):
            known = choices.get(switch)
            expected = f"{switch}={'|'.join(known)}" if known else f"a switch of {sorted(choices)}"
            raise OptionError(where, expected=expected, got=repr(change))
        values[switch] = value
    return replace(profiles[name], **values)  # type: ignore[type-var]
