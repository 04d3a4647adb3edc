"""The node brings itself to `active` when its process starts, whoever started it."""

from __future__ import annotations

import time
from typing import Any

from rclpy.lifecycle import TransitionCallbackReturn

#: Name of the parameter.
AUTOSTART = "autostart"
_PERIOD_S = 0.2
# DDS misses a killed process after some 20 s; till then its name is taken.
_NAME_WAIT_S = 40.0


class Autostart:
    """Configures and activates a node once, from its executor.

    Inside of the node rather than in a launch file: a request from outside can reach the process
    that was killed a moment ago, whose services are still known, and is then never answered. Where
    a process died, its name is waited for; any other failure is told once and left to a person.

    Args:
        node: has ``state``, ``parameters``, ``own_name`` and rclpy's triggers.
        steady_clock: drives it, also where simulated time stands still.
    """

    def __init__(self, node: Any, steady_clock: Any) -> None:
        self._node = node
        self._began_s = time.monotonic()
        self._told = False
        if error := node.parameters.errors.get(AUTOSTART):
            node.get_logger().error(f"not started: {error}")
        elif node.get_parameter(AUTOSTART).value:
            self._timer = node.create_timer(_PERIOD_S, self._tick, clock=steady_clock)

    def _tick(self) -> None:
        node = self._node
        if node.state == "unconfigured" and self._waits_for_name():
            return
        self._timer.cancel()
        if node.state != "unconfigured":  # somebody was faster
            return
        if node.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            node.trigger_activate()

    def _waits_for_name(self) -> bool:
        name = self._node.own_name
        if name.free() or time.monotonic() - self._began_s > _NAME_WAIT_S:
            return False
        if name.others() and not self._told:
            self._told = True
            self._node.get_logger().warning(
                f"waiting up to {_NAME_WAIT_S:g} s for the name"
                f" '{self._node.get_fully_qualified_name()}': another node, or a process that was"
                " killed, has it"
            )
        return True
