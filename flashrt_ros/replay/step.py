"""Step mode: at every decision time publish the newest message of each input, then ask.

Nothing depends on how fast anything runs, so that a seed and a bag give the same chunks every time.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_core.load import MAIN
from flashrt_ros.srv import Decide

from .bag import Bag, Message, Route
from .client import NodeCallError, PolicyClient
from .messages import sound_messages
from .player import Player
from .records import ChunkRecord

# A lost or an early message is offered again this often before the step fails.
_ATTEMPTS = 8
_WAIT_S = 0.5
_LATE, _STALE = Decide.Response.TIMEOUT, Decide.Response.STALE_INPUT
_UNDER_WAY = Decide.Response.WRONG_STATE  # a chunk is, as the node is active


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

    def walk(
        self,
        messages: Iterable[Message],
        limit: int | None = None,
        progress: Callable[[int, Step], None] | None = None,
    ) -> list[ChunkRecord]:
        """As :meth:`run`, for a policy that looks back: it decides where each chunk ends, and every
        message until then reaches the node by itself, in the order of the bag.
        """
        names = {route.topic: route.input.name for route in self._player.routes}
        newest: dict[str, Message] = {}
        chunks: list[ChunkRecord] = []
        due_ns: int | None = None

        def due() -> bool:
            return due_ns is not None and (limit is None or len(chunks) < limit)

        def decide() -> int:
            step = Step(due_ns or 0, _pairs(names, newest))
            chunks.append(self.decide(step))
            if progress is not None:
                progress(len(chunks), step)
            return chunks[-1].end_ns

        for message in messages:
            while due() and message.time_ns > (due_ns or 0):
                due_ns = decide()
            if limit is not None and len(chunks) >= limit:
                return chunks
            newest[message.topic] = message
            if due_ns is None and len(newest) == len(names):
                due_ns = message.time_ns
            elif chunks and message.time_ns < (due_ns or 0):
                self._offer(names[message.topic], message)
        last_ns = max((message.time_ns for message in newest.values()), default=0)
        if due() and last_ns >= (due_ns or 0):
            decide()
        return chunks

    def _offer(self, name: str, message: Message) -> None:
        """Give the node a message in mid-chunk, and have it look at it before the next one.

        Asked to decide, it answers that the chunk is under way as soon as it has that message.
        """
        response = None
        for _ in range(_ATTEMPTS):
            self._player.tick(message.time_ns)
            time.sleep(0.001)
            self._player.tick(message.time_ns)
            self._player.publish(message)
            self._offered[name] = message
            limit = time.monotonic() + _WAIT_S
            while time.monotonic() < limit:
                response = self._client.decide([(name, message.stamp_ns)], timeout_s=0.0)
                if response.error_code == _UNDER_WAY:
                    return
                if response.error_code not in (_LATE, _STALE):
                    raise _refused(f"message at {message.time_ns / 1e9:.3f} s of the bag", response)
                time.sleep(0.001)
            if response is not None and response.error_code == _STALE:
                return  # it is there, another input is not: there is nothing to look at
        raise _refused(f"message at {message.time_ns / 1e9:.3f} s of the bag", response)

    def decide(self, step: Step, session: str = MAIN) -> ChunkRecord:
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
            response = self._client.decide(step.stamps(), timeout_s=_WAIT_S, session=session)
            if response.error_code == Decide.Response.NONE:
                return self._checked(step, ChunkRecord.of(response.chunk))
            if response.error_code not in (_LATE, _STALE, _UNDER_WAY):
                break
        raise _refused(f"decision at {step.time_ns / 1e9:.3f} s of the bag", response)

    def act(self, session: str) -> ChunkRecord:
        """A chunk from a session's retained context; NodeCallError when the node refuses."""
        response = self._client.decide(reuse_context=True, session=session)
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
