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
LAUNCH_FILES = [
    path
    for path in sorted((ROOT / "launch").glob("*.launch.py"))
    if path.name != "replay_bench.launch.py"
]
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
    assert values == {"use_sim_time": False, "autostart": True}


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
        "autostart": True,
        "device": (str, "cuda"),
        "checkpoint": (str, "1234"),
    }


def test_missing_parameter_file_is_named(described: Described, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.yaml")
    with pytest.raises(OptionError, match="params_file.*absent.yaml"):
        described.start(params_file=absent)


def test_the_node_starts_itself(described: Described) -> None:
    """No request from outside, which could reach a process that was just killed."""
    (node,) = described.start()
    assert node.kind == "LifecycleNode"
    assert node.kwargs["parameters"][1]["autostart"] is True


def test_respawn(described: Described) -> None:
    node = node_of(described.start(respawn="true"))
    assert node.kwargs["respawn"] is True and node.kwargs["respawn_delay"] == 2.0


def test_no_respawn_unless_asked_for(described: Described) -> None:
    assert node_of(described.start()).kwargs["respawn"] is False


def test_without_autostart_the_node_is_left_alone(described: Described) -> None:
    (only,) = described.start(autostart="false")
    assert only.kwargs["parameters"][1]["autostart"] is False


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
