"""One decision of the node: gather, observe, decide, fill the chunk, publish, time it.

Everything here runs on the inference thread.
"""

from __future__ import annotations

import array
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashrt_core.errors import FlashRTError, NumericsError
from flashrt_core.guidance import Previous
from flashrt_core.load import MAIN
from flashrt_core.policies.base import Observation
from flashrt_core.preparation import prepare
from flashrt_core.session import Decision, Session
from flashrt_ros.episode import Episode
from flashrt_ros.execution.continuation import Continuation
from flashrt_ros.ingest import NOTHING, Ingest
from flashrt_ros.inputs import RefusedError, Sample
from flashrt_ros.msg import ActionChunk, DecisionTiming
from flashrt_ros.parameters import NodeConfig
from flashrt_ros.sensors import CameraInput
from flashrt_ros.stamps import SECOND, duration_message, time_message
from flashrt_ros.statistics import Statistics, Timing


@dataclass(frozen=True)
class Outlet:
    """Where decisions go, and what the time is.

    Attributes:
        open: whether decisions may leave the node (it is active).
        now_ns: the node's clock.
        chunk, timing: publish a message.
    """

    open: Callable[[], bool]
    now_ns: Callable[[], int]
    chunk: Callable[[Any], None]
    timing: Callable[[Any], None]


@dataclass(frozen=True)
class _Marks:
    """time.perf_counter_ns() at the borders of the parts of a decision; how old its newest image
    was at the first (ns; None where no image was looked at)."""

    start: int
    ingested: int
    decided: int
    image_age_ns: int | None = None
    published: int = 0


class Decider:
    """Makes decisions with the sessions of one engine.

    Args:
        session: the main session.
        ingest: where observations come from.
        config: names and times that go into every chunk.
        outlet: where chunks go.
        statistics: told of every published decision.
    """

    def __init__(
        self,
        session: Session,
        ingest: Ingest,
        config: NodeConfig,
        outlet: Outlet,
        statistics: Statistics,
    ) -> None:
        self._engine = session.engine
        self._ingest = ingest
        self._config = config
        self._outlet = outlet
        self._statistics = statistics
        self._fingerprint = session.fingerprint.digest
        self._dt = duration_message(round(config.action_dt_s * SECOND))
        self._horizon = max(session.contract.shapes).horizon
        self._prepared: dict[str, tuple[Sample, Any]] = {}  # by camera
        self._blank: ActionChunk | None = self._blank_chunk()
        self._oldest_ns: dict[str, int] = {}  # oldest input of each session's retained context
        history = session.contract.history
        #: Where decisions build on each other, the main session's chunk under way; else None.
        self.episode = (
            None if history is None else Episode(history, round(config.action_dt_s * SECOND))
        )

    def decide(
        self,
        session_name: str = MAIN,
        reuse_context: bool = False,
        not_before: Mapping[str, int] = NOTHING,
        continuation: Continuation | None = None,
        executed: np.ndarray | None = None,
    ) -> Any:
        """Decide and return the ActionChunk.

        Args:
            session_name: whose decision.
            reuse_context: run the action stage alone, on the retained context.
            not_before: input name -> the least stamp (ns) of the sample to use.
            continuation: what the chunk continues; with an observation only.
            executed: [rows, action_dim], where decisions build on each other: what was done with
                the last chunk; None: it was executed as it was decided.

        The main session's chunk is also published, if the node is still active; chunks of other
        sessions are branches that no controller asked for, and only returned.

        Raises:
            StaleInputError: an input has no usable sample; nothing was decided.
            NumericsError: an action is not finite.
            FlashRTError: whatever the session refuses.
        """
        session = self._engine.session(session_name)
        if self.episode is not None and session_name == MAIN:
            if session.turn and not session.intact:
                self.begin_anew()  # what failed before took the past with it
            if self._takes_up(session):
                return self._taken_up(session)
        start, image_age_ns = time.perf_counter_ns(), None
        previous: Previous | None = None
        if not reuse_context:
            now_ns = self._outlet.now_ns()
            gathered = self._ingest.gather(now_ns, not_before, self._made())
            image_age_ns = now_ns - gathered.newest_image_ns
            self._look_late(session, gathered.observation, now_ns)
            session.observe(gathered.observation, executed=executed)
            self._oldest_ns[session_name] = gathered.oldest_stamp_ns
            if gathered.masked:
                self._statistics.count("masked")
            if continuation is not None:
                previous = continuation.previous(gathered.observation.stamp_ns, self._horizon)
        ingested, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        decision = session.act() if reuse_context else session.decide(previous=previous)
        cpu_ns = time.thread_time_ns() - cpu_ns
        self._statistics.policy_ran(cpu_ns)
        _check_units(decision, session_name)
        if previous is not None:
            self._statistics.count("guided")
            self._statistics.count("kept_rows", previous.frozen)
        marks = _Marks(start, ingested, time.perf_counter_ns(), image_age_ns)
        # After a restore or a fork the oldest input is not known, only the newest is.
        oldest_ns = min(self._oldest_ns.get(session_name, decision.stamp_ns), decision.stamp_ns)
        chunk = self._chunk(session_name, decision, oldest_ns, marks)
        if session_name == MAIN and self._outlet.open():
            self._publish(chunk, decision, marks)
        return chunk

    def prepare(self, camera: CameraInput) -> None:
        """Make the newest image of a camera ready for a decision that waits for other cameras."""
        sample = camera.select(self._outlet.now_ns())
        if sample is None:
            return
        try:
            session, slot = self._engine.session(MAIN), camera.config.slot
            image = prepare(session, slot, camera.convert(sample))
        except (RefusedError, FlashRTError):
            return  # the decision finds it, too, and says so
        self._prepared[camera.name] = sample, image

    def _made(self) -> dict[Sample, Any]:
        """What was made ready, by sample; a decision takes it away."""
        made, self._prepared = self._prepared, {}
        return dict(made.values())

    def look(self) -> None:
        """Keep the picture of every camera that is due on the way through a chunk.

        One that is late serves for all that were due before it. StaleInputError where a camera has
        none yet.
        """
        episode, session = self.episode, self._engine.session(MAIN)
        wanted_ns = None if episode is None else episode.wanted_ns()
        if episode is None or wanted_ns is None:
            return
        least = {camera.name: wanted_ns for camera in self._ingest.cameras}
        gathered = self._ingest.gather(self._outlet.now_ns(), least)
        while wanted_ns is not None and wanted_ns <= gathered.newest_image_ns:
            session.record(gathered.observation.images)
            episode.seen()
            wanted_ns = episode.wanted_ns()

    def forget_ages(self, session_name: str) -> None:
        """The context of a session came from elsewhere (restore, fork): its input ages too, and the
        chunk that it was to execute.
        """
        self._oldest_ns.pop(session_name, None)
        if session_name == MAIN and self.episode is not None:
            self.episode.clear()

    def restart(self) -> None:
        """Count the main session's decisions, and so its noise, from 0 again; a new episode."""
        session = self._engine.session(MAIN)
        session.resume(replace(session.host_state(), decisions=0))
        self.begin_anew()

    def begin_anew(self) -> None:
        """Where decisions build on each other: a new episode of the main session."""
        if self.episode is not None:
            self._engine.session(MAIN).restart()
            self.episode.clear()

    def _takes_up(self, session: Session) -> bool:
        """Whether the chunk of a restored decision is to be executed before another one is made."""
        return session.turn > 0 and self.episode is not None and not self.episode.under_way

    def _taken_up(self, session: Session) -> Any:
        """Publish that chunk as if it had just been decided."""
        stamp_ns = session.host_state().stamp_ns
        actions = np.asarray(session.chunk(), np.float32)
        decision = Decision(session.decisions - 1, actions, actions, {}, stamp_ns)
        now = time.perf_counter_ns()
        marks = _Marks(now, now, now)
        chunk = self._chunk(MAIN, decision, stamp_ns, marks)
        if self._outlet.open():
            self._publish(chunk, decision, marks)
        return chunk

    def _look_late(self, session: Session, observation: Observation, now_ns: int) -> None:
        """Where a chunk is over and a camera showed too little of it: the newest picture again."""
        episode = self.episode
        if episode is None or session.name != MAIN or not episode.over(now_ns):
            return
        while episode.wanted_ns() is not None:
            session.record(observation.images)
            episode.seen()
            self._statistics.count("late_pictures")

    def _chunk(
        self, session_name: str, decision: Decision, oldest_ns: int, marks: _Marks
    ) -> ActionChunk:
        chunk, self._blank = self._blank or self._blank_chunk(), None
        chunk.session, chunk.sequence = session_name, decision.index
        chunk.horizon, chunk.action_dim = decision.actions.shape
        chunk.header.stamp = stamp = time_message(decision.stamp_ns)
        data = array.array("f")
        data.frombytes(decision.actions.tobytes())
        chunk.data = data
        now_ns = self._outlet.now_ns()
        # Row 0 answers the observation: a late chunk is entered at the row that is due now. Where
        # decisions build on each other every row is executed, from now on.
        first = stamp
        if self.episode is not None:
            first = time_message(now_ns)
            if session_name == MAIN:
                self.episode.begin(now_ns, self._engine.session(MAIN).turn - 1)
        chunk.first_action_stamp = first
        chunk.observation_age = duration_message(now_ns - oldest_ns)
        chunk.inference_time = duration_message(marks.decided - marks.start)
        chunk.generated = time_message(now_ns)
        return chunk

    def _blank_chunk(self) -> ActionChunk:
        """A new chunk with all that is the same in every one.

        A message is made of a dozen others, which takes longer than to fill it: so the next one is
        made behind a decision, where nobody waits.
        """
        config = self._config
        return ActionChunk(
            policy=config.policy,
            fingerprint=self._fingerprint,
            action_names=list(config.action_names),
            action_kind=config.action_kind,
            dt=self._dt,
        )

    def _publish(self, chunk: Any, decision: Decision, marks: _Marks) -> None:
        self._outlet.chunk(chunk)
        marks = replace(marks, published=time.perf_counter_ns())
        age = chunk.observation_age
        took = dict(decision.stage_ms)
        action_ms = took.pop("action", 0.0)
        timing = Timing(
            ingest_ms=_ms(marks.ingested - marks.start),
            context_ms=sum(took.values()),
            action_ms=action_ms,
            publish_ms=_ms(marks.published - marks.decided),
            total_ms=_ms(marks.published - marks.start),
            observation_age_ms=age.sec * 1e3 + age.nanosec * 1e-6,
        )
        self._statistics.decided(timing)
        if marks.image_age_ns is not None:
            engine_ms = timing.context_ms + timing.action_ms
            self._statistics.overhead(_ms(marks.image_age_ns) + timing.total_ms - engine_ms)
        self._outlet.timing(
            DecisionTiming(
                header=chunk.header,
                session=chunk.session,
                sequence=chunk.sequence,
                **vars(timing),
            )
        )
        self._blank = self._blank_chunk()


def _check_units(decision: Decision, session_name: str) -> None:
    """NumericsError where an action is not finite: the network's own output is checked by the
    session, statistics can still overflow it.
    """
    if not np.isfinite(decision.actions).all():
        raise NumericsError(
            f"actions of session '{session_name}'",
            expected="finite values in robot units",
            got="NaN or infinity",
            remedy="check the normalisation statistics",
        )


def _ms(ns: int) -> float:
    return ns * 1e-6
