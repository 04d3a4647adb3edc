"""Play a bag into the graph: CDR bytes as they were recorded, at recorded timing, with /clock."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from flashrt_core.errors import FlashRTError, OptionError
from flashrt_ros.stamps import time_message

from .bag import Bag, Message, Route
from .messages import message_class, sound_messages
from .records import PlayRecord

CLOCK_HZ = 250.0
# Between messages that have no due time: subscribers keep five, and must get to take them.
_BREATH_S = 0.0005
_AHEAD = 48  # messages read ahead of time: decompression must not delay the next one


class PlaybackError(FlashRTError):
    """Nobody listens to what would be played."""

    code = 92


class Player:
    """Publishes the topics of ``routes`` on ``node``.

    Raises:
        OptionError: a message type whose package is not installed.
    """

    def __init__(self, node: Node, bag: Bag, routes: Sequence[Route]) -> None:
        self._bag = bag
        self.routes = tuple(routes)
        self._clock = node.create_publisher(
            Clock, "/clock", QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        )
        # Reliable publishers match reliable and best-effort subscribers alike.
        qos = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
        self._publishers: dict[str, Any] = {}
        for route in self.routes:
            kind = message_class(route.input.msgtype)
            if kind is None:
                raise OptionError(
                    f"message type '{route.input.msgtype}' of topic '{route.topic}'",
                    expected="an installed interface package",
                    got="none of that name",
                )
            self._publishers[route.topic] = node.create_publisher(kind, route.input.topic, qos)
        self.sent = {route.input.name: 0 for route in self.routes}
        self.malformed: Counter[str] = Counter()  # by input; not sent
        self._names = {route.topic: route.input.name for route in self.routes}

    def wait_for_subscribers(self, timeout_s: float = 10.0) -> None:
        """Until every topic has a subscriber.

        Raises:
            PlaybackError: some have none after ``timeout_s``.
        """
        limit = time.monotonic() + timeout_s
        while waiting := [
            t for t, p in self._publishers.items() if p.get_subscription_count() == 0
        ]:
            if time.monotonic() > limit:
                raise PlaybackError(
                    f"topics {waiting}",
                    expected=f"a subscriber within {timeout_s:g} s",
                    got="none",
                    remedy="is the node configured, and on this DDS domain?",
                )
            time.sleep(0.02)

    def start_clock(self, time_ns: int, timeout_s: float = 5.0) -> None:
        """Publish ``time_ns`` on /clock until a subscriber is there, and a few times more."""
        limit = time.monotonic() + timeout_s
        while self._clock.get_subscription_count() == 0 and time.monotonic() < limit:
            time.sleep(0.02)
        for _ in range(5):
            self.tick(time_ns)
            time.sleep(0.02)

    def tick(self, time_ns: int) -> None:
        """Publish ``time_ns`` on /clock."""
        self._clock.publish(Clock(clock=time_message(time_ns)))

    def publish(self, message: Message) -> None:
        """Publish one message as it was recorded."""
        self._publishers[message.topic].publish(message.data)
        self.sent[self._names[message.topic]] += 1

    def play(
        self,
        rate: float = 1.0,
        progress: Callable[[float], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
        ticked: Callable[[int], None] = lambda _: None,
    ) -> PlayRecord:
        """Play everything at ``rate`` times the recorded timing.

        Args:
            rate: > 0; 2.0 plays twice as fast, infinity as fast as messages can be sent.
            progress: called with the recorded seconds played.
            stop: asked before every message; True ends the run.
            ticked: called with each time (ns) that /clock has shown; may take its time where
                nothing is due.
        """
        if not rate > 0:
            raise OptionError("replay rate", expected="> 0", got=rate)
        tick_ns = int(1e9 / CLOCK_HZ)
        late_ms: list[float] = []
        first_ns: int | None = None
        next_tick_ns = 0
        start = time.monotonic()
        for message in _read_ahead(sound_messages(self._bag, self.routes, self.malformed)):
            if stop():
                break
            if first_ns is None:
                first_ns = next_tick_ns = message.time_ns
                start = time.monotonic()
            while next_tick_ns <= message.time_ns:
                _sleep_until(start + (next_tick_ns - first_ns) / 1e9 / rate)
                self.tick(next_tick_ns)
                ticked(next_tick_ns)
                next_tick_ns += tick_ns
            due = start + (message.time_ns - first_ns) / 1e9 / rate
            _sleep_until(due)
            self.publish(message)
            if math.isinf(rate):
                time.sleep(_BREATH_S)
            else:
                late_ms.append((time.monotonic() - due) * 1e3)
            if progress is not None:
                progress((message.time_ns - first_ns) / 1e9)
        seconds = time.monotonic() - start
        return PlayRecord(dict(self.sent), seconds, late_ms, dict(self.malformed))


def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


def _read_ahead(messages: Iterator[Message]) -> Iterator[Message]:
    """The same messages, read by a thread that keeps a bounded number ready."""
    ready: queue.Queue[Message | Exception | None] = queue.Queue(_AHEAD)
    done = threading.Event()

    def offer(item: Message | Exception | None) -> bool:
        while not done.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for message in messages:
                if not offer(message):
                    return
            offer(None)
        except Exception as error:  # handed to the consumer, who raises it
            offer(error)

    thread = threading.Thread(target=read, name="bag-reader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        done.set()
        thread.join()
