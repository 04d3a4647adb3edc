"""A node's name, which no other node may have: both would answer its services.

Nodes of one name tell each other who they are, on a latched topic: so a message can say which
process is meant, of two that start by themselves the first one goes on, and of two that discover
each other when both are active the one that was active earlier stays so. The graph alone would
show that there are two, to both of them alike.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from std_msgs.msg import String

from flashrt_core.errors import OptionError
from flashrt_ros.prompt_topic import latched_qos

TOPIC = "~/name_claim"
REMEDY = (
    "stop the other node, or start this one with --ros-args -r __node:=NAME or -r __ns:=/NAMESPACE"
)
# Another node of this name shows up in the graph within this time (measured: services in 0.25 s).
_DISCOVERY_S = 1.0
# Every participant of DDS announces itself anew every 3 s. One whose first announcements were lost,
# as beside the remains of a process that was killed a moment ago, shows up only then.
_ANNOUNCED_S = 4.0
_TELL_S = 1.0  # while somebody else has the name
_FRESH_S = 3.0  # who was not heard for so long may be gone, or load weights and hear nobody


class Use(IntEnum):
    """What a process does under the name: it is active; configured or about to be; neither."""

    ACTS = 0
    HOLDS = 1
    WAITS = 2


@dataclass(frozen=True, order=True)
class Claim:
    """A process with the name; the least goes first.

    Attributes:
        use: of the name.
        acts_ns: since when it is active, Unix time of its host; 0 while it is not.
        since_ns: when it started, likewise.
        host, process: which it is.
    """

    use: Use
    acts_ns: int
    since_ns: int
    host: str
    process: int

    def text(self) -> str:
        """As it is sent."""
        times = f"{self.acts_ns} {self.since_ns}"
        return f"{self.use.name.lower()} {times} {self.process} {self.host}"

    @classmethod
    def of(cls, text: str) -> Claim:
        """The opposite; ValueError on what is none."""
        use, acts_ns, since_ns, process, host = text.split(maxsplit=4)
        named = {each.name.lower(): each for each in Use}
        if use not in named:
            raise ValueError(use)
        return cls(named[use], int(acts_ns), int(since_ns), host, int(process))


class OwnName:
    """Who else has the name of a node, as far as it has discovered them.

    Args:
        node: asked for its graph, from now on; its executor hears the others.
        steady_clock: paces what they are told.
        give_way: called on the executor's thread when this node is active, and so is another one
            that was so earlier; with a line that says it. It deactivates the node.
    """

    def __init__(self, node: Any, steady_clock: Any, give_way: Callable[[str], None]) -> None:
        self._node = node
        self._give_way = give_way
        self._born_s = time.monotonic()
        self._own = Claim(Use.WAITS, 0, time.time_ns(), socket.gethostname(), os.getpid())
        self._said: Claim | None = None
        self._heard: dict[int, tuple[float, Claim]] = {}  # by the start of the process
        self._behind = 0
        self._publisher = node.create_publisher(String, TOPIC, latched_qos())
        node.create_subscription(String, TOPIC, self._on_claim, latched_qos())
        node.create_timer(_TELL_S, self._look, clock=steady_clock)
        self._tell()

    def others(self) -> int:
        """How many other nodes of the same full name the graph shows."""
        name = self._node.get_fully_qualified_name()
        return max(0, self._node.count_services(f"{name}/get_state") - 1)

    def who(self) -> str:
        """Those of them that told who they are, for people; empty where none has."""
        heard = sorted(self._heard.values(), reverse=True)[: self.others()]
        known = sorted(claim for _, claim in heard)
        return " and ".join(f"process {each.process} on host '{each.host}'" for each in known)

    def settled(self) -> bool:
        """Whether there was time to discover another node."""
        return time.monotonic() - self._born_s >= _DISCOVERY_S

    def announced(self) -> bool:
        """Whether there was time to discover one also where that is slow."""
        return time.monotonic() - self._born_s >= _ANNOUNCED_S

    def free(self) -> bool:
        """Whether nobody else has the name, and there was time to discover one."""
        return self.others() == 0 and self.settled()

    def first(self, since_s: float = 0.0) -> bool:
        """Whether all others let this one go first: they do less, or as much and started later.

        Args:
            since_s: on the monotonic clock; what they said before does not count.
        """
        behind = [claim for claim in self._fresh(since_s) if claim > self._own]
        return self.settled() and len(behind) >= self.others()

    def later(self, since_s: float) -> bool:
        """Whether another one goes first, as it said since then."""
        return self.others() > 0 and any(each < self._own for each in self._fresh(since_s))

    def _fresh(self, since_s: float) -> list[Claim]:
        since_s = max(since_s, time.monotonic() - _FRESH_S)
        return [claim for heard, claim in self._heard.values() if heard > since_s]

    @contextmanager
    def going_first(self) -> Iterator[None]:
        """Meanwhile the others that there are now are no reason to refuse."""
        self._behind = self.others()
        try:
            yield
        finally:
            self._behind = 0

    def require(self) -> None:
        """Wait for the discovery, and have the name; OptionError while somebody else has it."""
        while self.others() == 0 and not self.free():
            time.sleep(0.05)
        self.refuse_others()
        self.tell(Use.HOLDS)  # now: this thread is about to load weights

    def release(self) -> None:
        """This node does not act any more, as the others will hear."""
        self._own = replace(self._own, use=Use.WAITS, acts_ns=0)

    def tell(self, use: Use) -> None:
        """This node uses the name in that way from now on."""
        acts_ns = time.time_ns() if use is Use.ACTS else 0
        self._own = replace(self._own, use=use, acts_ns=acts_ns)
        self._tell()

    def refuse_others(self) -> None:
        """OptionError while somebody else has the name."""
        if (others := self.others()) <= self._behind:
            return
        who = self.who()
        raise OptionError(
            f"node name '{self._node.get_fully_qualified_name()}'",
            expected="one node of that name",
            got=f"{others + 1}" + (f", also {who}" if who else ""),
            remedy=f"{REMEDY} (the name of a killed process is free again after some 20 s)",
        )

    def _look(self) -> None:
        self._tell()
        self._compare()

    def _compare(self) -> None:
        """Give way where another one that is active, too, was so earlier.

        Only beside one that the graph shows: a claim may come out of a recording.
        """
        if self._own.use is not Use.ACTS or self.others() == 0:
            return
        first = min((each for each in self._fresh(0.0) if each < self._own), default=None)
        if first is None:
            return
        name = self._node.get_fully_qualified_name()
        self._give_way(
            f"node name '{name}': expected one active node of that name, got 2, also"
            f" process {first.process} on host '{first.host}', active earlier; {REMEDY}"
        )

    def _tell(self) -> None:
        # One that is heard may be in the graph soon, and wants to hear this one again.
        if self._own != self._said or self.others() or self._fresh(0.0):
            self._publisher.publish(String(data=self._own.text()))
            self._said = self._own
        elif self._heard:
            self._heard.clear()

    def _on_claim(self, message: Any) -> None:
        try:
            claim = Claim.of(message.data)
        except ValueError:  # of another program, or another version: nobody that is known
            return
        if (claim.host, claim.process, claim.since_ns) != (
            self._own.host,
            self._own.process,
            self._own.since_ns,
        ):
            self._heard[claim.since_ns] = time.monotonic(), claim
            self._compare()  # now: both may command one robot
