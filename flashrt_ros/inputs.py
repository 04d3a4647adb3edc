"""One input of the policy: what arrives is checked at once, kept by stamp, and chosen by age.

What the cameras and the joints add is in sensors.py.

``offer`` runs in the subscription callback on the executor thread and only looks at header fields
and small values; ``candidates`` and ``convert`` run on the inference thread. Compressed pictures
are decoded in between, on a thread of their own (decoding.py). Stamps, ages and clocks are
nanoseconds of the node's clock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashrt_core import images
from flashrt_ros.parameters import STOP, WAIT
from flashrt_ros.stamps import SECOND, in_seconds, to_ns

# A sample may be stamped this much after "now": under simulated time a message can overtake its
# clock tick, and clocks of two machines differ a little.
AHEAD_NS = 50_000_000
# Images kept of each camera: where the newest cannot be used, or is too far from those of the other
# cameras, one before serves.
KEPT = 3


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One accepted message: its stamp, when it came, its checked content.

    ``era`` counts the times that the input's history started anew before it came.
    """

    stamp_ns: int
    received_ns: int
    value: Any
    era: int = 0


@dataclass(frozen=True)
class Refusal:
    """Why a message was not taken: a short reason to count by, and one line that explains it."""

    reason: str
    text: str


@dataclass
class InputCounters:
    """Totals since configure. ``overwritten``: accepted, but a newer one came before any use;
    ``masked``: decisions that went on without this input; ``oldest_used_ns``: the greatest age at
    which a decision took a sample."""

    received: int = 0
    accepted: int = 0
    used: int = 0
    oldest_used_ns: int = 0
    masked: int = 0
    overwritten: int = 0
    unstamped: int = 0
    ahead: int = 0  # accepted, but stamped so far after "now" that no decision may use it yet
    lost: int = 0  # by the middleware, on the way here
    incompatible: int = 0  # publishers whose QoS or type does not fit the subscription
    refused: Counter[str] = field(default_factory=Counter)
    last_refusal: str = ""

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal and remember its words."""
        self.refused[refusal.reason] += 1
        self.last_refusal = f"{refusal.reason}: {refusal.text}"


class RefusedError(Exception):
    """Raised inside an input to refuse a message."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(reason, text)


class Input(ABC):
    """Samples of one topic.

    A message without a stamp (zero) gets the time it came, and is counted as ``unstamped``: its
    true age is unknown. A stamp older than the newest accepted one is refused, unless that one lies
    in the future of the node's clock: then the clock went back (a bag that loops, a corrected
    clock), and history starts anew.

    Args:
        name, topic: what it is called, and where it comes from.
        max_age_s: oldest sample that a decision may use.
        on_missing: what to do while there is none, a choice of the parameter of that name.
        kept: samples to keep.
    """

    def __init__(
        self, name: str, topic: str, max_age_s: float, on_missing: str = WAIT, kept: int = KEPT
    ) -> None:
        self.name = name
        self.topic = topic
        self.max_age_ns = round(max_age_s * SECOND)
        self.on_missing = on_missing
        self.counters = InputCounters()
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=kept)
        self._newest_ns: int | None = None  # stamp of the last accepted message, kept yet or not
        self._era = 0
        self._newest_used = True
        self._refused = False  # a message, and none was accepted since

    def offer(self, message: Any, now_ns: int) -> Refusal | None:
        """Take a message, or say why not. Never raises for what a message holds."""
        try:
            value = self._accept(message)
            with self._lock:
                sample = self._admit(to_ns(message.header.stamp), now_ns, value)
        except RefusedError as error:
            return self.refuse(error.refusal)
        return self._take(sample)

    def refuse(self, refusal: Refusal) -> Refusal:
        """Count a message that came and was not taken; returns ``refusal``."""
        with self._lock:
            self.counters.received += 1
            self._count(refusal)
        return refusal

    def candidates(self, now_ns: int, not_before_ns: int = 0) -> list[Sample]:
        """Samples that a decision at ``now_ns`` may use, stamped at least so; oldest first."""
        with self._lock:
            return [
                sample
                for sample in self._samples
                if self.usable(sample.stamp_ns, now_ns) and sample.stamp_ns >= not_before_ns
            ]

    def usable(self, stamp_ns: int, now_ns: int) -> bool:
        """Whether a sample of that stamp has an age that a decision at ``now_ns`` may use."""
        return -AHEAD_NS <= now_ns - stamp_ns <= self.max_age_ns

    def select(self, now_ns: int, not_before_ns: int = 0) -> Sample | None:
        """The newest of the candidates."""
        found = self.candidates(now_ns, not_before_ns)
        return found[-1] if found else None

    @property
    def stops(self) -> bool:
        """Whether nothing is decided, or asked for, while this input is missing."""
        return self.on_missing == STOP

    def mark_used(self, sample: Sample, now_ns: int) -> None:
        """Count a sample as used by a decision at ``now_ns``."""
        with self._lock:
            self.counters.used += 1
            age_ns = now_ns - sample.stamp_ns
            self.counters.oldest_used_ns = max(self.counters.oldest_used_ns, age_ns)
            self._newest_used |= sample.stamp_ns == self._newest_ns

    def mark_masked(self) -> None:
        """Count a decision that was made without this input."""
        with self._lock:
            self.counters.masked += 1

    def discard(self, sample: Sample, refusal: Refusal) -> None:
        """Refuse an accepted sample afterwards: its content turned out to be unusable."""
        with self._lock:
            self.counters.accepted -= 1
            self._count(refusal)
            if sample in self._samples:
                self._samples.remove(sample)

    def newest_stamp_ns(self) -> int | None:
        """Stamp of the newest accepted sample."""
        with self._lock:
            return self._samples[-1].stamp_ns if self._samples else None

    def explain(self, now_ns: int) -> str:
        """Why ``select`` finds nothing, in words."""
        stamp = self.newest_stamp_ns()
        what, refused = f"input '{self.name}' ({self.topic})", self.last_refused()
        refused = f" ({refused})" if refused else ""
        if stamp is None:
            return f"{what} has received nothing usable{refused}"
        age = now_ns - stamp
        state = (
            f"is {in_seconds(age)} old, allowed {in_seconds(self.max_age_ns)}"
            if age > 0
            else f"is stamped {in_seconds(-age)} ahead of the node's clock"
        )
        return f"{what} {state}{refused}"

    def refusals(self) -> int:
        """How many messages were refused."""
        with self._lock:
            return self.counters.refused.total()

    def last_refused(self, before: int | None = None) -> str:
        """The last refusal in words, where it says why there is no sample; else "".

        It does when no message was accepted since, or when it came after ``before`` refusals.
        """
        with self._lock:
            later = before is not None and self.counters.refused.total() > before
            return f"last refused: {self.counters.last_refusal}" if self._refused or later else ""

    def forget(self) -> None:
        """Drop all samples: the clock they were stamped by no longer holds."""
        with self._lock:
            self._start_anew()

    @abstractmethod
    def convert(self, sample: Sample) -> np.ndarray | images.Frame:
        """What a policy takes; RefusedError where the content cannot be read after all."""

    @abstractmethod
    def _accept(self, message: Any) -> Any:
        """Check a message and return what to keep of it; RefusedError otherwise."""

    def _count(self, refusal: Refusal) -> None:
        self.counters.refuse(refusal)
        self._refused = True

    def _take(self, sample: Sample) -> Refusal | None:
        """Keep an accepted sample, now or later."""
        self._keep(sample)
        return None

    def _keep(self, sample: Sample) -> None:
        with self._lock:
            if sample.era == self._era:
                self._samples.append(sample)

    def _start_anew(self) -> None:
        self._samples.clear()
        self._newest_ns = None
        self._newest_used = True
        self._era += 1

    def _admit(self, stamp_ns: int, now_ns: int, value: Any) -> Sample:
        """Check the order of stamps and count; the sample that a message becomes."""
        unstamped = stamp_ns == 0
        stamp_ns = now_ns if unstamped else stamp_ns
        newest = self._newest_ns
        if newest is not None and stamp_ns < newest:
            if newest <= now_ns + AHEAD_NS:
                raise RefusedError(
                    "stamp backwards",
                    f"stamp is {in_seconds(newest - stamp_ns)} before that of the last message",
                )
            self._start_anew()
        self.counters.received += 1
        self.counters.accepted += 1
        self.counters.unstamped += unstamped
        self.counters.ahead += stamp_ns > now_ns + AHEAD_NS
        self.counters.overwritten += not self._newest_used
        self._newest_used = False
        self._newest_ns = stamp_ns
        self._refused = False
        return Sample(stamp_ns, now_ns, value, self._era)
