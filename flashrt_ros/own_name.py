"""A node's name, which no other node may have: both would answer its services.

Nodes of one name tell each other who they are, on a latched topic: so a message can say which
process is meant, and of two that start by themselves the first one goes on. The graph alone would
show that there are two, to both of them alike.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
_TELL_S = 1.0  # while somebody else has the name
_FRESH_S = 3.0  # who was not heard for so long may be gone, or load weights and hear nobody


@dataclass(frozen=True, order=True)
class Claim:
    """A process with the name; the least goes first.

    Attributes:
        waits: it is neither configured nor about to be.
        since_ns: when it started, Unix time of its host.
        host, process: which it is.
    """

    waits: bool
    since_ns: int
    host: str
    process: int

    def text(self) -> str:
        """As it is sent."""
        return f"{'waits' if self.waits else 'holds'} {self.since_ns} {self.process} {self.host}"

    @classmethod
    def of(cls, text: str) -> Claim:
        """The opposite; ValueError on what is none."""
        kind, since_ns, process, host = text.split(maxsplit=3)
        if kind not in ("waits", "holds"):
            raise ValueError(kind)
        return cls(kind == "waits", int(since_ns), host, int(process))


class OwnName:
    """Who else has the name of a node, as far as it has discovered them.

    Args:
        node: asked for its graph, from now on; its executor hears the others.
        steady_clock: paces what they are told.
    """

    def __init__(self, node: Any, steady_clock: Any) -> None:
        self._node = node
        self._born_s = time.monotonic()
        self._own = Claim(True, time.time_ns(), socket.gethostname(), os.getpid())
        self._said: Claim | None = None
        self._heard: dict[int, tuple[float, Claim]] = {}  # by the start of the process
        self._behind = 0
        self._publisher = node.create_publisher(String, TOPIC, latched_qos())
        node.create_subscription(String, TOPIC, self._on_claim, latched_qos())
        node.create_timer(_TELL_S, self._tell, clock=steady_clock)
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

    def free(self) -> bool:
        """Whether nobody else has the name, and there was time to discover one."""
        return self.others() == 0 and self.settled()

    def first(self) -> bool:
        """Whether all others wait and started later, so that they let this one go first."""
        now = time.monotonic()
        behind = [
            claim
            for heard, claim in self._heard.values()
            if now - heard < _FRESH_S and claim > self._own
        ]
        return self.settled() and len(behind) >= self.others()

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
        self._own = replace(self._own, waits=False)
        self._tell()  # now: this thread is about to load weights

    def release(self) -> None:
        """This node does not act any more, as the others will hear."""
        self._own = replace(self._own, waits=True)

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

    def _tell(self) -> None:
        if self._own != self._said or self.others():
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
