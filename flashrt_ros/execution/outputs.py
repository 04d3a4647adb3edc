"""Commands as messages: trajectories for a joint_trajectory_controller, values for forward ones."""

from __future__ import annotations

import array
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rclpy.duration import Duration
from rclpy.exceptions import NameValidationException
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float64MultiArray, Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from flashrt_core.errors import OptionError
from flashrt_ros.execution.controller_state import ControllerState
from flashrt_ros.execution.parameters import ZERO_STAMP, ExecutionConfig
from flashrt_ros.stamps import SECOND, duration_message, time_message
from flashrt_ros.wording import one_line


class Outputs:
    """The publishers of a configuration.

    They are no lifecycle publishers: the machine sends nothing while the node is not active, and
    its last word, the safe action, belongs to the transition that ends that state.

    Args:
        node: publishes.
        config: topics and names.

    Raises:
        OptionError: a topic name is none.
    """

    def __init__(self, node: Any, config: ExecutionConfig) -> None:
        self._node = node
        self._config = config
        self._publishers: dict[str, Any] = {}
        self._heard_s: dict[str, float] = {}  # when a topic last had a subscriber
        self._state: ControllerState | None = None
        try:
            if config.trajectory_topic:
                self._create(JointTrajectory, "output.trajectory.topic", config.trajectory_topic)
            if config.commands_topic:
                self._create(Float64MultiArray, "output.commands.topic", config.commands_topic)
            if config.controller_state_topic:
                self._state = ControllerState(
                    node, config.controller_state_topic, config.controller_state_type
                )
        except OptionError:
            self.close()
            raise

    def command(self, now_ns: int, values: np.ndarray) -> None:
        """Send the action that is due."""
        self._publishers["output.commands.topic"].publish(Float64MultiArray(data=_doubles(values)))

    def trajectory(self, now_ns: int, points: Sequence[tuple[int, np.ndarray]]) -> None:
        """Send positions to reach at their times."""
        self._send(
            now_ns,
            [
                JointTrajectoryPoint(
                    positions=_doubles(position), time_from_start=duration_message(time_ns - now_ns)
                )
                for time_ns, position in points
            ],
        )

    def stop(self, now_ns: int, position: np.ndarray) -> None:
        """Send one point: there, at rest, within the configured time."""
        point = JointTrajectoryPoint(
            positions=_doubles(position),
            velocities=_doubles(np.zeros(len(position))),
            time_from_start=duration_message(round(self._config.stop_within_s * SECOND)),
        )
        self._send(now_ns, [point])

    def restart(self) -> None:
        """Count the time without a subscriber from now on."""
        self._heard_s = dict.fromkeys(self._publishers, time.monotonic())
        if self._state is not None:
            self._state.restart()

    def abandoned(self) -> str:
        """Which output had no subscriber, or which controller's state was silent, for longer than
        is allowed, in words; else "".
        """
        allowed_s, now_s = self._config.controller_timeout_s, time.monotonic()
        if not allowed_s:
            return ""
        for key, publisher in self._publishers.items():
            if publisher.get_subscription_count():
                self._heard_s[key] = now_s
            elif now_s - self._heard_s.get(key, now_s) > allowed_s:
                return f"no controller listens on {publisher.topic_name} for {allowed_s:g} s"
        if self._state is not None and self._state.silent_s() > allowed_s:
            return f"the controller's state ({self._state.topic}) is silent for {allowed_s:g} s"
        return ""

    def wait_sent(self, timeout_s: float) -> None:
        """Wait until controllers have what was sent: the node may be about to go."""
        for publisher in self._publishers.values():
            publisher.wait_for_all_acked(Duration(seconds=timeout_s))

    def close(self) -> None:
        """Destroy the publishers and the subscription."""
        if self._state is not None:
            self._state.close()
            self._state = None
        while self._publishers:
            self._node.destroy_publisher(self._publishers.popitem()[1])

    def _create(self, kind: Any, parameter: str, topic: str) -> None:
        qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
        try:
            self._publishers[parameter] = self._node.create_publisher(kind, topic, qos)
        except (NameValidationException, RuntimeError, ValueError) as error:
            raise OptionError(f"parameter '{parameter}'", got=one_line(error)) from error

    def _send(self, now_ns: int, points: list[Any]) -> None:
        zero = self._config.trajectory_stamp == ZERO_STAMP
        self._publishers["output.trajectory.topic"].publish(
            JointTrajectory(
                header=Header(stamp=time_message(0 if zero else now_ns)),
                joint_names=list(self._config.names),
                points=points,
            )
        )


def _doubles(values: np.ndarray) -> array.array[float]:
    return array.array("d", np.ascontiguousarray(values, np.float64).tobytes())
