"""Who goes first of two nodes of one name, when they discover each other late; without DDS."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")

from rclpy.lifecycle import TransitionCallbackReturn
from std_msgs.msg import String

from flashrt_core.errors import OptionError
from flashrt_ros import autostart, own_name
from flashrt_ros.autostart import Autostart
from flashrt_ros.own_name import Claim, OwnName, Use


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._starts = itertools.count(1)

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return next(self._starts)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Network:
    """Nodes of one name: who has discovered whom, and what they tell each other."""

    def __init__(self) -> None:
        self.nodes: list[Twin] = []
        self.known = False

    def step(self, clock: Clock, seconds: float) -> None:
        """Every timer of every node, every fifth of a second."""
        for tick in range(round(5 * seconds)):
            clock.sleep(0.2)
            for node in self.nodes:
                for period, callback in list(node.timers):
                    if tick % round(5 * period) == 0:
                        callback()


class Twin:
    """A node that can do what these two ask for."""

    def __init__(self, network: Network) -> None:
        self.state, self.lines = "unconfigured", list[str]()
        self.parameters = SimpleNamespace(errors={})
        self.timers: list[tuple[float, Any]] = []
        self._network = network
        self._hears: Any = None
        self._latched: Any = None
        network.nodes.append(self)
        self.own_name = OwnName(self, None, self._give_way)
        self.autostart = Autostart(self, None)

    def create_publisher(self, *_: Any) -> Any:
        return SimpleNamespace(publish=self._publish)

    def create_subscription(self, kind: Any, topic: str, callback: Any, qos: Any) -> None:
        self._hears = callback

    def create_timer(self, period: float, callback: Any, clock: Any) -> Any:
        entry = (period, callback)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self.timers and self.timers.remove(entry))

    def _publish(self, message: String) -> None:
        self._latched = message
        for other in self._network.nodes if self._network.known else ():
            other._hears(message)

    def start(self) -> None:
        """What its autostart does next."""
        self.autostart._tick()

    def meet(self) -> None:
        """Hear what the others said last."""
        for other in self._network.nodes:
            self._hears(other._latched)

    def get_fully_qualified_name(self) -> str:
        return "/policy"

    def count_services(self, _: str) -> int:
        return len(self._network.nodes) if self._network.known else 1

    def get_parameter(self, _: str) -> Any:
        return SimpleNamespace(value=True)

    def get_logger(self) -> Any:
        return SimpleNamespace(warning=self.lines.append, error=self.lines.append)

    def _become(self, state: str, use: Use | None) -> TransitionCallbackReturn:
        try:
            if use is Use.HOLDS:
                self.own_name.require()
            elif use is Use.ACTS:
                self.own_name.refuse_others()
        except OptionError as error:
            self.lines.append(f"failed: {error}")
            return TransitionCallbackReturn.FAILURE
        self.state = state
        self.own_name.release() if use is None else self.own_name.tell(use)
        return TransitionCallbackReturn.SUCCESS

    def _give_way(self, why: str) -> None:
        self.lines.append(f"deactivated: {why}")
        self._become("inactive", None)
        self.own_name.tell(Use.HOLDS)

    def trigger_configure(self) -> TransitionCallbackReturn:
        return self._become("inactive", Use.HOLDS)

    def trigger_activate(self) -> TransitionCallbackReturn:
        return self._become("active", Use.ACTS)

    def trigger_cleanup(self) -> TransitionCallbackReturn:
        return self._become("unconfigured", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (own_name, autostart):
        monkeypatch.setattr(module, "time", clock)
    return clock


def discover(network: Network) -> None:
    network.known = True
    for node in network.nodes:
        node.meet()


def states(network: Network) -> list[str]:
    return [node.state for node in network.nodes]


def test_one_that_is_alone_begins(clock: Clock) -> None:
    network = Network()
    Twin(network)
    network.step(clock, 3.0)  # meanwhile it loads: others may not have been announced yet
    assert states(network) == ["inactive"]
    network.step(clock, 2.0)
    assert states(network) == ["active"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_that_know_each_other(clock: Clock, order: tuple[int, ...]) -> None:
    network = Network()
    made = [Twin(network) for _ in range(2)]
    network.nodes = [made[index] for index in order]  # whose timers come first
    discover(network)
    network.step(clock, 5.0)
    assert [node.state for node in made] == ["active", "unconfigured"]
    assert "waits for this one" in made[0].lines[0] and "has it" in made[1].lines[0]
    assert len(made[0].lines) == len(made[1].lines) == 1


def behind(node: Twin, then: Callable[[], None]) -> None:
    """Lets something happen while a node configures itself."""
    configure = node.trigger_configure

    def both() -> TransitionCallbackReturn:
        result = configure()
        then()
        return result

    node.trigger_configure = both  # type: ignore[method-assign]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_that_discover_each_other_when_both_are_configured(
    clock: Clock, order: tuple[int, ...]
) -> None:
    """As on a busy machine: the later one gives way, and waits."""
    network = Network()
    made = [Twin(network) for _ in range(2)]
    begins, joins = (made[index] for index in order)
    behind(begins, lambda: None if network.known else joins.start())
    behind(joins, lambda: discover(network))
    clock.sleep(4.0)
    begins.start()
    assert states(network) == ["inactive", "inactive"]
    network.step(clock, 3.0)
    assert states(network) == ["active", "unconfigured"]
    assert not [line for node in made for line in node.lines if "failed" in line]
    assert "has it" in made[1].lines[-1]
    network.nodes.remove(made[0])  # whoever waits takes over
    network.step(clock, 1.0)
    assert made[1].state == "active"


def test_one_that_is_active_stays_so(clock: Clock) -> None:
    """Even beside one that started earlier, and was configured before they met."""
    network = Network()
    earlier, later = (Twin(network) for _ in range(2))
    clock.sleep(4.0)
    later.start()
    behind(earlier, lambda: discover(network))
    earlier.start()
    assert states(network) == ["inactive", "active"]
    network.step(clock, 3.0)
    assert states(network) == ["unconfigured", "active"]
    assert not earlier.own_name.first() and later.own_name.first()


def test_one_that_is_announced_late_is_seen_before_it_is_too_late(clock: Clock) -> None:
    """As beside the remains of a process that was killed: 3 s, where 1 s was waited."""
    network = Network()
    active, node = (Twin(network) for _ in range(2))
    active.autostart._timer.cancel()
    active.state = "active"
    active.own_name.tell(Use.ACTS)
    network.step(clock, 3.2)
    discover(network)
    network.step(clock, 5.0)
    assert states(network) == ["active", "unconfigured"] and not active.lines
    assert "has it" in node.lines[-1]


def both_active(clock: Clock, count: int = 2) -> tuple[Network, list[Twin]]:
    """Nodes that discovered nobody before they acted; the one that was made last acts first."""
    network = Network()
    made = [Twin(network) for _ in range(count)]
    clock.sleep(5.0)
    for node in reversed(made):
        node.start()
    assert states(network) == ["active"] * count
    return network, made


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_those_that_meet_active_the_one_that_was_so_earlier_stays(
    clock: Clock, order: tuple[int, ...]
) -> None:
    """Whoever hears whom first, and though it was started last."""
    network, made = both_active(clock, 3)
    network.nodes = [made[index] for index in order]
    discover(network)
    network.step(clock, 3.0)
    assert [node.state for node in made] == ["inactive", "inactive", "active"]
    assert not made[2].lines and len(made[0].lines) == len(made[1].lines) == 1
    line = made[0].lines[0]
    assert "deactivated: node name '/policy': expected one active node of that name, got 2" in line
    assert "active earlier; stop the other node" in line


def test_of_those_that_were_active_at_one_moment_one_stays(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    made = [Twin(network) for _ in range(2)]
    monkeypatch.setattr(clock, "time_ns", lambda: 7)
    clock.sleep(5.0)
    for node in made:
        node.start()
    discover(network)
    network.step(clock, 3.0)
    assert [node.state for node in made] == ["active", "inactive"]


def test_one_that_is_heard_only_is_no_reason_to_stop(clock: Clock) -> None:
    """A recording that is played says what was claimed once; then the graph shows nobody."""
    network, (node, other) = both_active(clock)
    node.meet()
    network.step(clock, 1.0)
    assert node.state == "active" and not node.lines
    network.known = True  # it does: what was heard a moment ago counts
    other.timers.clear()
    network.step(clock, 1.0)
    assert node.state == "inactive"


def test_one_that_is_not_heard_is_waited_for(clock: Clock) -> None:
    """It may load weights; in the end somebody has to look."""
    network = Network()
    node, deaf = (Twin(network) for _ in range(2))
    deaf.timers.clear()
    behind(node, lambda: discover(network))
    network.step(clock, 39.0)
    assert states(network) == ["inactive", "unconfigured"] and not node.lines
    network.step(clock, 3.0)
    assert len(node.lines) == 1 and "expected one node of that name" in node.lines[0]


def test_who_it_is_is_said_when_it_is_heard(clock: Clock) -> None:
    """Be it late: it was another node or a killed process until then."""
    network = Network()
    node, active = (Twin(network) for _ in range(2))
    active.timers.clear()
    active.own_name.tell(Use.ACTS)
    network.known = True
    network.step(clock, 6.0)
    assert len(node.lines) == 1 and "another node or a killed process has it" in node.lines[0]
    node.meet()
    network.step(clock, 1.0)
    assert len(node.lines) == 2 and "process" in node.lines[1] and "on host" in node.lines[1]
    network.step(clock, 5.0)
    assert len(node.lines) == 2


@pytest.mark.parametrize("use", Use)
def test_claims_are_read_as_they_are_sent(use: Use) -> None:
    claim = Claim(use, 5, 12, "a host", 34)
    assert Claim.of(claim.text()) == claim
    for text in ("", "sleeps 0 1 2 host", "holds 0 one 2 host", "holds 0 1 2", "holds 1 2 host"):
        with pytest.raises(ValueError):
            Claim.of(text)
