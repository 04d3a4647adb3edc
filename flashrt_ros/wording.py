"""Messages in the words of the node's user: parameters for options, services for calls.

flashrt_core names what a Python host has; whoever runs the node has a parameter file and services.
"""

from __future__ import annotations

import re

from flashrt_core.errors import (
    CapsuleError,
    FlashRTError,
    InputError,
    OptionError,
    SessionError,
    StaleStateError,
)
from flashrt_ros.parameters import NodeConfig, expand

_OPTION = re.compile(r"(?:option|override) '(\w+)'")
# Where rcl's messages name the place in its sources: ", at ./src/rcl/arguments.c:406".
_SOURCE = re.compile(r",? at \S+\.(?:c|cpp|h|hpp):\d+")
_COUNTED = {"state_dim": "joints.names", "action_dim": "action.names"}
_RENAMED = {"delta_actions": "action.relative"}
_REMEDIES = {
    (InputError, "set_prompt() first"): "call ~/set_prompt first",
    (InputError, "record() each while the chunk is executed, or restart()"): "call ~/restart for a"
    " new episode",
    (StaleStateError, "restore a capsule, or restart() for a new episode"): "call"
    " ~/restore_capsule, or ~/restart for a new episode",
    (SessionError, "decide()"): "decide without reuse_context",
    (CapsuleError, "run a decision or the context stage first"): "activate the node, if it is not,"
    " and let it decide first",
}


def one_line(error: BaseException) -> str:
    """The text of a ROS exception on one line, without places in C sources."""
    return _SOURCE.sub("", " ".join(str(error).split()))


def in_node_terms(error: FlashRTError, config: NodeConfig | None = None) -> FlashRTError:
    """``error`` as the node reports it.

    Args:
        error: from flashrt_core or this package.
        config: of the node; says which parameter an option came from.
    """
    if isinstance(error, OptionError):
        found = _OPTION.match(error.what)
        name = found and _parameter(found[1], error, config)
        return error.reworded(what=name) if name else error
    remedy = _REMEDIES.get((type(error), error.remedy or ""))
    if remedy is None and isinstance(error, StaleStateError):
        remedy = "decide without reuse_context"
    return error.reworded(remedy=remedy) if remedy else error


def _parameter(option: str, error: OptionError, config: NodeConfig | None) -> str | None:
    if option == "views":
        cameras = config.cameras if config else ()
        slots = [f"camera.{c.key}.slot" for c in cameras if c.slot == error.got]
        return f"parameter '{slots[0] if slots else 'cameras'}'"
    if option in _COUNTED:
        return f"number of names in parameter '{_COUNTED[option]}'"
    name = _RENAMED.get(option, option)
    return f"parameter '{name}'" if name in expand(()) else None
