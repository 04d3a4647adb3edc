"""Everything that exists from configure to cleanup, and the one way to take it down.

Built in order, released in reverse order by one exit stack: a configure that fails half-way, a
cleanup, a shutdown and an error all take the same path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rclpy.clock import Clock, ClockType, TimeJump
from rclpy.task import Future

from flashrt_core import images
from flashrt_core.engine import describe
from flashrt_core.errors import FlashRTError
from flashrt_core.load import MAIN, load
from flashrt_core.session import Session
from flashrt_ros.clock_jumps import forget, on_jumps, told
from flashrt_ros.decider import Decider
from flashrt_ros.edge_log import EdgeLog
from flashrt_ros.errors import BusyError, ClockJumpError, StaleInputError, WrongStateError
from flashrt_ros.execution.control import Control
from flashrt_ros.fresh_images import FreshImages
from flashrt_ros.ingest import Ingest
from flashrt_ros.inputs import Input, Refusal
from flashrt_ros.loading import (
    LoadLog,
    check_delay,
    check_plan,
    check_replan_rows,
    load_options,
)
from flashrt_ros.looker import Looker
from flashrt_ros.outlet import Outlet
from flashrt_ros.parameters import NodeConfig
from flashrt_ros.prompt_topic import PromptTopic
from flashrt_ros.silence import Silence
from flashrt_ros.statistics import Statistics
from flashrt_ros.subscriptions import subscribe
from flashrt_ros.waiting import Waiters, wait_for_inputs
from flashrt_ros.wording import in_node_terms
from flashrt_ros.worker import InferenceThread, Outcome

_JOB_LIMIT_S = 10.0  # how long a transition waits for a decision that runs


class Runtime:
    """A configured node's session, inference thread, subscriptions and timers.

    Args:
        node: the lifecycle node.
        config: its checked parameters.
        outlet: where decisions go.
        statistics, edge_log: shared with diagnostics.

    Raises:
        FlashRTError: from loading the policy or subscribing; everything is released again.
    """

    def __init__(
        self,
        node: Any,
        config: NodeConfig,
        outlet: Outlet,
        statistics: Statistics,
        edge_log: EdgeLog,
    ) -> None:
        self.node = node
        self.config = config
        self.statistics = statistics
        self.edge_log = edge_log
        self.engine_view: dict[str, Any] = {}
        self.deciding = False  # a decision of the main session's turn is queued or runs
        self.active = False
        self.restored = False  # a capsule was restored since the last deactivate
        self.execution: Control | None = None  # where an output beside the chunk topic is asked for
        self._outlet = outlet
        self._timer: Any = None
        self._silence = Silence()
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._stack = contextlib.ExitStack()
        release = self._stack.callback
        guard = node.create_guard_condition(self._deliver)
        release(node.destroy_guard_condition, guard)
        self.waiters = Waiters(node, self._steady)
        release(self.waiters.close)
        self.worker: InferenceThread = InferenceThread(guard.trigger)
        release(self._stop_worker)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        config, release = self.config, self._stack.callback
        for camera in config.cameras:
            if camera.compressed:
                images.opencv(f"camera '{camera.key}' (compressed)")
        self.ingest = Ingest(config, self._on_refusal)
        # Waiting requests are resumed on the executor's thread, whoever brings what they wait for.
        decoded = self.node.create_guard_condition(self._arrived)
        release(self.node.destroy_guard_condition, decoded)
        self.ingest.start(decoded.trigger)
        release(self._stop_decoders)
        for item in self.ingest.inputs.values():
            whose = (item, self.ingest, self._outlet.now_ns, self._arrived, self.edge_log)
            release(self.node.destroy_subscription, subscribe(self.node, *whose))
        fresh = (self.ingest.cameras, config.sync_fresh_images_s, self._decide, self.worker)
        self._fresh = FreshImages(self.node, *fresh, lambda camera: self.decider.prepare(camera))
        prompts = PromptTopic(
            self.node,
            self.worker,
            lambda text: self.session.engine.session(MAIN).set_prompt(text),
            self.statistics,
            self.edge_log,
            self._steady,
        )
        release(prompts.close)
        outlet = self._outlet
        if config.execution.enabled:
            outlet = self._build_execution(outlet)
        # Last, because it takes longest: mistakes above show at once.
        progress = LoadLog(self.node.get_logger().info)
        self.session: Session = self.worker.call(lambda: load(load_options(config), progress))
        release(self._close_engine)
        check_plan(config, self.session.contract, self.session.processor.relative)
        self.view_engine()
        self.fingerprint = self.session.fingerprint.digest
        self.decider = Decider(self.session, self.ingest, config, outlet, self.statistics)
        self.looker = Looker(
            self.decider,
            self.worker,
            self.ready,
            tuple(camera.name for camera in self.ingest.cameras),
            outlet.now_ns,
            self.execution,
            self._after_decision,
        )
        self.gap_ns = round(config.execution.gap_s * 1e9)
        if self.execution is not None and self.decider.episodes:
            self.execution.expect_gaps(self.gap_ns)
        release(on_jumps(self.node, self.decider.eras, self._on_jump))

    def _build_execution(self, outlet: Outlet) -> Outlet:
        """Build the execution; an outlet whose chunks it gets, too."""
        check_replan_rows(self.config, self.config.horizon)
        check_delay(self.config, self.config.horizon)
        if not self.config.execution.limited:
            self.node.get_logger().warning(
                "no limits.lower, limits.upper or limits.max_step is set: an output sends whatever"
                " the policy says"
            )
        execution = self.execution = Control(
            self.node,
            self.config.execution,
            self.ingest,
            outlet.now_ns,
            self.edge_log,
            self._decide,
            self.node.diagnostics.event,
        )
        self._stack.callback(execution.close)

        def publish(chunk: Any) -> None:
            outlet.chunk(chunk)
            execution.offer(chunk)

        return replace(outlet, chunk=publish)

    def close(self) -> None:
        """Release everything, last built first. Never raises; failures are logged."""
        self.stop_deciding(WrongStateError("request", expected="a configured node", got="none"))
        try:
            self._stack.close()
        except Exception:
            self.node.log_exception("teardown")
        self.edge_log.drop()

    def start_deciding(self) -> None:
        """Begin timed decisions, with the noise of decision 0 unless a capsule was restored."""
        self.active = True
        if not self.restored:
            self.worker.call(self.decider.restart, _JOB_LIMIT_S)
        self.statistics.restart()
        self._silence.broken(self._outlet.now_ns())
        # On the node's clock where that is simulated, so that a replay at another speed makes the
        # same decisions; else on the steady clock, which no time correction can stop.
        clock = self.node.get_clock()
        if not clock.ros_time_is_active:
            clock = self._steady
        if self.execution is not None:
            self.execution.start(clock)
        if self.config.rate_hz > 0.0:
            self._fresh.start(clock)
            self._timer = self.node.create_timer(1.0 / self.config.rate_hz, self._tick, clock=clock)

    def stop_deciding(self, error: FlashRTError) -> None:
        """End timed decisions; requests that wait for inputs fail with ``error``.

        A decision that runs is waited for (up to 10 s), so that nothing is published afterwards.
        Before that the safe action is taken.
        """
        if self.execution is not None:
            self.execution.stop()
        if self._timer is not None:
            self.node.destroy_timer(self._timer)
            self._timer = None
            self._fresh.stop()
        self.active = False
        self.waiters.fail_all(error)
        self.edge_log.drop("decisions")
        self.restored = False
        if not self.worker.wait_idle(_JOB_LIMIT_S):
            self.node.get_logger().error(f"a decision still runs after {_JOB_LIMIT_S:g} s")

    def check_progress(self) -> None:
        """Report that no timed decision ends, good or bad, and why. Call about once a second."""
        if self._timer is None:
            return
        episode = self.decider.episode
        planned_s = self.config.execution.replan_rows * self.config.action_dt_s
        planned_s = planned_s if episode is None else episode.seconds
        period_s = max(1.0 / self.config.rate_hz, planned_s)
        simulated = self.node.get_clock().ros_time_is_active
        state = (period_s, simulated, self.deciding, self.worker.waiting)
        found = self._silence.look(self._outlet.now_ns(), *state)
        if found is None:
            return
        silent_s, cause = found
        self.edge_log.problem(
            "decisions",
            f"no chunk is published for {silent_s:.0f} s: {cause}",
            f"none is made: {cause}",
            lasting=True,
        )

    @property
    def timed(self) -> bool:
        """Whether a timer makes decisions now."""
        return self._timer is not None

    def ready(self, not_before: dict[str, int]) -> bool:
        """Whether a decision could be made, with those named stamped at least so (ns)."""
        return not isinstance(
            self.ingest.choose(self._outlet.now_ns(), not_before), StaleInputError
        )

    async def run(self, work: Callable[[], Any], *, urgent: bool = False) -> Any:
        """Run ``work`` on the inference thread from an async service; return or raise its outcome.
        ``urgent``: before all that waits.

        Raises:
            BusyError: too many requests wait already.
        """
        future = Future(executor=self.node.executor)
        try:
            self.worker.submit(work, future.set_result, urgent=urgent)
        except BusyError:
            self.statistics.count("busy")
            raise
        outcome = await future
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    async def wait_for_inputs(self, not_before: dict[str, int], timeout_s: float) -> None:
        """Wait until every input is usable; see :func:`flashrt_ros.waiting.wait_for_inputs`."""
        await wait_for_inputs(self.waiters, self.ingest, self._outlet.now_ns, not_before, timeout_s)

    def view_engine(self) -> None:
        """Refresh what diagnostics shows of the engine."""
        self.engine_view = describe(self.session.engine)

    def _tick(self) -> None:
        """Queue a timed decision, unless the schedule, or the chunk under way, says when the next
        one begins.
        """
        episode, now_ns = self.decider.episode, self._outlet.now_ns()
        if episode is not None:
            if episode.overdue(now_ns, self.gap_ns):
                self.statistics.count("deadline_missed")
            if not episode.over(now_ns):
                self.looker.poll()
                return
            self.waiters.poll()  # a request that waits for this goes first
            if self.deciding:
                return
        if self.execution is not None and self.execution.paces(self.deciding):
            return
        if self.deciding:
            self._decide()  # that is missed: not to be waited for
        else:
            self._fresh.due(now_ns)

    def _arrived(self) -> None:
        """A message was taken: on the executor thread, whoever brings what is waited for."""
        self._fresh.poll()  # first: the robot waits for it
        if self.active and not self.deciding:
            self.looker.poll()
        self.waiters.poll()

    def _decide(self) -> None:
        """Queue a timed decision, unless the previous one is not done: then this one is missed."""
        if self.deciding:
            if not self.decider.episodes:
                self.statistics.count("deadline_missed")
            return
        now_ns = self._outlet.now_ns()
        if stopping := self.ingest.stopping(now_ns):
            self._silence.broken(self._outlet.now_ns())
            self.statistics.count("stopped")
            error = self.ingest.stale_error(stopping, now_ns)
            self._report_stale(error, "stopped")
            if self.execution is not None:
                self.execution.failed(error)
            return
        self.deciding = True
        continuation = None if self.execution is None else self.execution.continuation()
        executed = self.looker.executed()
        known = {"executed": executed, "era": self.decider.eras.now}
        work = partial(self.decider.decide, continuation=continuation, **known)
        self.worker.submit(partial(self.in_turn, work), self._after_decision, urgent=True)
        if self.execution is not None:
            self.execution.begun()

    def in_turn(self, work: Callable[[], Any]) -> Any:
        """Run ``work``, the decision that ``deciding`` announced; on the inference thread."""
        try:
            return work()
        finally:
            self.deciding = False

    def _after_decision(self, outcome: Outcome) -> None:
        self._silence.broken(self._outlet.now_ns())
        error = outcome.error
        if isinstance(error, ClockJumpError):
            return  # all that it was for is forgotten
        if error is not None and self.execution is not None:
            self.execution.failed(error)
        if error is None:
            self.edge_log.clear("decisions")
        elif isinstance(error, WrongStateError):
            return  # the node is being taken down
        elif isinstance(error, StaleInputError):
            word = "skewed" if error.skewed else "stale"
            self.statistics.count(word)
            self._report_stale(error, word)
        elif isinstance(error, FlashRTError):
            self.statistics.count("failed")
            text = f"no chunk is published: {in_node_terms(error, self.config)}"
            self.edge_log.problem("decisions", text, lasting=True)
        else:
            self.statistics.count("failed")
            self.node.log_exception("decision", error)

    def _report_stale(self, error: StaleInputError, word: str) -> None:
        kind = f"{word}: " + ", ".join(error.inputs)
        until = "; decisions go on when it is back" if word == "stopped" else ""
        self.edge_log.problem(
            "decisions", f"no chunk is published: {error}{until}", kind, lasting=True
        )

    def _on_refusal(self, item: Input, refusal: Refusal) -> None:
        key = f"input '{item.name}' ({item.topic}) refuses messages, {refusal.reason}"
        self.edge_log.problem(key, refusal.text)

    def _on_jump(self, jump: TimeJump) -> None:
        self.ingest.forget()
        self._fresh.cancel()
        if self.execution is not None:
            self.execution.forget()
        work = partial(forget, self.decider, self.session.engine)
        self.worker.submit(work, lambda _outcome: None, urgent=True)
        self.statistics.count("clock_jumps")
        self.node.get_logger().warning(told(jump, self._timer is not None))

    def _deliver(self) -> None:
        # Chunks before outcomes: a failure must not be forgotten for a chunk that came before it.
        if self.execution is not None:
            self.execution.deliver()
        self.worker.deliver()

    def _close_engine(self) -> None:
        self.worker.call(self.session.engine.close, _JOB_LIMIT_S)

    def _stop_decoders(self) -> None:
        for name in self.ingest.stop(_JOB_LIMIT_S):
            self.node.get_logger().error(f"a picture of camera '{name}' is still being decoded")

    def _stop_worker(self) -> None:
        if not self.worker.stop(_JOB_LIMIT_S):
            self.node.get_logger().error("the inference thread did not end; it is left behind")
