"""Every launch file against stand-ins for the launch packages, which need not be installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashrt_core.errors import OptionError
from flashrt_core.policies import find_policy
from flashrt_ros.parameters import build_config
from flashrt_ros.unknown_parameters import unknown_parameters

from .recording import Described, Recorded, describe

ROOT = Path(__file__).resolve().parents[2]
# The deployments; the one of a replay is in test_replay_bench.py.
LAUNCH_FILES = sorted((ROOT / "launch").glob("pi05_*.launch.py"))
CONFIGURE, ACTIVATE = 1, 3  # numbers of lifecycle_msgs/msg/Transition
OVERRIDES = ("device", "checkpoint", "precision")

pytestmark = [pytest.mark.ros, pytest.mark.jazzy]
pytest.importorskip("lifecycle_msgs.msg")


@pytest.fixture(params=LAUNCH_FILES, ids=lambda p: p.name.removesuffix(".launch.py"))
def path(request: pytest.FixtureRequest) -> Path:
    """Each launch file in turn."""
    return request.param


@pytest.fixture
def described(path: Path, monkeypatch: pytest.MonkeyPatch) -> Described:
    """What the launch file describes."""
    return describe(path, monkeypatch)


def node_of(actions: list[Recorded]) -> Recorded:
    """The one node of a description."""
    (node,) = [a for a in actions if a.kind == "LifecycleNode"]
    return node


def parameter_value(value: Any) -> Any:
    """Plain value, or type and value of a typed one."""
    if isinstance(value, Recorded):
        return value.kwargs["value_type"], value.args[0]
    return value


def test_both_deployments_are_here() -> None:
    assert {p.name for p in LAUNCH_FILES} >= {"pi05_tiny.launch.py", "pi05_thor.launch.py"}


def test_arguments(path: Path, described: Described) -> None:
    arguments = described.arguments
    switches = ("autostart", "respawn", "use_sim_time")
    assert set(arguments) == {"params_file", "namespace", "log_level", *switches, *OVERRIDES}
    assert all(a["description"] for a in arguments.values())
    config = ROOT / "config" / path.name.replace(".launch.py", ".yaml")
    assert Path(arguments["params_file"]["default_value"]) == config
    assert [arguments[s]["default_value"] for s in switches] == ["true", "false", "false"]
    for name in switches:
        assert arguments[name]["choices"] == ["true", "false"]
    for name in OVERRIDES:
        assert arguments[name]["default_value"] == ""


def test_node_and_its_executable(described: Described) -> None:
    node = node_of(described.start())
    assert node.kwargs["package"] == "flashrt_ros"
    assert node.kwargs["name"] == "policy"
    assert node.kwargs["namespace"] == ""
    assert node.kwargs["ros_arguments"] == ["--log-level", "info"]
    executable = ROOT / "scripts" / node.kwargs["executable"]
    assert os.access(executable, os.X_OK)
    installed = f"install(PROGRAMS scripts/{executable.name} DESTINATION lib/${{PROJECT_NAME}})"
    assert installed in (ROOT / "CMakeLists.txt").read_text()


def test_parameters_as_in_the_file_by_default(described: Described) -> None:
    file, values = node_of(described.start()).kwargs["parameters"]
    assert Path(file).is_file()
    assert values == {"use_sim_time": False}


def test_arguments_reach_the_node(described: Described, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("/**:\n  ros__parameters:\n    prompt: wave\n")
    node = node_of(
        described.start(
            params_file=str(mine),
            namespace="left_arm",
            log_level="debug",
            use_sim_time="true",
            device="cuda",
            checkpoint="1234",
        )
    )
    file, values = node.kwargs["parameters"]
    assert file == str(mine)
    assert node.kwargs["namespace"] == "left_arm"
    assert node.kwargs["ros_arguments"] == ["--log-level", "debug"]
    # The checkpoint stays a string although it reads as a number; precision was not given.
    assert {name: parameter_value(value) for name, value in values.items()} == {
        "use_sim_time": True,
        "device": (str, "cuda"),
        "checkpoint": (str, "1234"),
    }


def test_missing_parameter_file_is_named(described: Described, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.yaml")
    with pytest.raises(OptionError, match="params_file.*absent.yaml"):
        described.start(params_file=absent)


def requested(event: Recorded, node: Recorded) -> int:
    """The transition that an action asks of ``node``."""
    assert event.kwargs["event"].kwargs["lifecycle_node_matcher"].args == (node,)
    return event.kwargs["event"].kwargs["transition_id"]


def test_autostart_configures_then_activates(described: Described) -> None:
    *handlers, node = described.start()
    assert [h.kind for h in handlers] == ["RegisterEventHandler"] * 3
    started, failed, configured = (h.args[0] for h in handlers)
    assert started.kind == "OnProcessStart" and started.kwargs["target_action"] is node
    (begun,) = started.kwargs["on_start"]
    (first,) = begun.kwargs["function"](None)
    assert requested(first, node) == CONFIGURE
    for handler, goal in ((failed, "unconfigured"), (configured, "inactive")):
        assert handler.kwargs["target_lifecycle_node"] is node
        # On the way from configuring alone: a node deactivated by hand stays inactive.
        assert handler.kwargs["start_state"] == "configuring"
        assert handler.kwargs["goal_state"] == goal
    (second,) = configured.kwargs["entities"]
    assert requested(second, node) == ACTIVATE
    # What is wrong at the first start is for a person to mend.
    assert failed.kwargs["entities"][0].kwargs["function"](None) == []


def test_a_respawned_node_is_configured_again_while_its_name_is_taken(
    described: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    *handlers, node = described.start(respawn="true")
    assert node.kwargs["respawn"] is True and node.kwargs["respawn_delay"] == 2.0
    started, failed, _ = (h.args[0] for h in handlers)
    begun = started.kwargs["on_start"][0].kwargs["function"]
    refused = failed.kwargs["entities"][0].kwargs["function"]
    for _ in range(2):
        (event,) = begun(None)
        assert requested(event, node) == CONFIGURE
    now_s += 39.0
    (timer,) = refused(None)
    assert timer.kind == "TimerAction" and timer.kwargs["period"] == 3.0
    assert requested(timer.kwargs["actions"][0], node) == CONFIGURE
    now_s += 2.0
    assert refused(None) == [], "a dead process has lost its name by then: something else is wrong"


def test_no_respawn_unless_asked_for(described: Described) -> None:
    assert node_of(described.start()).kwargs["respawn"] is False


def test_without_autostart_the_node_is_left_alone(described: Described) -> None:
    (only,) = described.start(autostart="false")
    assert only.kind == "LifecycleNode"


def test_parameter_file_holds_for_any_node_name(path: Path) -> None:
    """A bare node name as the top key would be ignored once the node has a namespace."""
    text = (ROOT / "config" / path.name.replace(".launch.py", ".yaml")).read_text()
    document = yaml.safe_load(text)
    assert list(document) == ["/**"]
    assert list(document["/**"]) == ["ros__parameters"]


def test_parameter_file_fits_the_table_and_the_policy(path: Path) -> None:
    """Every name is declared, every value is accepted, and the cameras feed views of the policy."""
    text = (ROOT / "config" / path.name.replace(".launch.py", ".yaml")).read_text()
    given = flatten(yaml.safe_load(text)["/**"]["ros__parameters"])
    assert unknown_parameters(given, given["cameras"]) == {}
    config = build_config(given)
    policy = find_policy(config.policy)
    sizes = policy.config(config.preset)
    views = tuple(v for v in policy.slots if v in {c.slot or c.key for c in config.cameras})
    assert len(views) == len(config.cameras)
    contract = policy.contract(sizes, policy.shapes(sizes, len(views)), views, config.precision)
    assert {f"image.{view}" for view in views} <= {spec.name for spec in contract.inputs}


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters by their full, dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
