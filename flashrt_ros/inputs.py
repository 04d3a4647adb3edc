"""One input of the policy: what arrives is checked at once, kept by stamp, and chosen by age.

``offer`` runs in the subscription callback on the executor thread and only looks at header fields
and small values; ``select`` and ``convert`` run on the inference thread. Stamps, ages and clocks
are nanoseconds of the node's clock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashrt_core import images
from flashrt_core.errors import ImageError, shorten
from flashrt_ros.parameters import CameraConfig
from flashrt_ros.stamps import SECOND, in_seconds, to_ns

# A sample may be stamped this much after "now": under simulated time a message can overtake its
# clock tick, and clocks of two machines differ a little.
AHEAD_NS = 50_000_000
# Samples kept of each input: where the newest turns out not to decode, the one before serves.
KEPT = 3


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One accepted message: its stamp, when it came, and its checked content."""

    stamp_ns: int
    received_ns: int
    value: Any


@dataclass(frozen=True)
class Refusal:
    """Why a message was not taken: a short reason to count by, and one line that explains it."""

    reason: str
    text: str


@dataclass
class InputCounters:
    """Totals since configure. ``overwritten``: accepted, but a newer one came before any use."""

    received: int = 0
    accepted: int = 0
    used: int = 0
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
    """

    def __init__(self, name: str, topic: str, max_age_s: float) -> None:
        self.name = name
        self.topic = topic
        self.max_age_ns = round(max_age_s * SECOND)
        self.counters = InputCounters()
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._newest_used = True
        self._refused = False  # a message, and none was accepted since

    def offer(self, message: Any, now_ns: int) -> Refusal | None:
        """Take a message, or say why not. Never raises for what a message holds."""
        try:
            value = self._accept(message)
            with self._lock:
                self._insert(to_ns(message.header.stamp), now_ns, value)
        except RefusedError as error:
            return self.refuse(error.refusal)
        return None

    def refuse(self, refusal: Refusal) -> Refusal:
        """Count a message that came and was not taken; returns ``refusal``."""
        with self._lock:
            self.counters.received += 1
            self._count(refusal)
        return refusal

    def select(self, now_ns: int, not_before_ns: int = 0) -> Sample | None:
        """The newest sample that a decision at ``now_ns`` may use, stamped at least so."""
        with self._lock:
            for sample in reversed(self._samples):
                age = now_ns - sample.stamp_ns
                if -AHEAD_NS <= age <= self.max_age_ns and sample.stamp_ns >= not_before_ns:
                    return sample
        return None

    def mark_used(self, sample: Sample) -> None:
        """Count a sample as used by a decision."""
        with self._lock:
            self.counters.used += 1
            self._newest_used |= bool(self._samples) and self._samples[-1] is sample

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
            self._samples.clear()
            self._newest_used = True

    @abstractmethod
    def convert(self, sample: Sample) -> np.ndarray | images.Frame:
        """What a policy takes; RefusedError where the content cannot be read after all."""

    @abstractmethod
    def _accept(self, message: Any) -> Any:
        """Check a message and return what to keep of it; RefusedError otherwise."""

    def _count(self, refusal: Refusal) -> None:
        self.counters.refuse(refusal)
        self._refused = True

    def _insert(self, stamp_ns: int, now_ns: int, value: Any) -> None:
        unstamped = stamp_ns == 0
        stamp_ns = now_ns if unstamped else stamp_ns
        if self._samples and stamp_ns < self._samples[-1].stamp_ns:
            newest = self._samples[-1].stamp_ns
            if newest <= now_ns + AHEAD_NS:
                raise RefusedError(
                    "stamp backwards",
                    f"stamp is {in_seconds(newest - stamp_ns)} before that of the last message",
                )
            self._samples.clear()
            self._newest_used = True
        self.counters.received += 1
        self.counters.accepted += 1
        self.counters.unstamped += unstamped
        self.counters.ahead += stamp_ns > now_ns + AHEAD_NS
        self.counters.overwritten += not self._newest_used
        self._newest_used = False
        self._refused = False
        self._samples.append(Sample(stamp_ns, now_ns, value))


class CameraInput(Input):
    """Images of one camera, raw or compressed; converts to [H, W, 3] uint8 RGB.

    Args:
        config: the camera.
        raw: hand raw images on as they came instead of converting them.
    """

    def __init__(self, config: CameraConfig, *, raw: bool = False) -> None:
        super().__init__(config.key, config.topic, config.max_age_s)
        self.config = config
        self._raw = raw

    def convert(self, sample: Sample) -> np.ndarray | images.Frame:
        config = self.config
        take: Callable[..., np.ndarray | images.Frame] = images.to_rgb
        if config.compressed:
            take = images.decode_rgb
        elif self._raw:
            take = images.frame_of
        try:
            return take(sample.value, config.encoding, config.rotation_deg)
        except ImageError as error:
            raise RefusedError("decode", str(error)) from error

    def _accept(self, message: Any) -> Any:
        required = self.config.encoding
        reason = "decode" if self.config.compressed else "encoding"
        try:
            if self.config.compressed:
                images.check_compressed(message, required)
            else:
                images.resolve_encoding(message.encoding, required)
                reason = "size"
                images.check_image(message, required)
        except ImageError as error:
            raise RefusedError(reason, str(error)) from error
        return message


class JointsInput(Input):
    """Joint positions by name; converts to [joints] float32 in the configured order.

    Further joints in a message are ignored. Positions are checked, velocities and efforts are not
    looked at.
    """

    def __init__(self, name: str, topic: str, names: Sequence[str], max_age_s: float) -> None:
        super().__init__(name, topic, max_age_s)
        self.names = tuple(names)
        self._orders: dict[tuple[str, ...], list[int]] = {}

    def convert(self, sample: Sample) -> np.ndarray:
        values: np.ndarray = sample.value
        return values

    def _accept(self, message: Any) -> Any:
        came = tuple(message.name)
        order = self._orders.get(came)
        if order is None:
            order = self._order(came)
            # A robot sends one or two layouts; anything else must not grow without bound.
            if len(self._orders) < 16:
                self._orders[came] = order
        positions = message.position
        if len(positions) != len(came):
            raise RefusedError(
                "size", f"expected {len(came)} positions, one a name, got {len(positions)}"
            )
        with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and is refused below
            values = np.array([positions[i] for i in order], np.float32)
        if not np.isfinite(values).all():
            bad = [n for n, v in zip(self.names, values, strict=True) if not np.isfinite(v)]
            raise RefusedError("not finite", f"position of {_names(bad)} is NaN or infinite")
        return values

    def _order(self, came: tuple[str, ...]) -> list[int]:
        missing = [name for name in self.names if name not in came]
        if missing:
            raise RefusedError(
                "joint names", f"joints {_names(missing)} are missing; got {_names(came)}"
            )
        repeated = sorted({name for name in self.names if came.count(name) > 1})
        if repeated:
            raise RefusedError("joint names", f"joints {_names(repeated)} appear twice")
        return [came.index(name) for name in self.names]


def _names(names: Sequence[str]) -> str:
    return shorten(", ".join(names))
