"""Names that a user gave and the node does not know, with what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

from flashrt_core.errors import OptionError
from flashrt_ros.execution.parameters import NAMES
from flashrt_ros.parameters import expand

QOS = "qos_overrides."
QOS_POLICIES = ("history", "depth", "reliability")
# Parameters that rclpy declares itself.
_FOREIGN = ("use_sim_time", "start_type_description_service")
_EXECUTION = tuple({f"{name.partition('.')[0]}." for name in NAMES})
# Last part of a name that was taken out -> what to write instead.
_FORMER = {"compressed": "set camera.<key>.transport to compressed, and the topic without that"}


def unknown_parameters(
    given: Iterable[str], keys: Sequence[str], qos: Collection[str] = ()
) -> dict[str, str]:
    """Given names that are not declared, each with a hint (the nearest name, or "").

    Args:
        given: names from files and the command line.
        keys: of the cameras.
        qos: names of the QoS overrides that some topic of the node looks at.
    """
    known = expand(keys)
    unknown: dict[str, str] = {}
    for name in given:
        if name in known or name in _FOREIGN or name in qos:
            continue
        if name.startswith(QOS):
            near = difflib.get_close_matches(name, qos, n=1, cutoff=0.0)
            unknown[name] = f"the nearest that has one is '{near[0]}'" if near else ""
            continue
        part = name.split(".")
        if part[0] == "camera" and len(part) == 3 and part[1] not in keys:
            unknown[name] = f"add '{part[1]}' to cameras"
            continue
        if part[0] == "camera" and part[-1] in _FORMER:
            unknown[name] = _FORMER[part[-1]]
            continue
        near = difflib.get_close_matches(name, known, n=1)
        unknown[name] = f"did you mean '{near[0]}'?" if near else ""
    return unknown


def refuse_execution(unknown: Mapping[str, str]) -> None:
    """OptionError when one of these names means, or may have meant, a limit or the safe action.

    Args:
        unknown: names with their hints, of :func:`unknown_parameters`.
    """
    for name, hint in unknown.items():
        if name.startswith(_EXECUTION) or any(f"'{known}'" in hint for known in NAMES):
            raise OptionError(
                f"parameter '{name}'", expected="a known name, as an output is on", got="an unknown"
                " one", remedy=hint or "take it out: what it should limit is not limited",
            )  # fmt: skip
