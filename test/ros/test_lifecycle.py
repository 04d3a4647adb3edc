"""The node driven through its lifecycle from another process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.srv import (
    Decide,
    DropCapsule,
    ForkSession,
    ListCapsules,
    RestoreCapsule,
    SaveCapsule,
    SetPrompt,
)
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetAvailableTransitions
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters

from test.starting import interrupted_starts

from .harness import ACTIVATE, CLEANUP, CONFIGURE, DEACTIVATE, Robot, wait_until

pytestmark = pytest.mark.ros
WRONG_STATE = 80
SERVICES = {
    "save_capsule": SaveCapsule,
    "restore_capsule": RestoreCapsule,
    "fork_session": ForkSession,
    "list_capsules": ListCapsules,
    "drop_capsule": DropCapsule,
    "set_prompt": SetPrompt,
    "decide": Decide,
}


def wrong_state(robot: Robot, names: list[str], state: str) -> None:
    for name in names:
        response = robot.call(SERVICES[name], name, 5.0)
        assert response.error_code == WRONG_STATE, name
        assert f"service ~/{name}" in response.error_msg
        assert response.error_msg.endswith(f"got {state}")


def set_parameter(robot: Robot, name: str, value: ParameterValue) -> Any:
    request = [ParameterMessage(name=name, value=value)]
    return robot.call(SetParameters, "set_parameters", parameters=request).results[0]


def double(value: float) -> ParameterValue:
    return ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)


def string(value: str) -> ParameterValue:
    return ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=value)


@pytest.mark.jazzy
def test_every_transition_and_what_each_state_does(start: Callable[..., Robot]) -> None:
    robot = start(rate_hz=20.0)
    wrong_state(robot, list(SERVICES), "unconfigured")
    assert robot.state() == "unconfigured"
    assert not robot.change(ACTIVATE), "an impossible transition is answered, not fatal"
    assert robot.change(CONFIGURE) and robot.state() == "inactive"
    robot.feed("front", "joints")
    wrong_state(robot, ["decide"], "inactive")
    assert robot.call(ListCapsules, "list_capsules").live_sessions == ["main"]
    early = robot.call(SaveCapsule, "save_capsule", name="x")
    assert early.error_code == 40
    assert early.error_msg.endswith("; activate the node, if it is not, and let it decide first")
    refused = set_parameter(robot, "rate_hz", double(5.0))
    assert not refused.successful and "read-only until cleanup" in refused.reason

    first = run_active(robot)
    assert robot.chunks == [], "nothing left the node after deactivate was answered"
    second = run_active(robot)
    assert (first[0].sequence, second[0].sequence) == (0, 0), "each activation starts at decision 0"

    assert robot.change(CLEANUP) and robot.state() == "unconfigured"
    assert robot.part("input front") != {}
    wait_until(lambda: robot.fresh_part("node")["state"] == "unconfigured")
    assert "policy: input front" not in robot.diagnostics, "cleanup leaves no input behind"
    wrong_state(robot, ["list_capsules"], "unconfigured")
    assert set_parameter(robot, "rate_hz", double(15.0)).successful
    assert robot.change(CONFIGURE), robot.target.log
    assert robot.change(Transition.TRANSITION_INACTIVE_SHUTDOWN)
    assert robot.state() == "finalized"
    wrong_state(robot, ["decide", "save_capsule"], "finalized")
    assert robot.call(GetAvailableTransitions, "get_available_transitions") is not None
    assert robot.target.stop() == 0
    assert "Traceback" not in robot.target.log


def run_active(robot: Robot) -> list[Any]:
    """Activate, take some chunks, deactivate; the chunks."""
    robot.chunks.clear()
    assert robot.change(ACTIVATE) and robot.state() == "active"
    robot.wait_chunks(3)
    assert robot.change(DEACTIVATE) and robot.state() == "inactive"
    time.sleep(0.05)  # what was sent before the answer may still be on its way
    taken = list(robot.chunks)
    robot.chunks.clear()
    time.sleep(0.3)
    return taken


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.jazzy), signal.SIGTERM]
)
def test_a_signal_while_active_ends_the_process_in_order(
    start: Callable[..., Robot], number: signal.Signals
) -> None:
    robot = start(rate_hz=20.0)
    robot.bring_up()
    robot.feed("front", "joints")
    robot.wait_chunks(2)
    begin = time.monotonic()
    assert robot.target.stop(number) == 0, robot.target.log
    assert time.monotonic() - begin < 5.0
    assert "Traceback" not in robot.target.log and "left behind" not in robot.target.log


def test_a_signal_anywhere_in_the_start_of_the_node_ends_it_in_one_line(tmp_path: Path) -> None:
    """Or in order and in silence, with 0, once it has handlers of its own."""
    outcomes = interrupted_starts(["-m", "flashrt_ros.start"], tmp_path)
    ended = [number for number, status, _, _ in outcomes if status]
    for number, status, out, err in outcomes:
        how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
        assert (status, err) in [(0, ""), (128 + number, f"policy_node: {how}\n")]
        assert out == ""
    assert ended, "some came before it had them"


@pytest.mark.jazzy
def test_a_failed_configure_is_explained_and_can_be_repaired(start: Callable[..., Robot]) -> None:
    robot = start(rate_hz="fast", camera__front__max_agee=1.0)
    assert not robot.change(CONFIGURE)
    assert robot.state() == "unconfigured"
    robot.wait_log("configure failed: parameter 'rate_hz': expected float, got 'fast' (string)")
    node = robot.fresh_part("node")
    assert node["mistyped_parameters"] == "1" and node["configure_failures"] == "1"
    assert node["unknown_parameters"] == "1"
    assert node["unknown_parameter_names"] == "camera.front.max_agee"
    assert robot.levels["policy: node"][0] == 2
    assert "'rate_hz'" in robot.levels["policy: node"][1]
    assert set_parameter(robot, "rate_hz", double(30.0)).successful

    assert set_parameter(robot, "camera.front.slot", string("nowhere")).successful
    assert not robot.change(CONFIGURE), "the policy has no such view: loading fails half-way"
    robot.wait_log("expected at least one of ['base_0_rgb'")
    assert set_parameter(robot, "camera.front.slot", string("base_0_rgb")).successful

    assert set_parameter(robot, "device", string("cuda")).successful
    if not robot.change(CONFIGURE):  # a machine without a GPU: one clear line, then the CPU works
        robot.wait_log("configure failed: device 'cuda'")
        assert set_parameter(robot, "device", string("cpu")).successful
        assert robot.change(CONFIGURE), robot.target.log
    robot.wait_log("'camera.front.max_agee' is unknown and has no effect; did you mean")
    assert robot.change(ACTIVATE)
    robot.feed("front", "joints")
    robot.wait_chunks(2)
    assert robot.target.stop() == 0
    assert "Traceback" not in robot.target.log


def test_every_reason_not_to_configure_leaves_a_node_that_can(start: Callable[..., Robot]) -> None:
    robot = start(prompt="   ")
    reasons = [
        ("prompt", "very " * 2000, "wave", "prompt"),
        ("camera.front.topic", "no topic!", "front", "topic 'no topic!' of input 'front'"),
        ("norm_stats", "/does/not/exist.json", "", "/does/not/exist.json"),
        ("camera.front.encoding", "rgb9", "rgb8", "parameter 'camera.front.encoding'"),
        ("policy", "pi99", "pi05", "pi99"),
        ("preset", "giant", "tiny", "giant"),
        ("checkpoint", "/no/such/checkpoint", "random:0", "/no/such/checkpoint"),
    ]
    assert not robot.change(CONFIGURE), "a prompt of blanks"
    assert "prompt" in robot.fresh_part("node")["last_failure"]
    for name, bad, good, message in reasons:
        assert set_parameter(robot, name, string(bad)).successful
        assert not robot.change(CONFIGURE), name
        assert robot.state() == "unconfigured"
        robot.wait_log(message)
        assert set_parameter(robot, name, string(good)).successful
    node = robot.fresh_part("node")
    assert node["configure_failures"] == str(len(reasons) + 1)
    assert "/no/such/checkpoint" in node["last_failure"]
    _, threads, descriptors = robot.target.resources()
    assert not robot.change(ACTIVATE)
    for _ in range(3):
        assert robot.change(CONFIGURE), robot.target.log
        assert robot.change(CLEANUP)
    assert robot.target.resources()[1:] == (threads, descriptors), "nothing is left behind"
    assert robot.fresh_part("node")["last_failure"] == ""
    assert robot.target.stop() == 0
    assert "Traceback" not in robot.target.log


@pytest.mark.jazzy
def test_a_node_that_starts_itself(start: Callable[..., Robot]) -> None:
    robot = start(autostart=True, rate_hz=20.0)
    robot.wait_value("node", "state", "active", 20.0)
    robot.feed("front", "joints")
    robot.wait_chunks(2)
    assert robot.change(DEACTIVATE) and robot.change(CLEANUP)
    time.sleep(1.0)
    assert robot.state() == "unconfigured", "once: what a person stops stays stopped"
    assert robot.target.stop() == 0


@pytest.mark.timeout(300)
def test_of_two_that_start_themselves_the_first_goes_on(start: Callable[..., Robot]) -> None:
    """Both saw two of the name and gave up, after 40 s, naming nobody."""
    first = start(autostart=True)
    second = start(autostart=True, namespace=first.target.namespace)
    name, later = f"the name '{first.target.name}'", "and waits for this one: stop it, or start it"
    # Who started first is known to them alone: either may be it.
    waiting = f"waiting up to 40 s for {name}: process "

    def waits(each: Robot) -> bool:
        return each.target.log.rfind(waiting) > each.target.log.rfind("on cpu: plan")

    def decided() -> bool:
        return waits(first) != waits(second) and all(
            waiting in each.target.log or "on cpu: plan" in each.target.log
            for each in (first, second)
        )

    # On a machine with fifteen things to do for each core both are still importing after 45 s.
    wait_until(decided, 120.0, lambda: first.target.log + second.target.log)
    if waits(first):
        first, second = second, first
    second.wait_log(f"{waiting}{first.target.process.pid} on host '")
    if later in first.target.log:  # else, on a busy machine, it went before it saw the other
        assert f"process {second.target.process.pid} on host '" in first.target.log
    assert "-r __node:=NAME" in second.target.log
    first.wait_value("node", "state", "active")
    assert "failed" not in first.target.log + second.target.log
    assert first.target.stop() == 0
    # Whoever waits takes over as soon as the other has gone.
    wait_until(lambda: "on cpu: plan" in second.target.log, 35.0, lambda: second.target.log)
    assert second.target.stop() == 0


def test_a_node_that_cannot_start_itself_says_why_once(start: Callable[..., Robot]) -> None:
    robot = start(autostart=True, rate_hz="fast")
    robot.wait_log("configure failed: parameter 'rate_hz': expected float, got 'fast' (string)")
    other = start(autostart="yes")
    other.wait_log("not started: parameter 'autostart': expected bool, got 'yes' (string)")
    time.sleep(1.0)
    assert robot.fresh_part("node")["configure_failures"] == "1"
    assert robot.state() == other.state() == "unconfigured"


@pytest.mark.jazzy
def test_a_parameter_file_that_does_not_parse_is_one_line(start: Callable[..., Robot]) -> None:
    robot = start(action__dt_s=[0, 1.5])
    assert robot.target.process.wait(30) == 1
    last = robot.target.log.strip().splitlines()[-1]
    assert last.startswith("policy_node: ") and ".yaml" in last and ", at " not in last
    assert "Traceback" not in robot.target.log


def test_two_nodes_of_one_name(start: Callable[..., Robot]) -> None:
    first = start(rate_hz=20.0)
    first.bring_up()
    first.feed("front", "joints")
    first.wait_chunks(2)
    second = start(namespace=first.target.namespace)
    wait_until(lambda: first.part("node").get("nodes_of_this_name") == "2", 20.0)
    assert first.levels["policy: node"] == (2, f"2 nodes are called '{first.target.name}'")
    refusal = f"configure failed: node name '{first.target.name}': expected one node"

    def refused() -> bool:
        # A request reaches the nodes that its client has discovered, at best both: the active one
        # cannot configure, the new one must refuse to as soon as it has discovered the other. That
        # takes seconds on a busy machine; then it is cleaned up, which the active one cannot be.
        second.change(CONFIGURE)
        if refusal in second.target.log:
            return True
        second.change(CLEANUP)
        return False

    wait_until(refused, 20.0, lambda: f"a refusal in:\n{second.target.log}")
    assert "-r __node:=NAME" in second.target.log
    assert first.target.alive and second.target.alive
    first.wait_chunks(2)
    # Nor does the older one begin to act again beside the other.
    first.change(DEACTIVATE)
    first.change(ACTIVATE)
    first.wait_log(f"activate failed: node name '{first.target.name}': expected one node")
    assert second.target.stop() == 0
    wait_until(lambda: first.fresh_part("node")["nodes_of_this_name"] == "1", 15.0)
    assert first.change(ACTIVATE)
    first.wait_chunks(2)
    assert first.target.stop() == 0
