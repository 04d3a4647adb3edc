"""The node's executor: inputs at once, everything else as rclpy does it, nothing lost or held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy")

from lifecycle_msgs.srv import GetState
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message
from rclpy.task import Future
from std_msgs.msg import String

from flashrt_ros.executor import InputsFirst

from .harness import DOMAIN

pytestmark = [pytest.mark.ros, pytest.mark.jazzy]


class Bench:
    """A node on the executor, and what it was called back for."""

    def __init__(self) -> None:
        self.context = Context()
        self.context.init(args=[], domain_id=DOMAIN)
        self.node = Node("bench", context=self.context, start_parameter_services=False)
        self.executor = InputsFirst(context=self.context)
        self.executor.add_node(self.node)
        self.heard: list[str] = []

    def input(self, topic: str, then: Callable[[], None] = lambda: None) -> Any:
        def on_message(data: bytes) -> None:
            self.heard.append(deserialize_message(data, String).data)
            then()

        return self.node.create_subscription(
            String, topic, on_message, qos_profile_sensor_data, raw=True
        )

    def publisher(self, topic: str) -> Any:
        found = self.node.create_publisher(String, topic, qos_profile_sensor_data)
        self.until(lambda: found.get_subscription_count() > 0)
        return found

    def until(self, condition: Callable[[], Any], limit_s: float = 5.0) -> float:
        """Spins until that holds; how many seconds it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + limit_s, f"heard {self.heard}"
            self.executor.spin_once(0.05)
        return time.monotonic() - began

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.close()


def test_inputs_and_others_are_called_back(bench: Bench) -> None:
    bench.input("raw")
    plain: list[str] = []
    bench.node.create_subscription(
        String, "plain", lambda message: plain.append(message.data), qos_profile_sensor_data
    )
    ticks: list[int] = []
    timer = bench.node.create_timer(0.01, lambda: ticks.append(1), clock=steady())
    raw, other = bench.publisher("raw"), bench.publisher("plain")
    for index in range(20):
        raw.publish(String(data=f"r{index}"))
        other.publish(String(data=f"p{index}"))
        bench.until(lambda index=index: len(bench.heard) == len(plain) == index + 1)
    assert bench.heard == [f"r{index}" for index in range(20)]
    assert plain == [f"p{index}" for index in range(20)]
    bench.until(lambda: len(ticks) >= 3)
    timer.cancel()
    count = len(ticks)
    for _ in range(5):
        bench.executor.spin_once(0.02)
    assert len(ticks) == count


def steady() -> Clock:
    return Clock(clock_type=ClockType.STEADY_TIME)


def test_messages_that_wait_are_all_taken_in_order(bench: Bench) -> None:
    bench.input("raw")
    raw = bench.publisher("raw")
    for index in range(5):
        raw.publish(String(data=str(index)))
    time.sleep(0.1)
    bench.until(lambda: len(bench.heard) == 5)
    assert bench.heard == list("01234")


def test_what_another_thread_triggers_is_not_waited_for(bench: Bench) -> None:
    """Two guard conditions at once, and inputs between them: the wait takes their triggers."""
    bench.input("raw")
    raw = bench.publisher("raw")
    called: list[str] = []
    guards = [
        bench.node.create_guard_condition(lambda name=name: called.append(name)) for name in "ab"
    ]
    for index in range(10):

        def trigger() -> None:
            time.sleep(0.01)
            for guard in guards:
                guard.trigger()
            raw.publish(String(data="x"))

        thread = threading.Thread(target=trigger)
        thread.start()
        began = time.monotonic()
        while len(called) < 2 * (index + 1) or len(bench.heard) < index + 1:
            assert time.monotonic() < began + 5.0
            bench.executor.spin_once(2.0)  # longer than all of it may take
        assert time.monotonic() - began < 1.5
        thread.join()


def test_entities_come_and_go(bench: Bench) -> None:
    first = bench.input("one")
    one = bench.publisher("one")
    one.publish(String(data="a"))
    bench.until(lambda: bench.heard == ["a"])
    second = bench.input("two", lambda: bench.node.destroy_subscription(first) and None)
    two = bench.publisher("two")
    two.publish(String(data="b"))  # its callback takes the other one away
    bench.until(lambda: bench.heard == ["a", "b"])
    one.publish(String(data="lost"))
    two.publish(String(data="c"))
    bench.until(lambda: bench.heard == ["a", "b", "c"])
    bench.until(lambda: one.get_subscription_count() == 0)  # nothing here holds it any more
    bench.node.destroy_subscription(second)
    bench.until(lambda: two.get_subscription_count() == 0)


def test_a_service_that_waits_keeps_nobody_waiting(bench: Bench) -> None:
    """Suspended on a future: inputs, timers and the answer go on, the answer last."""
    future: Any = Future(executor=bench.executor)
    release = bench.node.create_guard_condition(lambda: future.set_result("done"))

    async def answer(_: Any, response: Any) -> Any:
        response.current_state.label = await future
        return response

    bench.node.create_service(GetState, "wait", answer, callback_group=ReentrantCallbackGroup())
    client = bench.node.create_client(GetState, "wait")
    bench.input("raw")
    raw = bench.publisher("raw")
    bench.until(client.service_is_ready)
    call = client.call_async(GetState.Request())
    bench.until(lambda: any(not task.done() for task, *_ in bench.executor._tasks))
    for index in range(3):
        raw.publish(String(data=str(index)))
        bench.until(lambda index=index: len(bench.heard) == index + 1)
    assert not call.done()
    release.trigger()
    bench.until(call.done)
    assert call.result().current_state.label == "done"
    raw.publish(String(data="after"))
    assert bench.until(lambda: bench.heard[-1] == "after") < 1.0


def test_an_exception_is_raised_and_nothing_else_lost(bench: Bench) -> None:
    def fail() -> None:
        raise ValueError("by design")

    called: list[int] = []
    bench.input("bad", fail)
    guard = bench.node.create_guard_condition(lambda: called.append(1))
    bad = bench.publisher("bad")
    bad.publish(String(data="x"))
    time.sleep(0.1)
    guard.trigger()
    with pytest.raises(ValueError, match="by design"):
        bench.until(lambda: False)
    bench.until(lambda: called == [1], 0.5)


def test_it_ends_with_its_context(bench: Bench) -> None:
    bench.input("raw")
    bench.executor.spin_once(0.0)
    began = time.monotonic()
    bench.executor.spin_once(0.05)
    assert time.monotonic() - began < 1.0
    threading.Timer(0.05, bench.context.try_shutdown).start()
    with pytest.raises(ExternalShutdownException):
        while time.monotonic() < began + 5.0:
            bench.executor.spin_once(1.0)
    bench.executor.shutdown()
    bench.executor.spin_once(0.0)
