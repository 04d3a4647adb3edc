"""The node brings itself to `active` when its process starts, whoever started it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

from rclpy.lifecycle import TransitionCallbackReturn

from flashrt_ros.own_name import REMEDY

#: Name of the parameter.
AUTOSTART = "autostart"
_PERIOD_S = 0.2
# DDS misses a killed process after some 20 s; till then its name is taken.
_NAME_WAIT_S = 40.0
_UNHEARD_S = 4.0  # a process that lives says who it is by then


class Autostart:
    """Configures and activates a node once, from its executor.

    Inside of the node rather than in a launch file: a request from outside can reach the process
    that was killed a moment ago, whose services are still known, and is then never answered. Where
    another process has the name, it is waited for, unless it waits as well and started later: of
    two, one must go on. Any other failure is told once and left to a person.

    Args:
        node: has ``state``, ``parameters``, ``own_name`` and rclpy's triggers.
        steady_clock: drives it, also where simulated time stands still.
    """

    def __init__(self, node: Any, steady_clock: Any) -> None:
        self._node = node
        self._began_s = time.monotonic()
        self._told: str | None = None  # who has the name
        self._held_s: float | None = None  # since when it is configured
        if error := node.parameters.errors.get(AUTOSTART):
            node.get_logger().error(f"not started: {error}")
        elif node.get_parameter(AUTOSTART).value:
            self._timer = node.create_timer(_PERIOD_S, self._tick, clock=steady_clock)

    def _tick(self) -> None:
        node, name = self._node, self._node.own_name
        if self._held_s is None:
            if node.state == "unconfigured" and self._waits_for_name():
                return
            if node.state != "unconfigured":  # somebody was faster
                self._timer.cancel()
                return
            with name.going_first() if name.first() else nullcontext():
                if node.trigger_configure() != TransitionCallbackReturn.SUCCESS:
                    self._timer.cancel()
                    return
            self._held_s = time.monotonic()
        self._activate(self._held_s)

    def _activate(self, held_s: float) -> None:
        """Activate, unless somebody has come to light meanwhile who goes first.

        On a busy machine two discover each other when both are configured. Then what each said
        behind that decides.
        """
        node, name = self._node, self._node.own_name
        if node.state == "inactive" and not name.announced():  # weights take as long to load
            return
        first = name.first(held_s)
        if node.state == "inactive" and name.others() and not first:
            if name.later(held_s):
                self._held_s = None
                node.trigger_cleanup()
                return
            if time.monotonic() - held_s <= _NAME_WAIT_S:  # it may load weights, and hear nobody
                return
        self._timer.cancel()
        if node.state == "inactive":
            with name.going_first() if first else nullcontext():
                node.trigger_activate()

    def _waits_for_name(self) -> bool:
        name = self._node.own_name
        if name.free() or time.monotonic() - self._began_s > _NAME_WAIT_S:
            return False
        own = f"the name '{self._node.get_fully_qualified_name()}'"
        if name.first():
            self._node.get_logger().warning(
                f"{name.who()} started later with {own} and waits for this one: stop it, or start"
                " it under a name of its own"
            )
            return False
        if not name.settled():  # it may still turn out to be the first
            return True
        who, waited_s = name.who(), time.monotonic() - self._began_s
        known = who != self._told if who else self._told is None and waited_s > _UNHEARD_S
        if name.others() and known:
            self._told = who
            has = f"{who} has it; {REMEDY}" if who else "another node or a killed process has it"
            self._node.get_logger().warning(f"waiting up to {_NAME_WAIT_S:g} s for {own}: {has}")
        return True
