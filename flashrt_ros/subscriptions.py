"""The subscription of one input: raw messages, so that one that cannot be read is seen and counted.

rclpy drops such a message before any callback; here the bytes come in and are read by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState

from flashrt_core.errors import OptionError, shorten
from flashrt_ros.edge_log import EdgeLog
from flashrt_ros.image_view import view_image
from flashrt_ros.ingest import Ingest
from flashrt_ros.inputs import Input, Refusal
from flashrt_ros.sensors import CameraInput
from flashrt_ros.wording import one_line

# Images and joint states that wait for the executor. Joint states are small and come often: five
# would be lost by every wait for a core of 50 ms at 100 Hz.
_IMAGES, _STATES = 5, 20


def sensor_qos(depth: int = _IMAGES) -> QoSProfile:
    """The sensor data profile, best effort, so deep. Always a new one: rclpy edits it."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth, reliability=ReliabilityPolicy.BEST_EFFORT
    )


def subscribe(
    node: Any,
    item: Input,
    ingest: Ingest,
    now_ns: Callable[[], int],
    accepted: Callable[[], None],
    edge_log: EdgeLog,
) -> Any:
    """Subscribe ``node`` to the topic of ``item``.

    Args:
        node: subscribes; its executor runs the callbacks.
        item: gets the messages.
        ingest: of ``item``; told of refusals.
        now_ns: the node's clock.
        accepted: called after each message that was taken.
        edge_log: told of publishers that do not fit.

    Raises:
        OptionError: the topic name or a QoS override is none.
    """
    kind = _message_type(item)

    def on_message(data: bytes) -> None:
        arrived_ns = now_ns()
        try:
            message = _read(data, kind)
        except (RuntimeError, ValueError, OverflowError) as error:  # RMWError, bad UTF-8
            reason = shorten(f"{one_line(error)} ({len(data)} bytes)")
            ingest.refuse(item, Refusal("malformed", f"no {kind.__name__} can be read: {reason}"))
            return
        if ingest.offer(item, message, arrived_ns):
            accepted()

    def create(**events: Any) -> Any:
        return node.create_subscription(
            kind,
            item.topic,
            on_message,
            sensor_qos(_IMAGES if isinstance(item, CameraInput) else _STATES),
            raw=True,
            event_callbacks=_events(node, item, edge_log, **events),
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )

    def on_lost(event: Any) -> None:
        item.counters.lost += event.total_count_change

    try:
        try:
            return create(message_lost=on_lost)
        except UnsupportedEventTypeError:  # some middlewares do not count losses
            return create()
    except (NameValidationException, ParameterException, RuntimeError, ValueError) as error:
        # What rclpy raises for topic names and for types and values of QoS overrides.
        raise OptionError(
            f"topic '{item.topic}' of input '{item.name}'",
            got=one_line(error),
            remedy=f"check parameter '{_topic_parameter(item)}' and qos_overrides of that topic",
        ) from error


def _events(node: Any, item: Input, edge_log: EdgeLog, **events: Any) -> SubscriptionEventCallbacks:
    """Callbacks for publishers that do not fit, with further ``events``."""

    def on_incompatible(what: str) -> None:
        item.counters.incompatible += 1
        edge_log.problem(
            f"publisher on '{item.topic}'",
            f"its {what} does not fit the subscription of input '{item.name}', nothing is received;"
            f" set qos_overrides.{node.resolve_topic_name(item.topic)}.subscription.*, or the"
            " publisher",
            lasting=True,  # the event comes once a publisher, however long that one stays
        )

    return SubscriptionEventCallbacks(
        incompatible_qos=lambda event: on_incompatible(
            f"QoS ({qos_policy_name_from_kind(event.last_policy_kind)})"
        ),
        incompatible_type=lambda _: on_incompatible("message type"),
        **events,
    )


def _read(data: bytes, kind: Any) -> Any:
    view = view_image(data) if kind is Image else None
    return deserialize_message(data, kind) if view is None else view


def _message_type(item: Input) -> Any:
    if not isinstance(item, CameraInput):
        return JointState
    return CompressedImage if item.config.compressed else Image


def _topic_parameter(item: Input) -> str:
    return f"camera.{item.name}.topic" if isinstance(item, CameraInput) else "joints.topic"
