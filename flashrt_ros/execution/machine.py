"""The state of execution: what goes out now, and when the safe action is taken instead.

All times are integer nanoseconds of the node's clock. One thread drives a machine.

``off``      not active; nothing goes out
``idle``     active, nothing was commanded yet
``running``  the schedule is executed
``safe``     the safe action was taken, and lasts until a new chunk is there and its cause is over
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flashrt_ros.execution.chunk import Chunk
from flashrt_ros.execution.continuation import Continuation
from flashrt_ros.execution.counters import Counters
from flashrt_ros.execution.delay import Delay, begin_ns
from flashrt_ros.execution.limits import Limited, Limits
from flashrt_ros.execution.parameters import (
    FAILED,
    HOLD,
    STALE,
    STOP,
    STOP_ON_VIOLATION,
    STOP_TRAJECTORY,
    ExecutionConfig,
)
from flashrt_ros.execution.schedule import Schedule
from flashrt_ros.execution.strategies import REAL_TIME_CHUNKING, strategy
from flashrt_ros.execution.track import Track

OFF, IDLE, RUNNING, SAFE = "off", "idle", "running", "safe"
EXHAUSTED, CONTROLLER, LIMIT, DEACTIVATED = "exhausted", "controller", "limit", "deactivated"
CAUSES = (EXHAUSTED, STALE, FAILED, CONTROLLER, LIMIT, DEACTIVATED)
# Control periods that a hand-over may cost: one on the way, one until the controller looks, and one
# in which a joint_trajectory_controller stands where it was. A step limit holds in what is left.
_HAND_OVER = 3


class Sink(Protocol):
    """Where commands go."""

    def command(self, now_ns: int, values: np.ndarray) -> None:
        """[action_dim] float64, now."""

    def trajectory(self, now_ns: int, points: Sequence[tuple[int, np.ndarray]]) -> None:
        """Points (time, [action_dim] float64), all after ``now_ns``."""

    def stop(self, now_ns: int, position: np.ndarray) -> None:
        """Come to rest at [action_dim] float64."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of the robot at a tick.

    Attributes:
        measured: [action_dim] float64, the position of every action's joint; None: not known.
        stale: which inputs have no usable sample, in words; "" when all have.
        controller: which output has no controller, in words; "" when none lacks one.
    """

    measured: np.ndarray | None = None
    stale: str = ""
    controller: str = ""


@dataclass(frozen=True)
class Cause:
    """Why the safe action is taken: one of CAUSES, and a line of words."""

    name: str
    text: str


class Machine:
    """Executes chunks.

    Args:
        config: outputs, limits, safe action.
        sink: where commands go.
        on_safe: told once whenever the safe action is taken, or its cause changes: the cause, and
            what was done, in words ("" when it only lasts).
        on_running: told once when execution begins again after that.
    """

    def __init__(
        self,
        config: ExecutionConfig,
        sink: Sink,
        on_safe: Callable[[Cause, str], None] = lambda *_: None,
        on_running: Callable[[], None] = lambda: None,
    ) -> None:
        dim = len(config.names)
        self.config = config
        self.state = OFF
        self.cause: Cause | None = None
        self.counters = Counters(
            beyond_range=np.zeros(dim, np.int64),
            beyond_step=np.zeros(dim, np.int64),
            jump_max=np.zeros(dim),
        )
        self.schedule = Schedule(
            strategy(config.strategy, config.interpolation, config.ensemble_decay)
        )
        #: How long after a chunk's end the next may come; for policies that decide where it ends.
        self.gap_ns = 0
        self.delay = Delay(round(config.delay_s * 1e9), config.delay_quantile)
        self._sink = sink
        self._on_safe = on_safe
        self._on_running = on_running
        self._limits = Limits(dim, config.lower, config.upper, config.max_step)
        self._track = Track()
        self._rested_ns = 0  # from when on a trajectory that stops the robot is long over
        self._last: np.ndarray | None = None  # the last per-tick command
        self._failure: Cause | None = None  # holds until the next chunk
        self._latched: Cause | None = None  # holds until the next activation
        self._asked: Chunk | None = None  # the chunk whose successor was asked for
        self._unsent = False  # the schedule changed, and no trajectory says so yet

    # What the node tells

    def start(self) -> None:
        """The node is active: begin with nothing scheduled and nothing commanded."""
        self._forget_commands()
        self._latched = None
        self.delay.restart()
        self._clear()
        self.cause = None
        self.state = IDLE

    def take(self, chunk: Chunk, now_ns: int, facts: Facts) -> None:
        """A chunk is there. Rows whose time is over are skipped; a NaN makes it a failure."""
        if self.state == OFF:
            return
        if not np.isfinite(chunk.rows).all():
            self.fail(FAILED, f"chunk {chunk.sequence} holds values that are not finite")
            self.tick(now_ns, facts)
            return
        entry = self.schedule.add(chunk, now_ns)
        counters = self.counters
        counters.chunks += 1
        counters.late_chunks += entry.late
        counters.skipped_rows += entry.skipped
        if not entry.late:
            self._failure = None
            self._unsent = True
        if entry.jump is not None:
            counters.jumps.append(entry.jump)
            counters.jump_max = np.maximum(counters.jump_max, entry.jump)
        if self.config.trajectory_topic:
            self._step(now_ns, facts, command=False)

    def fail(self, name: str, text: str) -> None:
        """A decision brought no chunk; ``name`` is ``stale`` or ``failed``."""
        if self.state in (RUNNING, SAFE) and name in self.config.safe_causes:
            self._failure = Cause(name, text)

    def forget(self) -> None:
        """The clock jumped: what was scheduled by it means nothing any more."""
        self._clear()
        self._track.clear()

    def tick(self, now_ns: int, facts: Facts) -> None:
        """One control period: command what is due, or take the safe action."""
        self._step(now_ns, facts, command=True)

    def finish(self, now_ns: int, facts: Facts, text: str) -> None:
        """The node leaves the active state: take the safe action, then nothing more."""
        if self.state == RUNNING:
            self._enter_safe(Cause(DEACTIVATED, text), now_ns, facts)
        self._clear()
        self.state = OFF

    # When the next decision begins

    def paces(self, deciding: bool) -> bool:
        """Whether the schedule says when the next decision begins, and not the rate."""
        newest = self.schedule.newest
        asked = self._asked is newest and not deciding
        return bool(self.config.replan_rows) and newest is not None and not asked

    def decision_due(self, now_ns: int) -> bool:
        """Whether the next decision must begin in this control period. True once a chunk."""
        newest = self.schedule.newest
        if not self.config.replan_rows or newest is None or self._asked is newest:
            return False
        due_ns = begin_ns(newest, self.config.replan_rows, self.delay.ns)
        if now_ns + self.config.period_ns <= due_ns:
            return False
        self._asked = newest
        return True

    def continuation(self, now_ns: int) -> Continuation | None:
        """What a decision that begins now continues; None where none is to."""
        if self.config.strategy != REAL_TIME_CHUNKING or self.schedule.newest is None:
            return None
        return Continuation(self.schedule.copy(), now_ns + self.delay.ns, self.config.rtc_decay)

    # What is done

    def _step(self, now_ns: int, facts: Facts, *, command: bool) -> None:
        if self.state == OFF:
            return
        self.schedule.prune(now_ns)
        if self.state == SAFE and self.config.measured and now_ns >= self._rested_ns:
            self._track.clear()  # at rest: what is measured counts, should it have been moved
        cause = self._find_cause(now_ns, facts)
        if cause is None and self.state == IDLE and self.schedule.at(now_ns) is None:
            return
        if cause is None:
            cause = self._execute(now_ns, facts, command)
        if cause is not None:
            self._stay_safe(cause, now_ns, facts, command)

    def _find_cause(self, now_ns: int, facts: Facts) -> Cause | None:
        if self._latched is not None:
            return self._latched
        empty = self.schedule.at(now_ns) is None
        if self.state == IDLE and empty:
            return None  # nothing was commanded: nothing has to be made safe
        if facts.controller:
            return Cause(CONTROLLER, facts.controller)
        if self._failure is not None:
            return self._failure
        if facts.stale and STALE in self.config.safe_causes:
            return Cause(STALE, facts.stale)
        if empty and not self._between(now_ns):
            text = "the last action of the schedule is over and no chunk is there"
            late = f" within {self.gap_ns * 1e-9:g} s" if self.gap_ns else ""
            return Cause(EXHAUSTED, text + late)
        if self.config.measured and self.config.max_step and self._no_reference(now_ns, facts):
            return Cause(STALE, "no joint position is known to begin from")
        return None

    def _between(self, now_ns: int) -> bool:
        """Whether one chunk is over and the next may still come."""
        newest = self.schedule.newest
        return newest is not None and 0 <= now_ns - newest.end_ns < self.gap_ns

    def _due(self, now_ns: int) -> np.ndarray | None:
        """What to command now; between two chunks what the safe action would."""
        due, newest = self.schedule.at(now_ns), self.schedule.newest
        if due is None and newest is not None and self.config.safe_action == HOLD:
            return np.zeros(len(self.config.names)) if self.config.velocity else newest.rows[-1]
        return due

    def _no_reference(self, now_ns: int, facts: Facts) -> bool:
        """Whether an output has nothing to count a step from; each has its own last command."""
        if facts.measured is not None:
            return False
        if self.config.trajectory_topic and self._unsent and self._track.at(now_ns) is None:
            return True
        return bool(self.config.commands_topic) and self._last is None

    def _execute(self, now_ns: int, facts: Facts, command: bool) -> Cause | None:
        """Send what is due; the cause of a safe action where a limit forbids it."""
        limited: list[Limited] = []
        points: list[tuple[int, np.ndarray]] = []
        start = None
        if self.config.trajectory_topic and self._unsent:
            start = self._track.at(now_ns)
            start = facts.measured if start is None else start
            points = self._points(now_ns, start, limited)
        value = None
        if self.config.commands_topic and command:
            wanted = self._due(now_ns)
            if wanted is not None:
                reference = facts.measured if self._last is None else self._last
                limited.append(self._limits.apply(wanted, reference))
                value = limited[-1].values
        self._count(limited)
        if self.config.on_violation == STOP_ON_VIOLATION and any(x.violated for x in limited):
            self._latched = Cause(LIMIT, self._violations(limited))
            return self._latched
        if self.state == SAFE:
            self._on_running()
        self.state, self.cause = RUNNING, None
        if points:
            self._sink.trajectory(now_ns, points)
            self._track.replace(now_ns, start, points)
            self.counters.trajectories += 1
        self._unsent = False
        if value is not None:
            self._send_command(now_ns, value)
        return None

    def _points(
        self, now_ns: int, start: np.ndarray | None, limited: list[Limited]
    ) -> list[tuple[int, np.ndarray]]:
        """The rows to come, within the limits. One that is due before the controller can be on its
        way is left out: it would have to leap to it.
        """
        period_ns = self.config.period_ns
        lost = _HAND_OVER if self.config.max_step else 0
        points: list[tuple[int, np.ndarray]] = []
        before_ns, before = now_ns + lost * period_ns, start
        for time_ns, wanted in self.schedule.coming(before_ns + period_ns):
            found = self._limits.apply(wanted, before, (time_ns - before_ns) / period_ns)
            limited.append(found)
            before_ns, before = time_ns, found.values
            points.append((time_ns, before))
        return points

    def _stay_safe(self, cause: Cause, now_ns: int, facts: Facts, command: bool) -> None:
        if self.state == SAFE:
            known = self.cause
            # That nothing is scheduled follows from any other cause, and outlasts it.
            if known is not None and cause.name not in (known.name, EXHAUSTED):
                self.counters.safe[cause.name] += 1
                self.cause = cause
                self._forget_ended(cause)
                self._on_safe(cause, "")
            self._clear(keep_failure=True)
            if command and self.config.safe_action == HOLD and self.config.commands_topic:
                self._hold_command(now_ns)
            return
        self._enter_safe(cause, now_ns, facts)

    def _enter_safe(self, cause: Cause, now_ns: int, facts: Facts) -> None:
        self.state, self.cause = SAFE, cause
        self.counters.safe[cause.name] += 1
        self._clear(keep_failure=True)
        done = self._act(now_ns, facts)
        self._forget_ended(cause)
        self._on_safe(cause, done)

    def _act(self, now_ns: int, facts: Facts) -> str:
        """Take the safe action; what was done, in words."""
        config = self.config
        done: list[str] = []
        if config.safe_action == HOLD and config.commands_topic:
            done += ["the last command is held"] if self._hold_command(now_ns) else []
        if config.trajectory_topic and config.safe_action in (HOLD, STOP_TRAJECTORY):
            told = self._track.at(now_ns)
            measured = facts.measured
            first, second = (told, measured) if config.safe_action == HOLD else (measured, told)
            position = second if first is None else first
            if position is not None:
                self._sink.stop(now_ns, position)
                rest_ns = now_ns + round(config.stop_within_s * 1e9)
                self._rested_ns = 2 * rest_ns - now_ns
                self._track.replace(now_ns, told, [(rest_ns, position)])
                where = "measured" if position is measured else "commanded"
                done.append(f"a trajectory stops at the {where} position")
        return " and ".join(done) or "publishing is stopped"

    def _hold_command(self, now_ns: int) -> bool:
        held = np.zeros(len(self.config.names)) if self.config.velocity else self._last
        if held is not None:
            self._send_command(now_ns, held)
        return held is not None

    def _send_command(self, now_ns: int, values: np.ndarray) -> None:
        self._sink.command(now_ns, values)
        self._last = values
        self.counters.commands += 1

    def _forget_ended(self, cause: Cause) -> None:
        """Forget what was commanded on an output that holds the robot no longer: it may be anywhere
        when the next command leaves, which then counts from the measured joints.
        """
        if cause.name == CONTROLLER or self.config.safe_action == STOP:
            self._forget_commands()
        elif self.config.safe_action == STOP_TRAJECTORY:
            self._last = None  # commands ended; the trajectory's one point is held

    def _forget_commands(self) -> None:
        # A robot that velocities are sent to begins, and is left, at rest.
        self._last = np.zeros(len(self.config.names)) if self.config.velocity else None
        self._track.clear()

    def _clear(self, keep_failure: bool = False) -> None:
        self.schedule.clear()
        self._asked, self._unsent = None, False
        if not keep_failure:
            self._failure = None

    def _count(self, limited: list[Limited]) -> None:
        for found in limited:
            self.counters.beyond_range += found.beyond_range
            self.counters.beyond_step += found.beyond_step

    def _violations(self, limited: list[Limited]) -> str:
        words = []
        for what, attribute in (("range", "beyond_range"), ("step", "beyond_step")):
            hit = np.any([getattr(found, attribute) for found in limited], axis=0)
            names = [name for name, bad in zip(self.config.names, hit, strict=True) if bad]
            words += [f"{what} of {', '.join(names)}"] if names else []
        return f"limits are violated: {'; '.join(words)}"
