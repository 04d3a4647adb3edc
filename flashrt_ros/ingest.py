"""All inputs of the node together: subscriptions' messages in, one observation out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from flashrt_core.policies.base import Observation
from flashrt_ros.alignment import consistent, newest, spread_ns
from flashrt_ros.errors import StaleInputError
from flashrt_ros.inputs import Input, Refusal, RefusedError, Sample
from flashrt_ros.parameters import HOLD, JOINTS, NodeConfig
from flashrt_ros.sensors import CameraInput, JointsInput
from flashrt_ros.stamps import SECOND, in_seconds

# Ages of this size on every input mean two different clocks, not slow sensors.
FOREIGN_CLOCK_NS = 60 * SECOND
NOTHING: Mapping[str, int] = MappingProxyType({})
UNMADE: Mapping[Sample, Any] = MappingProxyType({})

Choice = dict[str, Sample]  # input name -> the sample to use
_ASK_A_FORK = (
    "decide without reuse_context, or fork the session and ask the fork, whose chunks are returned"
    " only"
)
LOOK_ANEW = "decide without reuse_context, which waits for such a sample"


@dataclass(frozen=True)
class Gathered:
    """An observation (its own stamp is that of the newest input, and it tells those of all), the
    stamp of the oldest one, that of its newest image, and the inputs that it does without."""

    observation: Observation
    oldest_stamp_ns: int
    newest_image_ns: int
    masked: tuple[str, ...] = ()


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
            JointsInput(
                JOINTS,
                config.joints_topic,
                config.joints_names,
                config.joints_max_age_s,
                config.joints_on_missing,
            )
            if config.joints_names
            else None
        )
        self._on_refusal = on_refusal
        self._max_skew_ns = round(config.sync_max_skew_s * SECOND)
        self.inputs: Mapping[str, Input] = {item.name: item for item in self._all()}

    def start(self, decoded: Callable[[], None]) -> None:
        """Decode compressed pictures on threads of their own; ``decoded`` is called there."""
        for camera in self.cameras:
            camera.start(decoded, partial(self._on_refusal, camera))

    def stop(self, timeout_s: float) -> list[str]:
        """End those threads; the names of cameras whose thread did not end in time."""
        return [camera.name for camera in self.cameras if not camera.stop(timeout_s)]

    def offer(self, target: Input, message: Any, now_ns: int) -> bool:
        """Give a message to its input; whether it was taken."""
        refusal = target.offer(message, now_ns)
        if refusal is not None:
            self._on_refusal(target, refusal)
        return refusal is None

    def refuse(self, target: Input, refusal: Refusal) -> None:
        """Count a message that could not even be read."""
        self._on_refusal(target, target.refuse(refusal))

    def gather(
        self,
        now_ns: int,
        not_before: Mapping[str, int] = NOTHING,
        made: Mapping[Sample, Any] = UNMADE,
    ) -> Gathered:
        """The newest usable sample of every input, or a set of one moment, converted.

        Args:
            now_ns: the time that ages count from.
            not_before: input name -> the least stamp (ns) that will do.
            made: what samples were converted to already.

        Raises:
            StaleInputError: some input has none, or they are too far apart. All are looked at
                before any is converted.
        """
        values = dict(made)  # what was converted stays so when another is not readable
        while True:
            choice = self.choose(now_ns, not_before)
            if isinstance(choice, StaleInputError):
                raise choice
            if self._convert(choice, values):
                break
        masked = [item for name, item in self.inputs.items() if name not in choice]
        for item in masked:
            item.mark_masked()
        for name, sample in choice.items():
            self.inputs[name].mark_used(sample, now_ns)
        views = {c.config.slot: values[choice[c.name]] for c in self.cameras if c.name in choice}
        state = values[choice[JOINTS]] if self.joints else None
        stamps = {name: sample.stamp_ns for name, sample in choice.items()}
        newest_ns, oldest_ns = max(stamps.values()), min(stamps.values())
        image_ns = max(stamps[c.name] for c in self.cameras if c.name in choice)
        names = tuple(item.name for item in masked)
        observation = Observation(views, state, newest_ns, stamps)
        return Gathered(observation, oldest_ns, image_ns, names)

    def choose(
        self, now_ns: int, not_before: Mapping[str, int] = NOTHING
    ) -> Choice | StaleInputError:
        """The samples that a decision at ``now_ns`` would use, or why there are none.

        Cameras that may be missing are left out where they are, or where they are what keeps the
        rest from fitting together; one camera must be left.
        """
        usable: dict[str, list[Sample]] = {}
        absent: list[Input] = []
        for name, item in self.inputs.items():
            found = item.candidates(now_ns, not_before.get(name, 0))
            if found:
                usable[name] = found
            else:
                absent.append(item)
        if absent and (stale := self._needed(absent, not_before)):
            return self.stale_error(stale, now_ns)
        if not self._max_skew_ns:
            return newest(usable)
        for names in self._sets(usable, not_before):
            states = usable[JOINTS] if self.joints else None
            fitting = consistent({n: usable[n] for n in names}, states, self._max_skew_ns)
            if fitting is not None:
                chosen, state = fitting
                return chosen if state is None else {**chosen, JOINTS: state}
        return self._skew_error(newest(usable))

    def unusable(self, now_ns: int, not_before: Mapping[str, int] = NOTHING) -> list[Input]:
        """Inputs that a decision at ``now_ns`` would need and that have no sample for it.

        One that may be missing is needed if a stamp of it is asked for. Where all cameras may be
        missing, and are, they are needed.
        """
        absent = [
            item
            for name, item in self.inputs.items()
            if item.select(now_ns, not_before.get(name, 0)) is None
        ]
        return self._needed(absent, not_before)

    def stopping(self, now_ns: int, not_before: Mapping[str, int] = NOTHING) -> list[Input]:
        """Inputs that are missing and stop the node by that; not those that a stamp is asked of."""
        return [
            item
            for name, item in self.inputs.items()
            if item.stops and name not in not_before and item.select(now_ns) is None
        ]

    def require_current(self, stamps_ns: Mapping[str, int], now_ns: int) -> None:
        """Check that an observation may still be acted upon.

        Args:
            stamps_ns: input name -> the stamp of its sample.
            now_ns: the time that ages count from.

        Raises:
            StaleInputError: an input is missing that stops the node by that, or a sample is too
                old for its input by now, or nobody knows how old.
        """
        if stopping := self.stopping(now_ns):
            raise self.stale_error(stopping, now_ns)
        if unknown := self._unknown(stamps_ns):
            allowed = self.inputs[unknown[0]].max_age_ns if unknown[0] in self.inputs else None
            expected = "an input of this node" if allowed is None else _at_most(allowed)
            raise _kept_error(unknown, expected, "one of unknown age", _ASK_A_FORK)
        old = [name for name in stamps_ns if not self.inputs[name].usable(stamps_ns[name], now_ns)]
        if old:
            old.sort(key=stamps_ns.__getitem__)
            expected = _at_most(self.inputs[old[0]].max_age_ns)
            age = in_seconds(now_ns - stamps_ns[old[0]])
            raise _kept_error(old, expected, f"one of {age}", _ASK_A_FORK)

    def _unknown(self, stamps_ns: Mapping[str, int]) -> list[str]:
        """Inputs of an observation whose age nobody knows: what came from elsewhere (a capsule) may
        tell no stamps, or those of other inputs than this node has.
        """
        foreign = [name for name in stamps_ns if name not in self.inputs]
        # A camera that may be masked has no stamp where it was.
        maskable = {name for name, item in self.inputs.items() if item.on_missing == HOLD}
        needed = self.inputs.keys() - maskable if stamps_ns else self.inputs
        return [
            *(name for name in self.inputs if name in needed and name not in stamps_ns),
            *foreign,
        ]

    def stale_error(self, stale: Sequence[Input], now_ns: int) -> StaleInputError:
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

    def _needed(self, absent: Sequence[Input], not_before: Mapping[str, int]) -> list[Input]:
        """Those of the inputs without a sample that a decision cannot do without."""
        blind = all(camera in absent for camera in self.cameras)
        return [
            item for item in absent if blind or item.on_missing != HOLD or item.name in not_before
        ]

    def _convert(self, choice: Choice, values: dict[Sample, Any]) -> bool:
        """Convert what is not yet; False where a sample proved unusable, and is gone."""
        for name, sample in choice.items():
            item = self.inputs[name]
            try:
                if sample not in values:
                    values[sample] = item.convert(sample)
            except RefusedError as error:
                item.discard(sample, error.refusal)
                self._on_refusal(item, error.refusal)
                return False
        return True

    def _sets(
        self, usable: Mapping[str, Sequence[Sample]], not_before: Mapping[str, int]
    ) -> Iterator[list[str]]:
        """Sets of cameras to try: all, then without those that may be missing, oldest first."""
        names = [camera.name for camera in self.cameras if camera.name in usable]
        yield names
        spare = [n for n in names if self.inputs[n].on_missing == HOLD and n not in not_before]
        for name in sorted(spare, key=lambda n: usable[n][-1].stamp_ns):
            names = [n for n in names if n != name]
            if names:
                yield names

    def _skew_error(self, choice: Choice) -> StaleInputError:
        first = min(choice, key=lambda name: choice[name].stamp_ns)
        last = max(choice, key=lambda name: choice[name].stamp_ns)
        apart = spread_ns([sample.stamp_ns for sample in choice.values()])
        allowed = in_seconds(self._max_skew_ns)
        error = StaleInputError(
            f"inputs '{first}' and '{last}'",
            expected=f"samples within {allowed} of each other",
            got=f"the newest {in_seconds(apart)} apart",
            remedy="set sync.max_skew_s, or look at what delays the first",
        )
        error.inputs, error.skewed = (first, last), True
        return error

    def _all(self) -> Iterator[Input]:
        yield from self.cameras
        if self.joints:
            yield self.joints


def require_stamped(
    stamps_ns: Mapping[str, int], not_before: Mapping[str, int], remedy: str = LOOK_ANEW
) -> None:
    """Check that a context which is kept was made of samples that are stamped at least so.

    Args:
        stamps_ns: input name -> the stamp of its sample; none where it is masked or unknown.
        not_before: input name -> the least stamp (ns) that will do.
        remedy: what to do where one is not.

    Raises:
        StaleInputError: one is not.
    """
    late = [
        name
        for name, least_ns in not_before.items()
        if name not in stamps_ns or stamps_ns[name] < least_ns
    ]
    if not late:
        return
    got = "none of a known stamp"
    if late[0] in stamps_ns:
        got = f"one stamped {in_seconds(not_before[late[0]] - stamps_ns[late[0]])} before it"
    raise _kept_error(late, "one stamped at not_before or later", got, remedy)


def _at_most(age_ns: int) -> str:
    return f"one of at most {in_seconds(age_ns)}"


def _kept_error(names: Sequence[str], expected: str, got: str, remedy: str) -> StaleInputError:
    """The error about samples in a context that is kept; the first one is told of."""
    what = f"context that is kept, its sample of input '{names[0]}'"
    error = StaleInputError(what, expected=expected, got=got, remedy=remedy)
    error.inputs = tuple(names)
    return error
