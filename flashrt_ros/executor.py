"""The executor of the node: rclpy's own, with a short way for the messages of inputs.

For every callback rclpy builds what it waits for anew, from all services, timers and events of the
node, and once more because each callback wakes it; then it puts the callback into a task and
coroutines. Some two hundred messages of sensors come in a second, and a decision waits for one of
them: for an image, all of that would be before its callback and behind it. Here what is waited for
is kept while the node has the same entities, and the messages of inputs go to their callbacks
straight away. Everything else is rclpy's, unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rclpy.executors import (
    ExternalShutdownException,
    ShutdownException,
    SingleThreadedExecutor,
    TimeoutException,
)
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.waitable import NumberOfEntities

from flashrt_ros.stamps import SECOND

_InvalidHandle = rclpy_implementation.InvalidHandle
#: Subscriptions, clients, services, timers, guard conditions and waitables of all nodes.
_Entities = tuple[list[Any], ...]


class InputsFirst(SingleThreadedExecutor):
    """Calls back on the thread that calls :meth:`spin_once`.

    Inputs are subscriptions to raw messages; their callbacks are plain functions of one argument.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._watch: _Watch | None = None
        self._left = False  # rclpy may have found something that it did not do yet

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait for something to do, at most so long (None: for ever), and do it.

        Raises whatever a callback raises, and ExternalShutdownException without a context.
        """
        # While a service waits for something rclpy does everything: what waits may keep others from
        # being called.
        if self._is_shutdown or any(not task.done() for task, *_ in self._tasks):
            self._let_go()
            self._left = True
            super().spin_once(timeout_sec)
            return
        timeout_ns = -1 if timeout_sec is None else round(timeout_sec * SECOND)
        if self._left or not self._call_inputs(timeout_ns):
            self._call_others()

    def remove_node(self, node: Any) -> None:
        """Let go of a node and of all that it has."""
        self._let_go()
        super().remove_node(node)

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """Let go of everything."""
        self._let_go()
        return bool(super().shutdown(timeout_sec))

    def _call_inputs(self, timeout_ns: int) -> bool:
        """Wait, and call back for the inputs that have a message; whether that is all there is."""
        watch = self._current()
        watch.wait(timeout_ns)
        if self._is_shutdown:
            return True
        self._require_context()
        inputs, others, woken = watch.ready()
        self._left = others
        for subscription in inputs:
            found = subscription.handle.take_message(subscription.msg_type, True)
            if found is not None:
                subscription.callback(found[0])
        return not others and (woken or bool(inputs))

    def _call_others(self) -> None:
        """Call back for everything that is ready, in rclpy's way."""
        self._left = True
        while True:
            try:
                task, *_ = self.wait_for_ready_callbacks(0.0)
            except (TimeoutException, ShutdownException):
                self._left = False
                return
            task()
            task.result()

    def _current(self) -> _Watch:
        """What to wait for; a new one where the node has other entities by now."""
        entities = _entities(self.get_nodes())
        if self._watch is None or self._watch.entities != entities:
            self._let_go()
            self._require_context()
            own = [guard for guard in (self._guard, self._sigint_gc) if guard is not None]
            self._watch = _Watch(self._context, entities, own)
        return self._watch

    def _require_context(self) -> None:
        if not self._context.ok():
            raise ExternalShutdownException

    def _let_go(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


def _entities(nodes: Sequence[Any]) -> _Entities:
    return (
        [each for node in nodes for each in node.subscriptions],
        [each for node in nodes for each in node.clients],
        [each for node in nodes for each in node.services],
        [each for node in nodes for each in node.timers],
        [each for node in nodes for each in node.guards],
        [each for node in nodes for each in node.waitables],
    )


class _Watch:
    """Entities to wait for, as often as wanted. Until :meth:`close` none of them is destroyed.

    Args:
        context: of the executor.
        entities: of its nodes.
        own: guard conditions of the executor, which only wake it.
    """

    def __init__(self, context: Any, entities: _Entities, own: Sequence[Any]) -> None:
        self.entities = entities
        self._held = ExitStack()
        *known, waitables = ([e for e in some if self._hold(e)] for some in entities)
        subscriptions, clients, services, timers, guards = known
        own = [guard for guard in own if self._hold(guard)]
        self._held.enter_context(context.handle)
        more = sum((each.get_num_entities() for each in waitables), NumberOfEntities())
        make = rclpy_implementation.WaitSet
        wait_set = self._wait_set = make(
            len(subscriptions) + more.num_subscriptions,
            len(guards) + len(own) + more.num_guard_conditions,
            len(timers) + more.num_timers,
            len(clients) + more.num_clients,
            len(services) + more.num_services,
            more.num_events,
            context.handle,
        )
        self._adding = [
            *((wait_set.add_subscription, each.handle) for each in subscriptions),
            *((wait_set.add_client, each.handle) for each in clients),
            *((wait_set.add_service, each.handle) for each in services),
            *((wait_set.add_timer, each.handle) for each in timers),
            *((wait_set.add_guard_condition, each.handle) for each in (*guards, *own)),
            *((each.add_to_wait_set, wait_set) for each in waitables),
        ]
        self._inputs = {each.handle.pointer: each for each in subscriptions if each.raw}
        self._guards = {each.handle.pointer: each for each in guards}
        self._own = {each.handle.pointer for each in own}

    def wait(self, timeout_ns: int) -> None:
        """Wait until one of them is ready, at most so long; a negative number: for ever."""
        self._wait_set.clear_entities()
        for add, what in self._adding:
            add(what)
        self._wait_set.wait(timeout_ns)

    def ready(self) -> tuple[list[Any], bool, bool]:
        """Inputs with a message; whether something else is ready that is known of; whether the
        executor was woken. Events are never known of: what woke is one where nothing else did.
        """
        found = self._wait_set.get_ready_entities
        subscriptions, guards = found("subscription"), found("guard_condition")
        inputs = [self._inputs[each] for each in subscriptions if each in self._inputs]
        others = len(inputs) < len(subscriptions)
        for each in guards:
            if each in self._guards:  # taken by the wait: rclpy is told
                self._guards[each]._executor_triggered = others = True
        others = others or bool(found("timer") or found("service") or found("client"))
        return inputs, others, not self._own.isdisjoint(guards)

    def close(self) -> None:
        """Let go of them."""
        self._held.close()

    def _hold(self, entity: Any) -> bool:
        """Keep it from being destroyed; False where it is already."""
        try:
            self._held.enter_context(getattr(entity, "handle", entity))
        except _InvalidHandle:
            return False
        return True
