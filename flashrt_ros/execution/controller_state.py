"""A sign of life of the controller: any message on a topic that it publishes."""

from __future__ import annotations

import importlib
import re
import time
from typing import Any

from rclpy.exceptions import NameValidationException
from rclpy.qos import QoSProfile, ReliabilityPolicy

from flashrt_core.errors import OptionError
from flashrt_ros.wording import one_line

_TOPIC, _TYPE = "safe.controller_state.topic", "safe.controller_state.type"


class ControllerState:
    """Listens to a topic without reading what is said there.

    Args:
        node: subscribes.
        topic: of the controller's state.
        kind: its type, as ``package/msg/Name``; the package need not be one of ours.

    Raises:
        OptionError: the type or the topic is none.
    """

    def __init__(self, node: Any, topic: str, kind: str) -> None:
        self._node = node
        self.topic = topic
        self._heard_s = 0.0
        qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        try:
            self._subscription = node.create_subscription(
                _message_class(kind), topic, self._on_message, qos, raw=True
            )
        except (NameValidationException, RuntimeError, ValueError) as error:
            raise OptionError(f"parameter '{_TOPIC}'", got=one_line(error)) from error

    def restart(self) -> None:
        """Count silence from now on."""
        self._heard_s = time.monotonic()

    def silent_s(self) -> float:
        """Seconds of wall time since the last message."""
        return time.monotonic() - self._heard_s

    def close(self) -> None:
        """Destroy the subscription."""
        self._node.destroy_subscription(self._subscription)

    def _on_message(self, _: bytes) -> None:
        self.restart()


def _message_class(kind: str) -> Any:
    found = re.fullmatch(r"(\w+)/msg/(\w+)", kind)
    if found is None:
        raise OptionError(f"parameter '{_TYPE}'", expected="package/msg/Name", got=f"'{kind}'")
    try:
        return getattr(importlib.import_module(f"{found[1]}.msg"), found[2])
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"parameter '{_TYPE}'",
            expected="a message of an installed package",
            got=f"'{kind}'",
            remedy=f"install {found[1]}, or correct the name",
        ) from error
