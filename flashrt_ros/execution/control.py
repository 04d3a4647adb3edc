"""Execution on a node: chunks in from the inference thread, a control timer on the executor.

The timer never waits for inference: a decision runs on its own thread, and what it makes is handed
over through a queue. So the safe action is taken in time whatever a decision does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from flashrt_core.errors import FlashRTError
from flashrt_ros.edge_log import EdgeLog
from flashrt_ros.errors import StaleInputError
from flashrt_ros.execution.chunk import Chunk
from flashrt_ros.execution.continuation import Continuation
from flashrt_ros.execution.machine import (
    CAUSES,
    DEACTIVATED,
    OFF,
    SAFE,
    Cause,
    Facts,
    Machine,
)
from flashrt_ros.execution.outputs import Outputs
from flashrt_ros.execution.parameters import FAILED, STALE, ExecutionConfig
from flashrt_ros.execution.told import Told
from flashrt_ros.ingest import Ingest
from flashrt_ros.stamps import to_ns

_ACKNOWLEDGED_S = 0.1
_TICKS = 1024  # that the lateness is taken over


class Control:
    """Executes the chunks of a node.

    Everything but :meth:`offer` runs on the executor thread.

    Args:
        node: publishes, and has the timer.
        config: outputs, limits, safe action.
        ingest: says where the joints are, and which inputs are stale.
        now_ns: the node's clock.
        edge_log: told of the safe action.
        begin: begins a decision, where the schedule paces them.
        on_event: called when the safe action was taken, and when it is over.
    """

    def __init__(
        self,
        node: Any,
        config: ExecutionConfig,
        ingest: Ingest,
        now_ns: Callable[[], int],
        edge_log: EdgeLog,
        begin: Callable[[], None],
        on_event: Callable[[], None],
    ) -> None:
        self._node = node
        self.config = config
        self._ingest = ingest
        self._now_ns = now_ns
        self._edge_log = edge_log
        self._begin = begin
        self._on_event = on_event
        self._outputs = Outputs(node, config)
        self._told = Told(self._outputs, config)
        self.machine = Machine(config, self._told, self._on_safe, self._on_running)
        self._waiting: deque[Any] = deque()
        self._timer: Any = None
        self._open: set[str] = set()  # conditions in the log that are not over
        self._action = ""  # what the last safe action was, in words
        self._begun_ns: int | None = None  # when the decision that runs began
        self._ticked_ns: int | None = None
        self._late_ns: deque[int] = deque(maxlen=_TICKS)
        joints = ingest.joints.names if ingest.joints else ()
        self._order = [joints.index(name) for name in config.names] if config.measured else None

    def offer(self, message: Any) -> None:
        """A chunk was published; from any thread."""
        self._waiting.append(message)

    def deliver(self) -> None:
        """Take the chunks that were offered."""
        while self._waiting:
            message = self._waiting.popleft()
            now_ns = self._now_ns()
            if self._begun_ns is not None:
                self.machine.delay.measured(now_ns - self._begun_ns)
                self._begun_ns = None
            chunk = _chunk(message)
            if self.machine.gap_ns:
                self._told.begin(chunk)
            self.machine.take(chunk, now_ns, self._facts(now_ns))

    def continuation(self) -> Continuation | None:
        """What the decision that is about to begin continues; None: nothing."""
        self.deliver()
        return self.machine.continuation(self._now_ns())

    def expect_gaps(self, gap_ns: int) -> None:
        """Chunks come at most so long after the last one's end; what was done is asked for."""
        self.machine.gap_ns = gap_ns

    def executed(self, end_ns: int) -> np.ndarray | None:
        """[rows, action_dim] float64, what was done with the chunk that ended then.

        None where that is not known: rows of before the node was active.
        """
        self.deliver()
        return self._told.executed(end_ns, self.machine.state == SAFE)

    def begun(self) -> None:
        """A timed decision was begun."""
        self._begun_ns = self._now_ns()

    def failed(self, error: Exception) -> None:
        """A timed decision brought no chunk."""
        self._begun_ns = None
        known = isinstance(error, FlashRTError)
        text = str(error) if known else f"{type(error).__name__} in a decision"
        self.machine.fail(STALE if isinstance(error, StaleInputError) else FAILED, text)

    def paces(self, deciding: bool) -> bool:
        """Whether the schedule says when the next decision begins, and not the rate."""
        self.deliver()
        return self.machine.paces(deciding)

    def forget(self) -> None:
        """The node's clock jumped."""
        self._begun_ns = self._ticked_ns = None
        self._waiting.clear()
        self.machine.forget()

    def start(self, clock: Any) -> None:
        """The node becomes active; ``clock`` paces the control timer."""
        self._waiting.clear()
        self._begun_ns = self._ticked_ns = None
        self._told.clear()
        self._late_ns.clear()
        self._outputs.restart()
        self.machine.start()
        self._timer = self._node.create_timer(1.0 / self.config.rate_hz, self.tick, clock=clock)

    def stop(self) -> None:
        """The node leaves the active state: take the safe action. Harmless when it is not in it."""
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._timer = None
        if self.machine.state == OFF:
            return
        now_ns = self._now_ns()
        self.machine.finish(now_ns, self._facts(now_ns), "the node leaves the active state")
        self._outputs.wait_sent(_ACKNOWLEDGED_S)
        for key in self._open:
            self._edge_log.drop(key)
        self._open.clear()

    def close(self) -> None:
        """Destroy the publishers; after :meth:`stop`."""
        self._outputs.close()

    def tick(self) -> None:
        """One control period."""
        now_ns = self._now_ns()
        if self._ticked_ns is not None:
            self._late_ns.append(now_ns - self._ticked_ns - self.config.period_ns)
        self._ticked_ns = now_ns
        self.deliver()
        self.machine.tick(now_ns, self._facts(now_ns))
        if self.machine.decision_due(now_ns):
            self._begin()

    def describe(self) -> dict[str, Any]:
        """What diagnostics shows."""
        machine, counters = self.machine, self.machine.counters
        values: dict[str, Any] = {
            "state": machine.state,
            "cause": machine.cause.name if machine.cause else "",
            "last_action": self._action,
            "strategy": self.config.strategy,
            "rate_hz": self.config.rate_hz,
            "chunks": counters.chunks,
            "late_chunks": counters.late_chunks,
            "skipped_rows": counters.skipped_rows,
            "commands": counters.commands,
            "trajectories": counters.trajectories,
            "delay_ms": machine.delay.ns * 1e-6,
            "safe_actions": sum(counters.safe.values()),
        }
        values |= {f"safe.{name}": counters.safe[name] for name in CAUSES}
        if self._late_ns:
            late_ms = np.fromiter(self._late_ns, float) * 1e-6
            values["tick_late_ms.p99"] = float(np.percentile(late_ms, 99))
            values["tick_late_ms.max"] = float(late_ms.max())
        jumps = np.stack(counters.jumps) if counters.jumps else None
        for i, name in enumerate(self.config.names):
            values[f"clamped_range.{name}"] = counters.beyond_range[i]
            values[f"clamped_step.{name}"] = counters.beyond_step[i]
            if jumps is not None:
                values[f"jump.{name}.p95"] = float(np.percentile(jumps[:, i], 95))
                values[f"jump.{name}.max"] = float(counters.jump_max[i])
        return values

    def _facts(self, now_ns: int) -> Facts:
        measured = None
        if self._order is not None and self._ingest.joints is not None:
            sample = self._ingest.joints.select(now_ns)
            if sample is not None:
                measured = np.asarray(sample.value, np.float64)[self._order]
        stale = self._ingest.unusable(now_ns)
        return Facts(
            measured=measured,
            stale=str(self._ingest.stale_error(stale, now_ns)) if stale else "",
            controller=self._outputs.abandoned(),
        )

    def _on_safe(self, cause: Cause, done: str) -> None:
        self._action = done or self._action
        text = f"safe action ({self.config.safe_action}): {done or 'it lasts'}; {cause.text}"
        if cause.name == DEACTIVATED:
            self._node.get_logger().info(f"execution: {text}")
        else:
            # A condition for each cause: one that follows another soon is said, too.
            key = f"execution ({cause.name})"
            self._open.add(key)
            self._edge_log.problem(key, text, cause.name, lasting=True)
        self._on_event()

    def _on_running(self) -> None:
        while self._open:
            self._edge_log.clear(self._open.pop())
        self._on_event()


def _chunk(message: Any) -> Chunk:
    rows = np.frombuffer(message.data, np.float32).astype(np.float64)
    return Chunk(
        first_ns=to_ns(message.first_action_stamp),
        dt_ns=to_ns(message.dt),
        rows=rows.reshape(message.horizon, message.action_dim),
        sequence=message.sequence,
    )
