"""The other end of the node: lifecycle, services, chunks and diagnostics, from another process.

Callbacks run in a thread of their own and only store what came; everything else is called from the
thread that replays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from flashrt_core.errors import FlashRTError
from flashrt_ros.msg import ActionChunk, DecisionTiming
from flashrt_ros.srv import Decide, DropCapsule, ForkSession, RestoreCapsule, SaveCapsule
from flashrt_ros.stamps import SECOND, duration_message, time_message

from .records import ChunkRecord, TimingRecord


class NodeCallError(FlashRTError):
    """A service of the node is not there, did not answer in time, or refused."""

    code = 90


class PolicyClient:
    """Talks to the node ``name`` (absolute, ``/policy``); use as a context manager.

    Attributes:
        node: the rclpy node, for publishers.
        chunks, timings: what arrived, in order; appended by the callback thread.
        watch: called while a service is waited for; raises when waiting has become pointless.
        diagnostics: latest values [status name -> key -> text]; ``diagnostics_count`` arrays came,
            the last at ``diagnostics_ns`` (monotonic).
    """

    def __init__(self, name: str = "/policy", domain: int | None = None) -> None:
        self.name = name
        self.watch: Callable[[], None] = lambda: None
        self.chunks: list[ChunkRecord] = []
        self.timings: list[TimingRecord] = []
        self.diagnostics: dict[str, dict[str, str]] = {}
        self.diagnostics_count = 0
        self.diagnostics_ns = 0
        self._context = Context()
        self._context.init(args=[], domain_id=domain)
        self.node = Node(
            "flashrt_replay",
            context=self._context,
            use_global_arguments=False,
            start_parameter_services=False,
            enable_rosout=False,
        )
        self._clients: dict[str, Any] = {}
        reliable = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
        subscribe = self.node.create_subscription
        subscribe(ActionChunk, f"{name}/action_chunk", self._on_chunk, reliable)
        subscribe(DecisionTiming, f"{name}/decision_timing", self._on_timing, reliable)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, reliable)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name="replay-callbacks", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown(timeout_sec=2.0)
        self._thread.join(timeout=5.0)
        self.node.destroy_node()
        self._context.try_shutdown()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            return

    def _on_chunk(self, message: Any) -> None:
        self.chunks.append(ChunkRecord.of(message, time.monotonic_ns()))

    def _on_timing(self, message: Any) -> None:
        self.timings.append(TimingRecord.of(message, time.monotonic_ns()))

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            if status.hardware_id == self.name:
                self.diagnostics[status.name] = {v.key: v.value for v in status.values}
        self.diagnostics_ns = time.monotonic_ns()
        self.diagnostics_count += 1

    def wait_for_diagnostics(self, more: int = 1, timeout_s: float = 3.0) -> bool:
        """Wait until ``more`` further arrays came; whether they did."""
        wanted = self.diagnostics_count + more
        limit = time.monotonic() + timeout_s
        while self.diagnostics_count < wanted and time.monotonic() < limit:
            time.sleep(0.02)
        return self.diagnostics_count >= wanted

    def call(self, kind: Any, name: str, request: Any, timeout_s: float = 10.0) -> Any:
        """Call service ``~/<name>`` and return its response.

        Raises:
            NodeCallError: the service is absent or silent for ``timeout_s``.
        """
        full = f"{self.name}/{name}"
        if full not in self._clients:
            self._clients[full] = self.node.create_client(kind, full)
        client = self._clients[full]
        if not client.wait_for_service(timeout_sec=timeout_s):
            raise NodeCallError(f"service {full}", expected=f"a server within {timeout_s:g} s")
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        limit = time.monotonic() + timeout_s
        while not done.wait(0.25):
            self.watch()
            if time.monotonic() > limit:
                client.remove_pending_request(future)
                raise NodeCallError(f"service {full}", expected=f"an answer within {timeout_s:g} s")
        return future.result()

    def checked(self, kind: Any, name: str, request: Any, timeout_s: float = 10.0) -> Any:
        """As :meth:`call`, for services that answer with ``error_code``.

        Raises:
            NodeCallError: also when the node refuses; its ``error_msg`` is the message.
        """
        response = self.call(kind, name, request, timeout_s)
        if response.error_code:
            raise NodeCallError(
                f"{self.name}/{name} refused",
                got=f"error {response.error_code}: {response.error_msg}",
            )
        return response

    def wait_for_services(self, timeout_s: float) -> bool:
        """Whether the lifecycle services of the node are there within ``timeout_s``."""
        full = f"{self.name}/change_state"
        if full not in self._clients:
            self._clients[full] = self.node.create_client(ChangeState, full)
        return bool(self._clients[full].wait_for_service(timeout_sec=timeout_s))

    def state(self) -> int:
        """Lifecycle state of the node, a ``lifecycle_msgs/State`` constant."""
        return int(self.call(GetState, "get_state", GetState.Request()).current_state.id)

    def change_state(self, transition: int, timeout_s: float) -> bool:
        """Ask for a ``lifecycle_msgs/Transition``; whether it succeeded."""
        request = ChangeState.Request()
        request.transition.id = transition
        return bool(self.call(ChangeState, "change_state", request, timeout_s).success)

    def configure(self, timeout_s: float = 120.0) -> bool:
        """Configure; loading weights may take a while."""
        return self.change_state(Transition.TRANSITION_CONFIGURE, timeout_s)

    def activate(self) -> bool:
        """Activate."""
        return self.change_state(Transition.TRANSITION_ACTIVATE, 20.0)

    def deactivate(self) -> bool:
        """Deactivate, when active."""
        if self.state() != State.PRIMARY_STATE_ACTIVE:
            return True
        return self.change_state(Transition.TRANSITION_DEACTIVATE, 20.0)

    def decide(
        self,
        stamps: Sequence[tuple[str, int]] = (),
        *,
        timeout_s: float = 1.0,
        reuse_context: bool = False,
        session: str = "main",
    ) -> Any:
        """Call ``~/decide`` and return its response, whatever its ``error_code``.

        Args:
            stamps: (input name, stamp in ns) that the decision must not be older than.
            timeout_s: how long the node waits for them.
            reuse_context: act on the retained context.
            session: name of the session.
        """
        request = Decide.Request(session=session, reuse_context=reuse_context)
        for name, stamp_ns in stamps:
            request.inputs.append(name)
            request.not_before.append(time_message(stamp_ns))
        request.timeout = duration_message(round(timeout_s * SECOND))
        return self.call(Decide, "decide", request, timeout_s + 20.0)

    def save_capsule(self, name: str, session: str = "main") -> None:
        """Save the state of ``session``; NodeCallError when the node refuses."""
        self.checked(SaveCapsule, "save_capsule", SaveCapsule.Request(session=session, name=name))

    def restore_capsule(self, name: str, session: str = "main") -> None:
        """Restore ``name`` into ``session``; NodeCallError when the node refuses."""
        request = RestoreCapsule.Request(session=session, name=name)
        self.checked(RestoreCapsule, "restore_capsule", request)

    def drop_capsule(self, name: str) -> None:
        """Free the capsule ``name``; NodeCallError when the node refuses."""
        self.checked(DropCapsule, "drop_capsule", DropCapsule.Request(name=name))

    def fork_session(self, name: str) -> None:
        """A session ``name`` as main is now; NodeCallError when the node refuses."""
        self.checked(ForkSession, "fork_session", ForkSession.Request(new_session=name))

    def drop_session(self, name: str) -> None:
        """End the session ``name``; NodeCallError when the node refuses."""
        self.checked(DropCapsule, "drop_capsule", DropCapsule.Request(name=name, session=True))
