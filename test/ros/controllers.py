"""The other end of the outputs: what controllers hear, and an arm that one of them moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.evaluation.follower import Follower
from flashrt_ros.stamps import to_ns

from .harness import JOINTS, Robot, wait_until

SECOND = 1_000_000_000


@dataclass
class Heard:
    """A message, and when it came (ns of the system clock)."""

    message: Any
    at_ns: int


class Controllers:
    """Subscribers of both outputs, on the robot's node."""

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self.trajectories: list[Heard] = []
        self.commands: list[Heard] = []
        node, qos = robot.node, QoSProfile(depth=100)
        self._subscriptions = [
            node.create_subscription(JointTrajectory, "trajectory", self._on_trajectory, qos),
            node.create_subscription(Float64MultiArray, "commands", self._on_command, qos),
        ]

    def wait_heard(self, kind: str, more: int, timeout_s: float = 10.0) -> None:
        """Wait for so many further messages of ``trajectories`` or ``commands``."""
        wanted = len(getattr(self, kind)) + more
        wait_until(
            lambda: len(getattr(self, kind)) >= wanted,
            timeout_s,
            lambda: f"{more} more {kind}\n{self._robot.target.log}",
        )

    def leave(self) -> None:
        """All controllers go."""
        while self._subscriptions:
            self._robot.node.destroy_subscription(self._subscriptions.pop())

    def _on_trajectory(self, message: Any) -> None:
        self.trajectories.append(Heard(message, self._robot.now_ns()))

    def _on_command(self, message: Any) -> None:
        self.commands.append(Heard(message, self._robot.now_ns()))


def positions(message: Any) -> np.ndarray:
    """[points, joints] float64 of a trajectory."""
    return np.array([list(point.positions) for point in message.points])


def stops(message: Any) -> bool:
    """Whether a trajectory is one point, at rest."""
    return len(message.points) == 1 and list(message.points[0].velocities) == [0.0] * len(JOINTS)


class ArmModel:
    """A kinematic arm under a joint_trajectory_controller, with exact time.

    A new trajectory counts from its header stamp, or from the next update where it is zero; one
    that lies wholly in the past is rejected. How it is followed is :class:`Follower`'s.

    Args:
        start: [joints] position.

    ``path`` holds (time in ns, position) of every update, ``taken`` (arrival, trajectory).
    """

    PERIOD_NS = SECOND // 100

    def __init__(self, start: np.ndarray) -> None:
        self._follower = Follower(start)
        self._incoming: list[tuple[int, Any]] = []
        self.path: list[tuple[int, np.ndarray]] = []
        self.taken: list[tuple[int, Any]] = []
        self.rejected: list[Any] = []

    @property
    def at(self) -> np.ndarray:
        """[joints], where it is."""
        return self._follower.at

    def receive(self, arrived_ns: int, message: Any) -> None:
        """A trajectory came."""
        assert tuple(message.joint_names) == JOINTS
        self._incoming.append((arrived_ns, message))

    def update(self, time_ns: int) -> None:
        """One period of the controller."""
        while self._incoming and self._incoming[0][0] <= time_ns:
            arrived_ns, message = self._incoming.pop(0)
            start_ns = to_ns(message.header.stamp) or time_ns
            times = np.array([start_ns + to_ns(p.time_from_start) for p in message.points])
            assert (np.diff(times) > 0).all(), "times must rise"
            if not self._follower.take(time_ns, times, positions(message)):
                self.rejected.append(message)
                continue
            self.taken.append((arrived_ns, message))
        self.path.append((time_ns, self._follower.update(time_ns)))


class SimulatedArm:
    """An :class:`ArmModel` on the robot's node: it gets trajectories and publishes joint states.

    Updates are 10 ms apart exactly, as in a controller with a real-time thread: a callback that
    comes late makes up for those that were due. ``heard`` holds all trajectories.
    """

    def __init__(self, robot: Robot, start: np.ndarray) -> None:
        self._robot = robot
        self._model = ArmModel(start)
        self.heard: list[Any] = []
        robot.connect({"joints": JointState})
        self.began_ns = self._next_ns = robot.now_ns()
        robot.node.create_subscription(JointTrajectory, "trajectory", self._on_trajectory, 100)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = robot.node.create_timer(0.01, self._on_timer, clock=steady)

    def close(self) -> None:
        """Stop moving."""
        self._robot.node.destroy_timer(self._timer)

    def _on_trajectory(self, message: Any) -> None:
        self.heard.append(message)
        self._model.receive(self._robot.now_ns(), message)

    def _on_timer(self) -> None:
        now_ns = self._robot.now_ns()
        while self._next_ns <= now_ns:
            self._model.update(self._next_ns)
            self._next_ns += ArmModel.PERIOD_NS
        state = JointState(name=list(JOINTS), position=self._model.at.tolist())
        self._robot.publish("joints", state, now_ns)


def followed(
    messages: Sequence[Any], start: np.ndarray, began_ns: int, transport_ns: int
) -> ArmModel:
    """What an arm does with these trajectories where each takes ``transport_ns`` to come: the same
    whatever else the machine of the test has to do.
    """
    model = ArmModel(start)
    for message in messages:
        model.receive(to_ns(message.header.stamp) + transport_ns, message)
    last = messages[-1]
    end_ns = to_ns(last.header.stamp) + to_ns(last.points[-1].time_from_start) + SECOND
    for time_ns in range(began_ns, end_ns, ArmModel.PERIOD_NS):
        model.update(time_ns)
    return model
