"""What a run leaves behind, as plain data: chunks, timings of decisions, the player's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.stamps import to_ns

PARTS = ("ingest", "context", "action", "publish")


@dataclass(frozen=True)
class ChunkRecord:
    """A received action chunk; stamps in ns on the node's clock, ``received_ns`` monotonic.

    ``actions`` is [horizon, action_dim] float32 in robot units.
    """

    session: str
    sequence: int
    stamp_ns: int
    oldest_ns: int  # stamp of the oldest input used
    first_action_ns: int
    dt_ns: int
    age_ms: float
    received_ns: int
    names: tuple[str, ...]
    policy: str
    fingerprint: str
    actions: NDArray[np.float32]

    @property
    def end_ns(self) -> int:
        """When its last row is over."""
        return self.first_action_ns + len(self.actions) * self.dt_ns

    @property
    def newest_age_ms(self) -> float:
        """Age of the newest input when the chunk was made; ``age_ms`` is that of the oldest."""
        return self.age_ms - (self.stamp_ns - self.oldest_ns) / 1e6

    @classmethod
    def of(cls, message: Any, received_ns: int = 0) -> Self:
        """From a ``flashrt_ros/ActionChunk`` message."""
        data = np.asarray(message.data, np.float32)
        return cls(
            session=message.session,
            sequence=int(message.sequence),
            stamp_ns=to_ns(message.header.stamp),
            oldest_ns=to_ns(message.generated) - to_ns(message.observation_age),
            first_action_ns=to_ns(message.first_action_stamp),
            dt_ns=to_ns(message.dt),
            age_ms=to_ns(message.observation_age) / 1e6,
            received_ns=received_ns,
            names=tuple(message.action_names),
            policy=message.policy,
            fingerprint=message.fingerprint,
            actions=data.reshape(message.horizon, message.action_dim),
        )


@dataclass(frozen=True)
class TimingRecord:
    """Where the time of one decision went, in ms; ``received_ns`` is monotonic."""

    session: str
    sequence: int
    stamp_ns: int
    parts_ms: Mapping[str, float]
    total_ms: float
    age_ms: float
    received_ns: int

    @classmethod
    def of(cls, message: Any, received_ns: int = 0) -> Self:
        """From a ``flashrt_ros/DecisionTiming`` message."""
        return cls(
            session=message.session,
            sequence=int(message.sequence),
            stamp_ns=to_ns(message.header.stamp),
            parts_ms={part: float(getattr(message, f"{part}_ms")) for part in PARTS},
            total_ms=float(message.total_ms),
            age_ms=float(message.observation_age_ms),
            received_ns=received_ns,
        )


@dataclass(frozen=True)
class PlayRecord:
    """What the player did: messages sent an input, wall seconds, how late each was in ms,
    and messages of each input that were left out because nobody could read them."""

    sent: Mapping[str, int]
    seconds: float
    late_ms: Sequence[float] = ()
    malformed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """Everything a report is made from."""

    bag: str
    parameters: str
    mode: str  # "timed" or "step"
    rate: float  # times the recorded timing; infinite: as fast as the node follows; 0 in steps
    recorded_seconds: float
    chunks: Sequence[ChunkRecord]
    timings: Sequence[TimingRecord]
    play: PlayRecord
    diagnostics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
