"""Step mode: at every decision time publish the newest message of each input, then ask.

Nothing depends on how fast anything runs, so that a seed and a bag give the same chunks every time.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_ros.srv import Decide

from .bag import Bag, Message, Route
from .client import NodeCallError, PolicyClient
from .messages import sound_messages
from .player import Player
from .records import ChunkRecord

# A lost or an early message is offered again this often before the step fails.
_ATTEMPTS = 8
_WAIT_S = 0.5


@dataclass(frozen=True)
class Step:
    """A decision to make: its time (ns, of the bag) and the newest message of each input."""

    time_ns: int
    messages: tuple[tuple[str, Message], ...]  # input name, message

    def stamps(self) -> list[tuple[str, int]]:
        """(input name, stamp in ns) of what the decision must use."""
        return [(name, message.stamp_ns) for name, message in self.messages]


def steps(
    bag: Bag, routes: Sequence[Route], rate_hz: float, malformed: Counter[str] | None = None
) -> Iterator[Step]:
    """The decisions that ``rate_hz`` gives, from the first moment at which every input is there.

    Messages that cannot be read are left out, and counted in ``malformed`` by input name.
    """
    names = {route.topic: route.input.name for route in routes}
    newest: dict[str, Message] = {}
    period_ns = int(1e9 / rate_hz)
    due_ns: int | None = None
    for message in sound_messages(bag, routes, malformed):
        while due_ns is not None and message.time_ns > due_ns:
            yield Step(due_ns, _pairs(names, newest))
            due_ns += period_ns
        newest[message.topic] = message
        if due_ns is None and len(newest) == len(names):
            due_ns = message.time_ns
    if due_ns is not None:
        yield Step(due_ns, _pairs(names, newest))


def _pairs(names: dict[str, str], newest: dict[str, Message]) -> tuple[tuple[str, Message], ...]:
    return tuple((name, newest[topic]) for topic, name in names.items())


class Stepper:
    """Makes the decisions of ``steps`` one by one."""

    def __init__(self, client: PolicyClient, player: Player) -> None:
        self._client = client
        self._player = player
        self._offered: dict[str, Message] = {}

    def run(
        self,
        sequence: Iterator[Step],
        limit: int | None = None,
        progress: Callable[[int, Step], None] | None = None,
    ) -> list[ChunkRecord]:
        """Decide on the steps in order, at most ``limit`` of them; the chunks.

        Raises:
            NodeCallError: the node refuses, or a message is lost again and again.
        """
        chunks = []
        for index, step in enumerate(itertools.islice(sequence, limit)):
            chunks.append(self.decide(step))
            if progress is not None:
                progress(index + 1, step)
        return chunks

    def decide(self, step: Step) -> ChunkRecord:
        """The chunk of one step; NodeCallError when the node does not give it."""
        response = None
        for attempt in range(_ATTEMPTS):
            # Twice: a tick may be lost, and messages that overtake it look as if from the future.
            self._player.tick(step.time_ns)
            time.sleep(0.001)
            self._player.tick(step.time_ns)
            for name, message in step.messages:
                # What the node has already it need not get again, unless it may have been lost.
                if attempt or self._offered.get(name) is not message:
                    self._player.publish(message)
                    self._offered[name] = message
            response = self._client.decide(step.stamps(), timeout_s=_WAIT_S)
            if response.error_code == Decide.Response.NONE:
                return self._checked(step, ChunkRecord.of(response.chunk))
            if response.error_code not in (Decide.Response.TIMEOUT, Decide.Response.STALE_INPUT):
                break
        raise _refused(f"decision at {step.time_ns / 1e9:.3f} s of the bag", response)

    def act(self) -> ChunkRecord:
        """A chunk from the retained context; NodeCallError when the node refuses."""
        response = self._client.decide(reuse_context=True)
        if response.error_code != Decide.Response.NONE:
            raise _refused("decision on the retained context", response)
        return ChunkRecord.of(response.chunk)

    def _checked(self, step: Step, chunk: ChunkRecord) -> ChunkRecord:
        stamps = [message.stamp_ns for _, message in step.messages]
        if (chunk.oldest_ns, chunk.stamp_ns) != (min(stamps), max(stamps)):
            # A decision on anything else would make the run depend on timing.
            raise NodeCallError(
                f"decision at {step.time_ns / 1e9:.3f} s of the bag",
                expected=f"one on messages stamped {min(stamps)} to {max(stamps)} ns",
                got=f"one on {chunk.oldest_ns} to {chunk.stamp_ns} ns",
            )
        return chunk


def _refused(what: str, response: Any) -> NodeCallError:
    got = f"error {response.error_code}: {response.error_msg}" if response else "no answer"
    return NodeCallError(what, expected="a chunk", got=got)
