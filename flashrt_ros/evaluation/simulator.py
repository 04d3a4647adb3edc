"""A task's robot as a process of its own, in real time: sensors out, trajectories in.

``python -m flashrt_ros.evaluation.simulator`` with the fields of :class:`SimulatorOptions` as JSON
prints ``{"ready": true}`` and takes orders on standard input, each a line of JSON that is answered
by one:

``{"start": SEED, "frames_hz": 0}``  an episode; the world stands still until the first trajectory,
                                     and an outcome is printed when the episode is over; before
                                     that ``{"time_s": NOW}`` now and then
``{"frames": FILE, "width": W, "height": H}``  pictures of the last episode, as .npy

Time is simulated and only ever goes on, episode or not; it follows the wall clock, and where this
process is late, it is late for good.
"""

from __future__ import annotations

import array
import json
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header, String
from trajectory_msgs.msg import JointTrajectory

from flashrt_core.errors import FlashRTError
from flashrt_core.evaluation.rollout import SUBSTEP_S, Outcome, outcome
from flashrt_core.evaluation.task import Episode, Task, find_task
from flashrt_core.terminal import run_command
from flashrt_ros.prompt_topic import latched_qos
from flashrt_ros.stamps import SECOND, time_message, to_ns

from .follower import Follower

PERIOD_NS = round(SUBSTEP_S * SECOND)
_SIGN_S = 10.0  # from one sign that an episode goes on to the next
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SimulatorOptions:
    """What runs, and on which topics.

    Attributes:
        task: folder of its package.
        cameras: view slot -> topic of its raw images.
        joints, trajectory, controller_state, prompt: topics. The controller's state is a
            sensor_msgs/JointState of its set points.
        camera_hz: observations a second, images and joints of one moment.
    """

    task: str
    cameras: dict[str, str]
    joints: str
    trajectory: str
    controller_state: str
    prompt: str
    camera_hz: float = 25.0


@dataclass
class _Run:
    """An episode and what is noted of it."""

    episode: Episode
    seed: int
    frames_steps: int
    follower: Follower
    began: bool = False
    told: bool = False
    trajectories: int = 0
    rejected: int = 0
    wall_s: float = 0.0
    states: list[Array] = field(default_factory=list)
    targets: list[Array] = field(default_factory=list)


class Simulator:
    """Publishes the sensors of a task on a node, and moves its robot.

    Args:
        node: publishes.
        task: starts episodes.
        options: topics and rates.
    """

    def __init__(self, node: Node, task: Task, options: SimulatorOptions) -> None:
        self._task = task
        reliable = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
        best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        publisher = node.create_publisher
        self._clock = publisher(Clock, "/clock", best_effort)
        self._joints = publisher(JointState, options.joints, reliable)
        self._controller = publisher(JointState, options.controller_state, reliable)
        self._prompt = publisher(String, options.prompt, latched_qos())
        self._images = {
            slot: publisher(Image, topic, reliable) for slot, topic in options.cameras.items()
        }
        node.create_subscription(
            JointTrajectory, options.trajectory, self._incoming, QoSProfile(depth=10)
        )
        self._observe_every = max(1, round(1.0 / (options.camera_hz * SUBSTEP_S)))
        self._waiting: list[Any] = []
        self._run: _Run | None = None
        self._steps = 0
        self._now_ns = time.time_ns() // PERIOD_NS * PERIOD_NS

    def start(self, seed: int, frames_hz: float) -> dict[str, Any]:
        """Begin an episode; its instruction."""
        if self._run is not None:
            self._run.episode.close()
        episode = self._task.start(seed)
        observation = episode.observation()
        every = round(1.0 / (frames_hz * SUBSTEP_S)) if frames_hz else 0
        joints = np.zeros(0) if observation.state is None else observation.state
        self._run = _Run(episode, seed, every, Follower(joints))
        self._waiting.clear()
        self._prompt.publish(String(data=episode.instruction))
        return {"instruction": episode.instruction}

    def frames(self, path: str, width: int, height: int) -> dict[str, Any]:
        """Write pictures [n, height, width, 3] uint8 of the states that were kept."""
        pictures = []
        if (run := self._run) is not None:
            for state in run.states:
                run.episode.restore(state)
                pictures.append(run.episode.picture(width, height))
        np.save(path, np.array(pictures, np.uint8))
        return {"frames": len(pictures)}

    @property
    def time_s(self) -> float | None:
        """Simulated time of the episode that goes on; None where none does."""
        run = self._run
        return run.episode.time_s if run is not None and run.began and not run.told else None

    def step(self) -> dict[str, Any] | None:
        """One period of :data:`PERIOD_NS`; what became of the episode, once it is over."""
        self._clock.publish(Clock(clock=time_message(self._now_ns)))
        run, found = self._run, None
        if run is not None:
            self._take(run)
            target = run.follower.update(self._now_ns)
            if self._steps % self._observe_every == 0:
                self._observe(run.episode)
            self._send_joints(self._controller, target)
            if run.began and not run.told:
                self._advance(run, target)
                if run.episode.done:
                    run.told, found = True, self._outcome(run)
        self._steps += 1
        self._now_ns += PERIOD_NS
        return found

    def _advance(self, run: _Run, target: Array) -> None:
        if run.frames_steps and len(run.targets) % run.frames_steps == 0:
            run.states.append(run.episode.save())
        run.targets.append(target)
        run.episode.advance(target, SUBSTEP_S)
        if run.frames_steps and run.episode.done:
            run.states.append(run.episode.save())

    def _incoming(self, message: Any) -> None:
        self._waiting.append(message)

    def _take(self, run: _Run) -> None:
        """Take the trajectories that have come, as a controller does at its update."""
        for message in self._waiting:
            order = [list(message.joint_names).index(name) for name in self._task.joint_names]
            start_ns = to_ns(message.header.stamp) or self._now_ns
            times = [start_ns + to_ns(point.time_from_start) for point in message.points]
            rows = np.array([list(point.positions) for point in message.points])[:, order]
            if not run.follower.take(self._now_ns, np.array(times, np.int64), rows):
                run.rejected += 1
                continue
            run.trajectories += 1
            if not run.began:
                run.began, run.wall_s = True, time.monotonic()
        self._waiting.clear()

    def _observe(self, episode: Episode) -> None:
        observation = episode.observation()
        for slot, publisher in self._images.items():
            pixels = np.ascontiguousarray(observation.images[slot])
            height, width = pixels.shape[:2]
            message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
            message.header.stamp = time_message(self._now_ns)
            message.data = array.array("B", pixels.tobytes())
            publisher.publish(message)
        if observation.state is not None:
            self._send_joints(self._joints, observation.state)

    def _send_joints(self, publisher: Any, positions: Array) -> None:
        publisher.publish(
            JointState(
                header=Header(stamp=time_message(self._now_ns)),
                name=list(self._task.joint_names),
                position=np.asarray(positions, np.float64).tolist(),
            )
        )

    def _outcome(self, run: _Run) -> dict[str, Any]:
        """As a direct rollout has it; decisions are counted by their trajectories."""
        found: Outcome = outcome(run.episode, run.seed, run.trajectories, 0.0)
        wall_s = time.monotonic() - run.wall_s
        return {
            "outcome": vars(found),
            "rejected": run.rejected,
            "acceleration": acceleration(np.array(run.targets)),
            "pace": round(len(run.targets) * SUBSTEP_S / max(wall_s, SUBSTEP_S), 4),
        }


def acceleration(targets: Array) -> dict[str, float]:
    """Of the set points [steps, joints], in their unit over s^2: root mean square, the 99th
    percentile and the largest, over steps and joints. What is rough shows in the last two.
    """
    if len(targets) < 3:
        return {"rms": 0.0, "p99": 0.0, "max": 0.0}
    found = np.abs(np.diff(targets, 2, axis=0)) / SUBSTEP_S**2
    return {
        "rms": float(np.sqrt(np.mean(found**2))),
        "p99": float(np.percentile(found, 99)),
        "max": float(found.max()),
    }


def _orders() -> queue.Queue[dict[str, Any] | None]:
    """What comes on standard input; None at its end."""
    found: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            found.put(json.loads(line))
        found.put(None)

    threading.Thread(target=read, name="orders", daemon=True).start()
    return found


def _serve(simulator: Simulator, executor: Any) -> None:
    """Step in real time until standard input ends."""
    orders = _orders()
    due_s = told_s = time.monotonic()
    while True:
        while not orders.empty():
            order = orders.get()
            if order is None:
                return
            print(json.dumps(_obey(simulator, order)), flush=True)
        found = simulator.step()
        if found is not None:
            print(json.dumps(found), flush=True)
        elif (now_s := simulator.time_s) is not None and time.monotonic() - told_s > _SIGN_S:
            told_s = time.monotonic()
            print(json.dumps({"time_s": now_s}), flush=True)
        # What is late stays late: time that ran faster would be none that a robot knows.
        due_s = max(due_s + SUBSTEP_S, time.monotonic())
        while (left_s := due_s - time.monotonic()) > 0:
            executor.spin_once(timeout_sec=left_s)
        executor.spin_once(timeout_sec=0.0)


def _obey(simulator: Simulator, order: dict[str, Any]) -> dict[str, Any]:
    if "frames" in order:
        return simulator.frames(order["frames"], order["width"], order["height"])
    return simulator.start(order["start"], order.get("frames_hz", 0.0))


def _tell(error: FlashRTError) -> None:
    """Hand the parts of an error over, of which a log would have the whole line only."""
    parts = {name: getattr(error, name) for name in ("what", "expected", "got", "remedy")}
    said = {name: None if part is None else str(part) for name, part in parts.items()}
    print(json.dumps({"error": said}), flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run as a process; the exit status."""
    options = SimulatorOptions(**json.loads(arguments[0]))
    try:
        task = find_task(str(Path(options.task).absolute())).task
    except FlashRTError as error:
        _tell(error)
        raise
    context = Context()
    context.init(args=[])
    node = Node(
        "simulator",
        context=context,
        use_global_arguments=False,
        start_parameter_services=False,
        enable_rosout=False,
    )
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    try:
        simulator = Simulator(node, task, options)
        print(json.dumps({"ready": True}), flush=True)
        _serve(simulator, executor)
        return 0
    except FlashRTError as error:
        _tell(error)
        raise
    finally:
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:]), "simulator"))
