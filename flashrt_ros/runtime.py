"""Everything that exists from configure to cleanup, and the one way to take it down.

Built in order, released in reverse order by one exit stack: a configure that fails half-way, a
cleanup, a shutdown and an error all take the same path.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rclpy.clock import Clock, ClockType, JumpThreshold, TimeJump
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.task import Future
from sensor_msgs.msg import CompressedImage, Image, JointState

from flashrt_core import images
from flashrt_core.engine import describe
from flashrt_core.errors import FlashRTError, OptionError
from flashrt_core.load import LoadOptions, load
from flashrt_core.session import Session
from flashrt_ros.decider import Decider, Outlet
from flashrt_ros.edge_log import EdgeLog
from flashrt_ros.errors import BusyError, RequestTimeoutError, StaleInputError, WrongStateError
from flashrt_ros.ingest import Ingest
from flashrt_ros.inputs import AHEAD_NS, CameraInput, Input, Refusal
from flashrt_ros.parameters import NodeConfig
from flashrt_ros.statistics import Statistics
from flashrt_ros.waiting import Waiters
from flashrt_ros.worker import InferenceThread, Outcome

_JOB_LIMIT_S = 10.0  # how long a transition waits for a decision that runs


def sensor_qos() -> QoSProfile:
    """The sensor data profile, best effort, five deep. Always a new one: rclpy edits it."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=5, reliability=ReliabilityPolicy.BEST_EFFORT
    )


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
        self.deciding = False  # a timed decision is queued or runs
        self.restored = False  # a capsule was restored since the last deactivate
        self._outlet = outlet
        self._timer: Any = None
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
        for item in self.ingest.inputs.values():
            release(self.node.destroy_subscription, self._subscribe(item))
        # Last, because it takes longest: mistakes above show at once.
        progress = LoadLog(self.node.get_logger().info)
        self.session: Session = self.worker.call(lambda: load(load_options(config), progress))
        release(self._close_engine)
        self.view_engine()
        self.fingerprint = self.session.fingerprint.digest
        self.decider = Decider(self.session, self.ingest, config, self._outlet, self.statistics)
        jump = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-AHEAD_NS), on_clock_change=True
        )
        handle = self.node.get_clock().create_jump_callback(jump, post_callback=self._on_jump)
        release(handle.unregister)

    def close(self) -> None:
        """Release everything, last built first. Never raises; failures are logged."""
        self.stop_deciding(WrongStateError("request", expected="a configured node", got="none"))
        try:
            self._stack.close()
        except Exception:
            self.node.log_exception("teardown")

    def start_deciding(self) -> None:
        """Begin timed decisions, with the noise of decision 0 unless a capsule was restored."""
        if not self.restored:
            self.worker.call(self.decider.restart, _JOB_LIMIT_S)
        if self.config.rate_hz > 0.0:
            # On the node's clock where that is simulated, so that a replay at another speed makes
            # the same decisions; else on the steady clock, which no time correction can stop.
            clock = self.node.get_clock()
            if not clock.ros_time_is_active:
                clock = self._steady
            self._timer = self.node.create_timer(1.0 / self.config.rate_hz, self._tick, clock=clock)

    def stop_deciding(self, error: FlashRTError) -> None:
        """End timed decisions; requests that wait for inputs fail with ``error``.

        A decision that runs is waited for (up to 10 s), so that nothing is published afterwards.
        """
        if self._timer is not None:
            self.node.destroy_timer(self._timer)
            self._timer = None
        self.waiters.fail_all(error)
        self.edge_log.clear("decisions")
        self.restored = False
        if not self.worker.wait_idle(_JOB_LIMIT_S):
            self.node.get_logger().error(f"a decision still runs after {_JOB_LIMIT_S:g} s")

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` on the inference thread from an async service; return or raise its outcome.

        Raises:
            BusyError: too many requests wait already.
        """
        future = Future(executor=self.node.executor)
        try:
            self.worker.submit(work, future.set_result)
        except BusyError:
            self.statistics.count("busy")
            raise
        outcome = await future
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    async def wait_for_inputs(self, not_before: dict[str, int], timeout_s: float) -> None:
        """Wait until every input is usable, and those named are stamped at least so (ns).

        Raises:
            RequestTimeoutError: a named input did not come in time.
            StaleInputError: all named came, but another is missing or too old.
        """
        now_ns, ingest = self._outlet.now_ns, self.ingest

        def behind() -> list[str]:
            stamps = {name: ingest.inputs[name].newest_stamp_ns() for name in not_before}
            return [n for n, least in not_before.items() if (s := stamps[n]) is None or s < least]

        def late() -> FlashRTError:
            if names := behind():
                return RequestTimeoutError(
                    f"inputs {', '.join(names)}",
                    expected=f"a stamp not before the one asked for, within {timeout_s:g} s",
                    got="none",
                )
            return ingest.stale_error(ingest.unusable(now_ns(), not_before), now_ns())

        await self.waiters.wait(lambda: not ingest.unusable(now_ns(), not_before), late, timeout_s)

    def view_engine(self) -> None:
        """Refresh what diagnostics shows of the engine."""
        self.engine_view = describe(self.session.engine)

    def _subscribe(self, item: Input) -> Any:
        kind = JointState
        if isinstance(item, CameraInput):
            kind = CompressedImage if item.config.compressed else Image

        def on_message(message: Any) -> None:
            if self.ingest.offer(item, message, self._outlet.now_ns()):
                self.waiters.poll()

        def on_lost(event: Any) -> None:
            item.counters.lost += event.total_count_change

        def subscribe(**events: Any) -> Any:
            return self.node.create_subscription(
                kind,
                item.topic,
                on_message,
                sensor_qos(),
                event_callbacks=SubscriptionEventCallbacks(
                    incompatible_qos=lambda event: self._on_incompatible(
                        item, f"QoS ({qos_policy_name_from_kind(event.last_policy_kind)})"
                    ),
                    incompatible_type=lambda _: self._on_incompatible(item, "message type"),
                    **events,
                ),
                qos_overriding_options=QoSOverridingOptions.with_default_policies(),
            )

        try:
            try:
                return subscribe(message_lost=on_lost)
            except UnsupportedEventTypeError:  # some middlewares do not count losses
                return subscribe()
        except (NameValidationException, ParameterException, RuntimeError) as error:
            # What rclpy raises for topic names and for types and values of QoS overrides.
            raise OptionError(
                f"topic '{item.topic}' of input '{item.name}'", got=" ".join(str(error).split())
            ) from error

    def _tick(self) -> None:
        """Queue a timed decision, unless the previous one is not done: then this one is missed."""
        if self.deciding:
            self.statistics.count("deadline_missed")
            return
        self.deciding = True
        try:
            self.worker.submit(self._timed_decision, self._after_decision)
        except BusyError:
            self.deciding = False
            self.statistics.count("busy")

    def _timed_decision(self) -> None:
        try:
            self.decider.decide()
        finally:
            self.deciding = False

    def _after_decision(self, outcome: Outcome) -> None:
        error = outcome.error
        if error is None:
            self.edge_log.clear("decisions")
        elif isinstance(error, WrongStateError):
            return  # the node is being taken down
        elif isinstance(error, StaleInputError):
            self.statistics.count("stale")
            kind = "stale: " + ", ".join(error.inputs)
            self.edge_log.problem("decisions", f"no chunk is published: {error}", kind)
        elif isinstance(error, FlashRTError):
            self.statistics.count("failed")
            self.edge_log.problem("decisions", f"no chunk is published: {error}")
        else:
            self.statistics.count("failed")
            self.node.log_exception("decision", error)

    def _on_refusal(self, item: Input, refusal: Refusal) -> None:
        key = f"input '{item.name}' ({item.topic}) refuses messages, {refusal.reason}"
        self.edge_log.problem(key, refusal.text)

    def _on_incompatible(self, item: Input, what: str) -> None:
        item.counters.incompatible += 1
        self.edge_log.problem(
            f"publisher on '{item.topic}'",
            f"its {what} does not fit the subscription of input '{item.name}', nothing is received;"
            f" set qos_overrides.{self.node.resolve_topic_name(item.topic)}.subscription.*, or the"
            " publisher",
        )

    def _on_jump(self, jump: TimeJump) -> None:
        self.ingest.forget()
        self.statistics.count("clock_jumps")
        self.node.get_logger().warning(
            f"the node's clock jumped by {jump.delta.nanoseconds * 1e-9:.3f} s; samples so far are"
            " forgotten"
        )

    def _deliver(self) -> None:
        self.worker.deliver()

    def _close_engine(self) -> None:
        self.worker.call(self.session.engine.close, _JOB_LIMIT_S)

    def _stop_worker(self) -> None:
        if not self.worker.stop(_JOB_LIMIT_S):
            self.node.get_logger().error("the inference thread did not end; it is left behind")


class LoadLog:
    """Says every few seconds how far a checkpoint file is read. Silent for a quick one."""

    def __init__(self, say: Callable[[str], object], every_s: float = 2.0) -> None:
        self._say = say
        self._every_s = every_s
        self._last = time.monotonic()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Progress of one step, in bytes."""
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            self._say(f"checkpoint: {step} {done / 1e9:.1f} of {total / 1e9:.1f} GB")


def load_options(config: NodeConfig) -> LoadOptions:
    """What to load for a node configuration. Zero and "" mean "the policy's own"."""
    return LoadOptions(
        policy=config.policy,
        preset=config.preset,
        checkpoint=config.checkpoint,
        device=config.device,
        precision=config.precision,
        views=tuple(camera.slot for camera in config.cameras),
        state_dim=len(config.joints_names),
        action_dim=len(config.action_names),
        norm_stats=Path(config.norm_stats) if config.norm_stats else None,
        tokenizer=Path(config.tokenizer) if config.tokenizer else None,
        delta_actions=tuple(name in config.action_relative for name in config.action_names)
        if config.action_relative
        else None,
        numerics=config.numerics,
        extra={} if config.state_in_prompt else {"state_in_prompt": False},
        horizon=config.horizon or None,
        steps=config.steps or None,
        prompt_buckets=config.prompt_buckets or None,
        seed=config.seed,
        prompt=config.prompt,
        max_sessions=config.max_sessions,
        capsule_slots=config.capsule_slots,
        threads=config.threads,
    )
