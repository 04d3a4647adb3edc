"""Messages of a bag as the node reads them; what it could not read is left out and counted.

A message that does not deserialise has no stamp to wait for, and a subscriber would only stumble
over it.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from rclpy.serialization import deserialize_message
from rosbags.serde import SerdeError
from rosbags.typesys import Stores, get_typestore

from .bag import Bag, Message, Route


def message_class(msgtype: str) -> Any | None:
    """The Python class of ``package/msg/Name``, or None where the package is not installed."""
    package, _, name = msgtype.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name, None)
    except ImportError:
        return None


def sound_messages(
    bag: Bag, routes: Sequence[Route], malformed: Counter[str] | None = None
) -> Iterator[Message]:
    """The well-formed messages of ``routes`` in recorded order.

    Args:
        bag: the recording.
        routes: topics to read.
        malformed: counts what is left out, by input name.

    Raises:
        OptionError: the storage turns out to be damaged on the way.
    """
    inputs = {route.topic: route.input for route in routes}
    for message in bag.messages(list(inputs)):
        target = inputs[message.topic]
        if well_formed(message.data, target.msgtype):
            yield message
        elif malformed is not None:
            malformed[target.name] += 1


def well_formed(data: bytes, msgtype: str) -> bool:
    """Whether the middleware makes a message of ``msgtype`` from these CDR bytes."""
    try:
        # Takes no copy of an image, and what it accepts every middleware does: it is the stricter.
        _store().deserialize_cdr(data, msgtype)
    except (SerdeError, AssertionError, IndexError, OverflowError):
        try:
            deserialize_message(data, message_class(msgtype))
        except RuntimeError:  # rclpy's RMWError
            return False
    return True


@cache
def _store() -> Any:
    return get_typestore(Stores.ROS2_JAZZY)
