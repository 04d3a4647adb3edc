"""The graph that a replay talks on, the shared-memory profile, and the environment of the node."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flashrt_core.errors import OptionError
from flashrt_ros.paths import share_directory
from flashrt_ros.replay import transport
from flashrt_ros.replay.transport import Graph, child_environment, choose_graph, use_shared_memory

PROFILE = "FASTDDS_DEFAULT_PROFILES_FILE"


def test_a_private_graph_stays_on_this_host_and_off_the_users_domain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "42")
    for _ in range(30):
        graph = choose_graph()
        assert graph.private and 1 <= graph.domain <= 101 and graph.domain != 42
    environment: dict[str, str] = {"ROS_STATIC_PEERS": "robot.local", "ROS_LOG_DIR": str(tmp_path)}
    graph.enter(environment)
    assert environment == {
        "ROS_DOMAIN_ID": str(graph.domain),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_LOG_DIR": str(tmp_path),
    }


def test_a_domain_that_is_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_DOMAINS", range(90, 92))
    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("", 7400 + 250 * 90 + 10))
        assert {choose_graph().domain for _ in range(20)} == {91}


def test_a_chosen_domain_is_discovered_as_the_environment_says(tmp_path: Path) -> None:
    before = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET", "ROS_LOG_DIR": str(tmp_path)}
    environment = dict(before)
    choose_graph(7).enter(environment)
    assert environment == before | {"ROS_DOMAIN_ID": "7"}
    with pytest.raises(OptionError, match=r"0\.\.232"):
        choose_graph(233)
    assert choose_graph(0) == Graph(0, private=False)


def test_the_profile_is_well_formed_and_taken() -> None:
    profile = share_directory() / "config" / "fastdds_shm.xml"
    ElementTree.parse(profile)
    environment: dict[str, str] = {}
    assert use_shared_memory(environment) is None
    assert environment == {PROFILE: str(profile)}


def test_what_the_user_chose_is_left_alone(tmp_path: Path) -> None:
    for environment in ({PROFILE: "mine.xml"}, {"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}):
        before = dict(environment)
        assert use_shared_memory(environment) is None
        assert environment == before


def test_too_little_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_SHM", Path("/nowhere"))
    environment: dict[str, str] = {}
    note = use_shared_memory(environment)
    assert note is not None and "--shm-size" in note
    assert environment == {}


def test_environment_of_a_node() -> None:
    wheels = f"{sys.prefix}/lib"
    parent = {
        "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1",
        "LD_LIBRARY_PATH": f"/opt/mine/lib:/venv/site-packages/ros_rclpy.libs:{wheels}",
        PROFILE: str(share_directory() / "config" / "fastdds_shm.xml"),
        "HOME": "/home/robot",
    }
    child = child_environment(parent)
    assert child["HOME"] == "/home/robot"
    assert "_ROS_WHEELS_BOOTSTRAP_COMPLETE" not in child
    assert PROFILE not in child
    assert child["LD_LIBRARY_PATH"].split(":")[0] == "/opt/mine/lib"
    assert "ros_rclpy.libs" not in child["LD_LIBRARY_PATH"]
    # Without the wheels nothing of that happens: a sourced ROS 2 needs its library path.
    sourced = {"LD_LIBRARY_PATH": "/opt/ros/kilted/lib", PROFILE: "mine.xml"}
    assert child_environment(sourced) == sourced
