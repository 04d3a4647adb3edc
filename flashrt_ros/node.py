"""The policy node: sensor topics in, action chunks out, driven through the ROS 2 lifecycle.

This module holds the transitions and the process; what a configured node consists of is in
runtime.py, the services in services.py.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.executors import ExternalShutdownException
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.signals import SignalHandlerOptions

from flashrt_core.errors import CaptureError, ContractError, FlashRTError
from flashrt_ros import command_line
from flashrt_ros.autostart import Autostart
from flashrt_ros.declaration import NodeParameters
from flashrt_ros.diagnostics import Diagnostics
from flashrt_ros.edge_log import EdgeLog
from flashrt_ros.errors import WrongStateError
from flashrt_ros.executor import InputsFirst
from flashrt_ros.log_folder import ensure_log_folder
from flashrt_ros.msg import ActionChunk, DecisionTiming
from flashrt_ros.outlet import Outlet
from flashrt_ros.own_name import OwnName, Use
from flashrt_ros.parameters import NodeConfig
from flashrt_ros.runtime import Runtime
from flashrt_ros.services import ACTIVE, Services
from flashrt_ros.statistics import Statistics
from flashrt_ros.wording import in_node_terms, one_line

RCLError = rclpy_implementation.RCLError
_NAME = "policy"
# These are mistakes of a policy or of this package; no parameter repairs them.
_DEFECTS = (ContractError, CaptureError)
# So many failed rounds of the executor in a row mean that the executor itself is broken.
_SPIN_FAILURES = 20


class PolicyNode(LifecycleNode):
    """Lifecycle node around one policy.

    Attributes:
        runtime: what configure made; None while unconfigured.
        parameters, statistics, edge_log, own_name: shared with services and diagnostics.
        idle: parameter files and arguments that set nothing on this node.
        configure_failures, callback_errors, last_failure: for diagnostics.
    """

    def __init__(
        self, name: str = _NAME, *, idle: Sequence[command_line.Source] = (), **kwargs: Any
    ) -> None:
        super().__init__(name, **kwargs)
        self.idle = tuple(idle)
        self._config: NodeConfig | None = None
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.own_name = OwnName(self, steady, self._give_way)
        self.runtime: Runtime | None = None
        self.configure_failures = 0
        self.callback_errors = 0
        self.last_failure = ""
        self.statistics = Statistics()
        self.edge_log = EdgeLog(self.get_logger())
        self.parameters = NodeParameters(self, lambda: self.runtime is not None)
        qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
        options = QoSOverridingOptions.with_default_policies()
        chunks = self.create_lifecycle_publisher(
            ActionChunk, "~/action_chunk", qos, qos_overriding_options=options
        )
        timings = self.create_lifecycle_publisher(DecisionTiming, "~/decision_timing", 10)
        self._outlet = Outlet(
            open=lambda: self.state == ACTIVE,
            now_ns=lambda: self.get_clock().now().nanoseconds,
            chunk=chunks.publish,
            timing=timings.publish,
        )
        # Not `_services`: rclpy keeps its own list under that name.
        self._policy_services = Services(self)
        self.diagnostics = Diagnostics(self, steady)
        self._autostart = Autostart(self, steady)

    @property
    def state(self) -> str:
        """Label of the lifecycle state: one of the four primary states, or a transition."""
        return str(self._state_machine.current_state[1])

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the policy, subscribe to its inputs. FAILURE: mend the parameters, try again."""

        def configure() -> None:
            self.own_name.require()
            self._config = None
            try:
                config = self._config = self.parameters.read()
            finally:
                self._report_unknown()
            self.statistics.reset()
            self.runtime = Runtime(self, config, self._outlet, self.statistics, self.edge_log)
            self.last_failure = ""
            self.get_logger().info(
                f"{config.policy} ({config.preset}, {config.precision}) on {config.device}:"
                f" plan {self.runtime.fingerprint[:12]}"
            )

        result = self._guarded("configure", configure)
        if result != TransitionCallbackReturn.SUCCESS:
            self.configure_failures += 1
            self.own_name.release()
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let decisions out."""

        def activate() -> None:
            # Again: discovery may take longer than configure waits for it.
            self.own_name.refuse_others()
            self._configured().start_deciding()
            LifecycleNode.on_activate(self, state)
            self.own_name.tell(Use.ACTS)

        return self._guarded("activate", activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop deciding; when this returns nothing more is published."""

        def deactivate() -> None:
            error = WrongStateError("request", expected=f"the node {ACTIVE}", got="a deactivation")
            self._configured().stop_deciding(error)
            LifecycleNode.on_deactivate(self, state)
            self.own_name.tell(Use.HOLDS)

        return self._guarded("deactivate", deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release the policy, the device and the subscriptions."""
        return self._guarded("cleanup", self.teardown)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything, from any state."""
        return self._guarded("shutdown", self.teardown)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Clean up after a failed transition; the node ends unconfigured and can be used again."""
        return self._guarded("error handling", self.teardown)

    def teardown(self) -> None:
        """Release what configure made. The one way down; harmless when there is nothing."""
        runtime, self.runtime = self.runtime, None
        self.own_name.release()
        if runtime is not None:
            runtime.close()
        for entity in self._managed_entities:
            entity.on_deactivate(None)

    def close(self) -> None:
        """Leave the process in order: shut the lifecycle down, release everything."""
        if self.state in ("unconfigured", "inactive", "active"):
            self.trigger_shutdown()
        self.teardown()

    def log_exception(self, where: str, error: BaseException | None = None) -> None:
        """Log an unexpected exception with its traceback."""
        self.callback_errors += 1
        text = "".join(traceback.format_exception(error)) if error else traceback.format_exc()
        self.get_logger().error(f"unexpected exception in {where}:\n{text}")

    def _LifecycleNodeMixin__change_state(self, transition: int) -> TransitionCallbackReturn:  # noqa: N802
        """Answer an impossible transition with failure.

        Jazzy's rclpy raises instead, out of the service callback: its caller would wait for ever.
        The method is private to rclpy's mixin, hence its name; where a version has no such method,
        this one is never called.
        """
        try:
            return super()._LifecycleNodeMixin__change_state(transition)
        except RCLError as error:
            self.get_logger().error(one_line(error))
            return TransitionCallbackReturn.ERROR

    def _guarded(self, name: str, body: Callable[[], None]) -> TransitionCallbackReturn:
        """Run a transition. rclpy would swallow exceptions and fall over other return values."""
        try:
            body()
        except FlashRTError as found:
            error = in_node_terms(found, self._config)
            self.last_failure = str(error)
            if not isinstance(error, _DEFECTS):
                self.get_logger().error(f"{name} failed: {error}")
                return TransitionCallbackReturn.FAILURE
            self.log_exception(name)
            return TransitionCallbackReturn.ERROR
        except Exception as error:
            self.last_failure = f"{type(error).__name__} in {name}; see the log of the node"
            self.log_exception(name)
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _give_way(self, why: str) -> None:
        """Leave the robot to another node of this name, by the way of every deactivation."""
        self.last_failure = why
        self.get_logger().error(f"deactivated: {why}")
        self.trigger_deactivate()

    def _configured(self) -> Runtime:
        if self.runtime is None:
            raise WrongStateError("transition", expected="a configured node", got=self.state)
        return self.runtime

    def _report_unknown(self) -> None:
        name = self.get_fully_qualified_name()
        for source in self.idle:
            self.get_logger().warning(
                f"'{source.flag} {source.text}' sets no parameter of '{name}'"
                + ("; the top key of the file must be /**" if source.is_file else "")
            )
        for name, hint in self.parameters.unknown.items():
            self.get_logger().warning(
                f"parameter '{name}' is unknown and has no effect" + (f"; {hint}" if hint else "")
            )


def spin(node: PolicyNode, stop: threading.Event) -> int:
    """Serve callbacks until ``stop``, then shut the node down; the exit status.

    An exception in a callback is logged, not fatal.
    """
    executor = InputsFirst()
    executor.add_node(node)
    failures = 0
    try:
        while rclpy.ok() and not stop.is_set() and failures < _SPIN_FAILURES:
            try:
                executor.spin_once(timeout_sec=0.1)
                failures = 0
            except ExternalShutdownException:
                break
            except Exception:
                failures += 1
                node.log_exception("a callback")
        node.close()
    finally:
        executor.shutdown()
    return 1 if failures else 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; the exit status."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        command_line.check_files(sys.argv if args is None else args)
        ensure_log_folder(name="policy_node")
        # rclpy's own handlers would invalidate the context before the node could shut down.
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
        asked = command_line.read(sys.argv if args is None else args, _NAME)
        node = PolicyNode(parameter_overrides=list(asked.overrides), idle=asked.idle)
    except (
        FlashRTError,
        RuntimeError,
        ValueError,
        NameValidationException,
        ParameterException,
    ) as error:
        # A parameter file that does not parse, an impossible name, a QoS override that is none.
        print(f"policy_node: {one_line(error)}", file=sys.stderr)
        return 1
    try:
        return spin(node, stop)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
