"""One decision of the node: gather, observe, decide, fill the chunk, publish, time it.

Everything here runs on the inference thread.
"""

from __future__ import annotations

import array
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flashrt_core.errors import FlashRTError, NumericsError, StaleStateError
from flashrt_core.guidance import Previous
from flashrt_core.load import MAIN
from flashrt_core.past import BeyondNetworkError
from flashrt_core.policies.base import Observation
from flashrt_core.preparation import prepare
from flashrt_core.session import Decision, Session
from flashrt_ros.episode import Episode
from flashrt_ros.eras import Eras
from flashrt_ros.errors import ClockJumpError, StaleInputError
from flashrt_ros.execution.continuation import Continuation
from flashrt_ros.ingest import NOTHING, Gathered, Ingest, require_stamped
from flashrt_ros.inputs import RefusedError, Sample
from flashrt_ros.msg import ActionChunk, DecisionTiming
from flashrt_ros.outlet import Marks, Outlet
from flashrt_ros.parameters import NodeConfig
from flashrt_ros.restored import require_valid
from flashrt_ros.sensors import CameraInput
from flashrt_ros.stamps import SECOND, duration_message, time_message
from flashrt_ros.statistics import Statistics


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
        #: Of the node's clock.
        self.eras = Eras()
        #: Where decisions build on each other, each session's chunk under way by name; else empty.
        self.episodes: dict[str, Episode] = {}
        #: Called once the next chunk of the main session has begun, and then forgotten.
        self.at_beginning: deque[Callable[[], None]] = deque()
        if (history := session.contract.history) is not None:
            self._new_episode = partial(Episode, history, round(config.action_dt_s * SECOND))
            self.episodes[MAIN] = self._new_episode()

    @property
    def episode(self) -> Episode | None:
        """The main session's chunk under way; None where decisions stand alone."""
        return self.episodes.get(MAIN)

    def decide(
        self,
        session_name: str = MAIN,
        reuse_context: bool = False,
        not_before: Mapping[str, int] = NOTHING,
        continuation: Continuation | None = None,
        executed: np.ndarray | None = None,
        era: int | None = None,
    ) -> Any:
        """Decide and return the ActionChunk.

        Args:
            session_name: whose decision.
            reuse_context: run the action stage alone, on the retained context. The main session's
                must not be older than a decision on its inputs could be now.
            not_before: input name -> the least stamp (ns) of the sample to use, and of that in a
                context which is reused.
            continuation: what the chunk continues; with an observation only.
            executed: [rows, action_dim], where decisions build on each other: what was done with
                the main session's last chunk; None: it was executed as it was decided. Another
                session gets it for the same chunk.
            era: of the clock, where it began earlier than now; nothing comes of it in another one.

        The main session's chunk is also published, if the node is still active; chunks of other
        sessions are branches that no controller asked for, and only returned.

        Raises:
            StaleInputError: an input has no usable sample, or the retained one is too old by now;
                nothing was decided. ClockJumpError where the clock jumped meanwhile.
            NumericsError: an action is not finite.
            FlashRTError: whatever the session refuses.
        """
        session = self._engine.session(session_name)
        era, now_ns = self._begun(era)
        if self.episodes:
            if self._has_restored(session, now_ns, reuse_context):
                return self._taken_up(session, not_before, era)
            executed = self._done(session, executed)
        start, image_age_ns = time.perf_counter_ns(), None
        previous: Previous | None = None
        if reuse_context:
            self._require_current(session, now_ns, not_before)
        else:
            gathered = self._gather(session, now_ns, not_before, executed)
            image_age_ns = now_ns - gathered.newest_image_ns
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
        marks = Marks(start, ingested, time.perf_counter_ns(), image_age_ns)
        return self._give(session_name, decision, marks, era)

    def _require_current(
        self, session: Session, now_ns: int, not_before: Mapping[str, int]
    ) -> None:
        """StaleInputError where a context is older than it was asked for, or the main session's too
        old for the chunk topic. Who has none yet hears of that from the session.
        """
        host = session.host_state()
        if host.lineage.made:
            require_stamped(host.stamps_ns, not_before)
            if session.name == MAIN:
                self._ingest.require_current(host.stamps_ns, now_ns)

    def _give(self, name: str, decision: Decision, marks: Marks, era: int) -> Any:
        """The chunk, published where it is the main session's; ClockJumpError behind its era."""
        try:
            with self.eras.lasting(era):
                chunk = self._chunk(name, decision, marks)
                if name == MAIN and self._outlet.open():
                    self._publish(chunk, decision, marks)
        except ClockJumpError:
            self.begin_anew(name)  # nobody executes it
            raise
        while name == MAIN and self.at_beginning:
            self.at_beginning.popleft()()
        return chunk

    def _gather(
        self,
        session: Session,
        now_ns: int,
        not_before: Mapping[str, int],
        executed: np.ndarray | None,
    ) -> Gathered:
        """What there is to decide on; the session has observed it."""
        gathered = self._ingest.gather(now_ns, not_before, self._made())
        self._look_late(session, gathered.observation, now_ns)
        self._observe(session, gathered.observation, executed)
        if gathered.masked:
            self._statistics.count("masked")
        return gathered

    def _observe(
        self, session: Session, observation: Observation, executed: np.ndarray | None
    ) -> None:
        try:
            session.observe(observation, executed=executed)
        except BeyondNetworkError:
            # The robot was held or moved where no action leads: that is no past to build on.
            self._statistics.count("beyond_network")
            self.begin_anew(session.name)
            session.observe(observation)

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

        One that is late serves for all that were due before it, and one picture for all sessions.
        StaleInputError where a camera has none yet.
        """
        wanted_ns = self.wanted_ns()
        if wanted_ns is None:
            return
        least = {camera.name: wanted_ns for camera in self._ingest.cameras}
        gathered = self._ingest.gather(self._outlet.now_ns(), least)
        for name, episode in self.episodes.items():
            session = self._engine.session(name)
            while (due_ns := episode.wanted_ns()) and due_ns <= gathered.newest_image_ns:
                session.record(gathered.observation.images)
                episode.seen()

    def wanted_ns(self) -> int | None:
        """When the next picture on the way is due, of any session; from any thread."""
        wanted = [episode.wanted_ns() for episode in tuple(self.episodes.values())]
        return min((due_ns for due_ns in wanted if due_ns is not None), default=None)

    def forget_chunk(self, session_name: str) -> None:
        """The context of a session came from elsewhere (restore, fork), or went: so did the chunk
        that it was to execute.
        """
        if session_name == MAIN and self.episode is not None:
            self.episode.clear()
        elif session_name != MAIN:
            self.episodes.pop(session_name, None)

    def forked(self, session_name: str, source: str) -> None:
        """A session executes the chunk of another one, and looks at it from there on."""
        self.forget_chunk(session_name)
        if source in self.episodes:
            self.episodes[session_name] = self.episodes[source].copy()

    def restart(self) -> None:
        """Count the main session's decisions, and so its noise, from 0 again; a new episode."""
        session = self._engine.session(MAIN)
        session.resume(replace(session.host_state(), decisions=0))
        self.begin_anew()

    def begin_anew(self, session_name: str = MAIN) -> None:
        """Where decisions build on each other: a new episode of a session."""
        if self.episodes:
            self._engine.session(session_name).restart()
            self._episode(session_name).clear()

    def _episode(self, session_name: str) -> Episode:
        if session_name not in self.episodes:
            self.episodes[session_name] = self._new_episode()
        return self.episodes[session_name]

    def _done(self, session: Session, executed: np.ndarray | None) -> np.ndarray | None:
        """What was done with the chunk of a session. Those that execute the main session's get what
        was done with it, though it be over when they decide.
        """
        main, own = self.episodes[MAIN], self._episode(session.name)
        if executed is not None and main.under_way:
            for episode in self.episodes.values():
                if episode.end_ns == main.end_ns:
                    episode.executed = executed
        return own.executed if session.turn and own.under_way else None

    def _begun(self, era: int | None) -> tuple[int, int]:
        """The era that a decision belongs to, and the time in it (ns)."""
        era = self.eras.now if era is None else era
        with self.eras.lasting(era):
            return era, self._outlet.now_ns()

    def _has_restored(self, session: Session, now_ns: int, reuse_context: bool) -> bool:
        """Whether a session has a restored chunk that goes out before another one is made.

        One that is outdated is dropped: nobody executed it, so an episode begins. Where the context
        is to be reused it stays, and StaleStateError or StaleInputError says why.
        """
        if session.turn and not session.intact:
            self.begin_anew(session.name)  # what failed before took the past with it
        if not session.turn or self._episode(session.name).under_way:
            return False
        try:
            require_valid(session, self._ingest, now_ns)
        except (StaleStateError, StaleInputError):
            if reuse_context:
                raise
            self._statistics.count("dropped_chunks")
            self.begin_anew(session.name)
            return False
        return True

    def _taken_up(self, session: Session, not_before: Mapping[str, int], era: int) -> Any:
        """The chunk of a restored decision, which is executed before another one is made, as if it
        had just been decided. StaleInputError where it is older than it was asked for.
        """
        host = session.host_state()
        remedy = "decide without not_before: that chunk is executed first"
        require_stamped(host.stamps_ns, not_before, remedy)
        actions = np.asarray(session.chunk(), np.float32)
        index = session.decisions - 1
        decision = Decision(index, actions, actions, {}, host.stamp_ns, host.stamps_ns)
        now = time.perf_counter_ns()
        return self._give(session.name, decision, Marks(now, now, now), era)

    def _look_late(self, session: Session, observation: Observation, now_ns: int) -> None:
        """Where a chunk is over and a camera showed too little of it: the newest picture again."""
        episode = self.episodes.get(session.name)
        if episode is None or not episode.over(now_ns):
            return
        while episode.wanted_ns() is not None:
            session.record(observation.images)
            episode.seen()
            self._statistics.count("late_pictures")

    def _chunk(self, session_name: str, decision: Decision, marks: Marks) -> ActionChunk:
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
        if self.episodes:
            first = time_message(now_ns)
            turn = self._engine.session(session_name).turn - 1
            self._episode(session_name).begin(now_ns, turn)
        chunk.first_action_stamp = first
        # Of unknown age is as old as can be.
        oldest_ns = min(decision.stamps_ns.values(), default=0)
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

    def _publish(self, chunk: Any, decision: Decision, marks: Marks) -> None:
        self._outlet.chunk(chunk)
        marks = replace(marks, published=time.perf_counter_ns())
        timing = marks.timing(decision.stage_ms, chunk.observation_age)
        self._statistics.decided(timing)
        if (overhead_ms := marks.overhead_ms(timing)) is not None:
            self._statistics.overhead(overhead_ms)
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
