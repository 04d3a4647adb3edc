"""The prompt by a latched topic: whoever published last, even before the node was there, counts.

The same checks and refusals as ~/set_prompt. Of prompts that come faster than decisions only the
newest is set, and one job at a time waits for the inference thread, so that a flood of them delays
no decision by more than one change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, qos_policy_name_from_kind
from rclpy.serialization import deserialize_message
from std_msgs.msg import String

from flashrt_core.errors import FlashRTError, shorten
from flashrt_ros.edge_log import EdgeLog
from flashrt_ros.errors import BusyError, WrongStateError
from flashrt_ros.statistics import Statistics
from flashrt_ros.wording import in_node_terms, one_line
from flashrt_ros.worker import InferenceThread, Outcome

TOPIC = "~/prompt"
TAKEN, REFUSED = "prompts_taken", "prompts_refused"
_RETRY_S = 0.02  # while the inference thread has no room for another job


def latched_qos() -> QoSProfile:
    """Reliable, and the last message reaches who comes later. A new one: rclpy edits it."""
    return QoSProfile(
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
    )


class PromptTopic:
    """Subscribes to ~/prompt.

    Args:
        node: subscribes; its executor runs the callbacks.
        worker: sets the prompts.
        set_prompt: sets one, on that thread; FlashRTError where it is refused.
        statistics, edge_log: told what became of each.
        steady_clock: paces retries.
    """

    def __init__(
        self,
        node: Any,
        worker: InferenceThread,
        set_prompt: Callable[[str], None],
        statistics: Statistics,
        edge_log: EdgeLog,
        steady_clock: Any,
    ) -> None:
        self._node = node
        self._worker = worker
        self._set_prompt = set_prompt
        self._statistics = statistics
        self._edge_log = edge_log
        self._lock = threading.Lock()
        self._newest: str | None = None  # not yet handed to the session
        self._queued = False
        self._retry = node.create_timer(_RETRY_S, self._submit, clock=steady_clock)
        self._retry.cancel()
        self._subscription = node.create_subscription(
            String,
            TOPIC,
            self._on_message,
            latched_qos(),
            raw=True,
            event_callbacks=SubscriptionEventCallbacks(incompatible_qos=self._on_incompatible),
        )

    def close(self) -> None:
        """Leave the topic."""
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_timer(self._retry)

    def _on_message(self, data: bytes) -> None:
        try:
            text = deserialize_message(data, String).data
        except (RuntimeError, ValueError) as error:  # RMWError, bad UTF-8
            self._refuse(shorten(f"no String can be read: {one_line(error)} ({len(data)} bytes)"))
            return
        with self._lock:
            self._newest = text
        self._submit()

    def _submit(self) -> None:
        if not self._retry.is_canceled():
            self._retry.cancel()
        if self._queued:
            return
        try:
            self._worker.submit(self._work, self._done)
            self._queued = True
        except BusyError:
            self._retry.reset()
        except WrongStateError:
            return  # the node is being taken down

    def _work(self) -> bool:
        """On the inference thread: set what is newest now; whether there was anything."""
        with self._lock:
            text, self._newest = self._newest, None
        if text is not None:
            self._set_prompt(text)
        return text is not None

    def _done(self, outcome: Outcome) -> None:
        self._queued = False
        error = outcome.error
        if isinstance(error, WrongStateError):
            return
        if isinstance(error, FlashRTError):
            self._refuse(str(in_node_terms(error)))
        elif error is not None:
            self._node.log_exception(f"topic {TOPIC}", error)
        elif outcome.value:
            self._statistics.count(TAKEN)
            self._edge_log.clear(f"topic {TOPIC}")
        with self._lock:
            more = self._newest is not None
        if more:
            self._submit()

    def _refuse(self, why: str) -> None:
        self._statistics.count(REFUSED)
        self._edge_log.problem(f"topic {TOPIC}", f"the prompt stays as it was: {why}")

    def _on_incompatible(self, event: Any) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind)
        self._edge_log.problem(
            f"publisher on {TOPIC}",
            f"its QoS ({policy}) does not fit, nothing is received; publish reliable and transient"
            " local",
            lasting=True,
        )
