"""All inputs of the node together: subscriptions' messages in, one observation out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from flashrt_core.policies.base import Observation
from flashrt_ros.errors import StaleInputError
from flashrt_ros.inputs import CameraInput, Input, JointsInput, Refusal, RefusedError, Sample
from flashrt_ros.parameters import JOINTS, NodeConfig
from flashrt_ros.stamps import SECOND

# Ages of this size on every input mean two different clocks, not slow sensors.
FOREIGN_CLOCK_NS = 60 * SECOND
NOTHING: Mapping[str, int] = MappingProxyType({})
T = TypeVar("T")


@dataclass(frozen=True)
class Gathered:
    """An observation, and the stamp of its oldest part (its own stamp is that of the newest)."""

    observation: Observation
    oldest_stamp_ns: int


class Ingest:
    """Holds the inputs and assembles observations from them.

    Args:
        config: cameras and joints.
        on_refusal: told of every refused message, from the thread that found it.
    """

    def __init__(self, config: NodeConfig, on_refusal: Callable[[Input, Refusal], None]) -> None:
        raw = config.camera_bytes > 0
        self.cameras = tuple(CameraInput(camera, raw=raw) for camera in config.cameras)
        self.joints = (
            JointsInput(JOINTS, config.joints_topic, config.joints_names, config.joints_max_age_s)
            if config.joints_names
            else None
        )
        self._on_refusal = on_refusal
        self.inputs: Mapping[str, Input] = {item.name: item for item in self._all()}

    def offer(self, target: Input, message: Any, now_ns: int) -> bool:
        """Give a message to its input; whether it was taken."""
        refusal = target.offer(message, now_ns)
        if refusal is not None:
            self._on_refusal(target, refusal)
        return refusal is None

    def refuse(self, target: Input, refusal: Refusal) -> None:
        """Count a message that could not even be read."""
        self._on_refusal(target, target.refuse(refusal))

    def gather(self, now_ns: int, not_before: Mapping[str, int] = NOTHING) -> Gathered:
        """The newest usable sample of every input, converted.

        Args:
            now_ns: the time that ages count from.
            not_before: input name -> the least stamp (ns) that will do.

        Raises:
            StaleInputError: some input has none. All are looked at before any is converted.
        """
        if stale := self.unusable(now_ns, not_before):
            raise self.stale_error(stale, now_ns)
        stamps: list[int] = []

        def take(item: Input, convert: Callable[[Sample], T]) -> T:
            while (sample := item.select(now_ns, not_before.get(item.name, 0))) is not None:
                try:
                    value = convert(sample)
                except RefusedError as error:
                    item.discard(sample, error.refusal)
                    self._on_refusal(item, error.refusal)
                    continue
                item.mark_used(sample)
                stamps.append(sample.stamp_ns)
                return value
            raise self.stale_error([item], now_ns)

        views = {camera.config.slot: take(camera, camera.convert) for camera in self.cameras}
        state = take(self.joints, self.joints.convert) if self.joints else None
        return Gathered(Observation(views, state, max(stamps)), min(stamps))

    def unusable(self, now_ns: int, not_before: Mapping[str, int] = NOTHING) -> list[Input]:
        """Inputs without a sample that a decision at ``now_ns`` may use."""
        return [
            item
            for name, item in self.inputs.items()
            if item.select(now_ns, not_before.get(name, 0)) is None
        ]

    def stale_error(self, stale: list[Input], now_ns: int) -> StaleInputError:
        """The error that explains ``stale`` inputs."""
        error = StaleInputError("; ".join(item.explain(now_ns) for item in stale))
        error.inputs = tuple(item.name for item in stale)
        return error

    def on_foreign_clock(self, now_ns: int) -> bool:
        """Whether every input has data, all of it a minute or more away from the node's clock."""
        stamps = [item.newest_stamp_ns() for item in self.inputs.values()]
        return all(s is not None and abs(now_ns - s) > FOREIGN_CLOCK_NS for s in stamps)

    def forget(self) -> None:
        """Drop every sample; after a jump of the clock."""
        for item in self.inputs.values():
            item.forget()

    def _all(self) -> Iterator[Input]:
        yield from self.cameras
        if self.joints:
            yield self.joints
