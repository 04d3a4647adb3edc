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
from std_msgs.msg import Header

from flashrt_core.errors import NumericsError
from flashrt_core.guidance import Previous
from flashrt_core.load import MAIN
from flashrt_core.session import Decision, Session
from flashrt_ros.execution.continuation import Continuation
from flashrt_ros.ingest import NOTHING, Ingest
from flashrt_ros.msg import ActionChunk, DecisionTiming
from flashrt_ros.parameters import NodeConfig
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
        self._oldest_ns: dict[str, int] = {}  # oldest input of each session's retained context

    def decide(
        self,
        session_name: str = MAIN,
        reuse_context: bool = False,
        not_before: Mapping[str, int] = NOTHING,
        continuation: Continuation | None = None,
    ) -> Any:
        """Decide and return the ActionChunk.

        Args:
            session_name: whose decision.
            reuse_context: run the action stage alone, on the retained context.
            not_before: input name -> the least stamp (ns) of the sample to use.
            continuation: what the chunk continues; with an observation only.

        The main session's chunk is also published, if the node is still active; chunks of other
        sessions are branches that no controller asked for, and only returned.

        Raises:
            StaleInputError: an input has no usable sample; nothing was decided.
            NumericsError: an action is not finite.
            FlashRTError: whatever the session refuses.
        """
        session = self._engine.session(session_name)
        start, image_age_ns = time.perf_counter_ns(), None
        previous: Previous | None = None
        if not reuse_context:
            now_ns = self._outlet.now_ns()
            gathered = self._ingest.gather(now_ns, not_before)
            image_age_ns = now_ns - gathered.newest_image_ns
            session.observe(gathered.observation)
            self._oldest_ns[session_name] = gathered.oldest_stamp_ns
            if gathered.masked:
                self._statistics.count("masked")
            if continuation is not None:
                previous = continuation.previous(gathered.observation.stamp_ns, self._horizon)
        ingested, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        decision = session.act() if reuse_context else session.decide(previous=previous)
        cpu_ns = time.thread_time_ns() - cpu_ns
        self._statistics.policy_ran(cpu_ns)
        if not np.isfinite(decision.actions).all():
            # The network's own output is checked by the session; statistics can still overflow it.
            raise NumericsError(
                f"actions of session '{session_name}'",
                expected="finite values in robot units",
                got="NaN or infinity",
                remedy="check the normalisation statistics",
            )
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

    def forget_ages(self, session_name: str) -> None:
        """The context of a session came from elsewhere (restore, fork): its input ages too."""
        self._oldest_ns.pop(session_name, None)

    def restart(self) -> None:
        """Count the main session's decisions, and so its noise, from 0 again."""
        session = self._engine.session(MAIN)
        session.resume(replace(session.host_state(), decisions=0))

    def _chunk(
        self, session_name: str, decision: Decision, oldest_ns: int, marks: _Marks
    ) -> ActionChunk:
        config = self._config
        horizon, action_dim = decision.actions.shape
        stamp = time_message(decision.stamp_ns)
        data = array.array("f")
        data.frombytes(decision.actions.tobytes())
        now_ns = self._outlet.now_ns()
        return ActionChunk(
            header=Header(stamp=stamp),
            policy=config.policy,
            fingerprint=self._fingerprint,
            session=session_name,
            sequence=decision.index,
            action_names=list(config.action_names),
            action_kind=config.action_kind,
            horizon=horizon,
            action_dim=action_dim,
            data=data,
            dt=self._dt,
            # Row 0 answers the observation: a late chunk is entered at the row that is due now.
            first_action_stamp=stamp,
            observation_age=duration_message(now_ns - oldest_ns),
            inference_time=duration_message(marks.decided - marks.start),
            generated=time_message(now_ns),
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


def _ms(ns: int) -> float:
    return ns * 1e-6
