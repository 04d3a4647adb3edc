"""The parameter table: types, bounds, camera groups, unknown names, and its documentation."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flashrt_core.errors import OptionError
from flashrt_core.load import configuration
from flashrt_core.load_options import OPTIONS_OF_SOME
from flashrt_core.policies import REGISTRY, find_policy
from flashrt_ros.loading import check_action_kind, load_options
from flashrt_ros.parameters import (
    TABLE,
    build_config,
    camera_keys,
    expand,
    render_markdown,
)
from flashrt_ros.unknown_parameters import unknown_parameters

MINIMAL: dict[str, Any] = {
    "prompt": "wave",
    "cameras": ["front"],
    "camera.front.topic": "image",
    "joints.names": ["a", "b"],
}


def test_a_minimal_configuration_takes_the_declared_defaults() -> None:
    config = build_config(MINIMAL)
    defaults = {p.name: p.default for p in TABLE}
    assert config.rate_hz == defaults["rate_hz"] and config.seed == defaults["seed"]
    assert config.joints_names == ("a", "b")
    assert config.action_names == ("a", "b"), "action.names falls back to joints.names"
    (camera,) = config.cameras
    assert (camera.key, camera.topic, camera.slot) == ("front", "image", "front")
    assert camera.max_age_s == defaults["camera.<key>.max_age_s"]


def test_whole_numbers_pass_for_floats_and_unset_arrays_are_empty() -> None:
    config = build_config(MINIMAL | {"rate_hz": 5, "prompt_buckets": None, "action.names": None})
    assert config.rate_hz == 5.0 and isinstance(config.rate_hz, float)
    assert config.prompt_buckets == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate_hz": "10"}, r"parameter 'rate_hz': expected float, got '10' \(string\)"),
        ({"rate_hz": True}, r"expected float, got true \(bool\)"),
        ({"rate_hz": 2000.0}, "parameter 'rate_hz': expected 0 to 1000 Hz, got 2000"),
        ({"rate_hz": float("nan")}, "parameter 'rate_hz': expected a finite number, got nan"),
        ({"seed": 1.0}, r"parameter 'seed': expected int, got 1.0 \(float\)"),
        ({"seed": False}, r"parameter 'seed': expected int, got false \(bool\)"),
        ({"seed": -1}, "parameter 'seed'"),
        ({"device": "gpu"}, r"parameter 'device': expected cpu \| cuda, got 'gpu'"),
        ({"prompt": True}, r"expected string, got true \(bool\); quote it in YAML"),
        ({"prompt": 7}, r"expected string, got 7 \(int\); quote it in YAML"),
        ({"prompt_buckets": [16, "x"]}, r"'prompt_buckets': expected int\[\], got \[16, x\]"),
        ({"prompt_buckets": [0]}, "'prompt_buckets': expected 1 to 65536 tokens, got 0"),
        ({"camera_bytes": 2**28 + 1}, "expected 0 to 268435456 bytes, got 268435457"),
        ({"seed": -1}, "'seed': expected 0 to 9223372036854775807, got -1"),
        ({"rate_hz": 1000.25}, "expected 0 to 1000 Hz, got 1000.25"),
        ({"rate_hz": 1e300}, r"expected 0 to 1000 Hz, got 1e\+300"),
        ({"prompt_buckets": 16}, r"expected int\[\], got 16 \(int\); write a list of whole"),
        ({"prompt_buckets": ["a"]}, r"\[a\] .*; write a list of whole numbers, such as \[16, "),
        ({"limits.lower": ["a"]}, r"expected float\[\], got \[a\] .*; write a list of numbers"),
        ({"joints.names": "a"}, r"expected string\[\], got 'a' \(string\); write a list of texts"),
        ({"joints.names": ["a", "a"]}, "'joints.names': .* got 'a' more than once"),
        ({"joints.names": ["a", ""]}, "'joints.names': .* got ''"),
        ({"joints.topic": ""}, "'joints.topic': expected a topic"),
        ({"joints.names": []}, "'action.names': expected a name for each action, got none"),
        ({"cameras": []}, r"'cameras': expected at least one camera key, got none; .*/\*\*"),
        ({"cameras": ["joints"]}, "'cameras': .* not 'joints', got 'joints'"),
        ({"cameras": ["a.b"]}, "'cameras': expected keys of letters"),
        ({"camera.front.topic": ""}, "'camera.front.topic': expected a topic"),
        ({"camera.front.rotation_deg": 45}, r"rotation_deg': expected 0 \| 90 \| 180 \| 270"),
        (
            {"camera.front.transport": "theora"},
            r"transport': expected raw \| compressed, got 'theora' \(string\)",
        ),
        ({"camera.front.encoding": "rgb9"}, "encoding': expected '' or one of rgb8, .*'rgb9'"),
        (
            {"camera.front.encoding": "rgb8", "camera.front.transport": "compressed"},
            "encoding': expected '' or one of jpeg, png, got 'rgb8'",
        ),
        ({"action.kind": "torque"}, r"'action.kind': expected absolute \| delta \| velocity"),
        ({"action.dt_s": 0.0}, "'action.dt_s': expected 0.0001 to 60 s, got 0"),
    ],
)
def test_bad_values_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as error:
        build_config(MINIMAL | change)
    assert "\n" not in str(error.value)


def test_relative_actions_are_the_checkpoints_unless_said() -> None:
    def delta_actions(names: list[str]) -> tuple[bool, ...] | None:
        return load_options(build_config(MINIMAL | {"action.relative": names})).delta_actions

    assert delta_actions([]) is None
    assert delta_actions(["b"]) == (False, True)
    assert delta_actions(["none"]) == (False, False)


def test_actions_that_the_state_is_added_to_are_no_changes_of_it() -> None:
    config = build_config(MINIMAL | {"action.kind": "delta"})
    check_action_kind(config, ())
    check_action_kind(build_config(MINIMAL), (1,))
    with pytest.raises(OptionError, match=r"'action.kind': expected absolute: .* to b, got delta"):
        check_action_kind(config, (1,))


def test_two_cameras_cannot_feed_one_view() -> None:
    values = MINIMAL | {
        "cameras": ["front", "back"],
        "camera.back.topic": "other",
        "camera.front.slot": "eye",
        "camera.back.slot": "eye",
    }
    with pytest.raises(OptionError, match="slot': .* got 'eye' more than once"):
        build_config(values)


def test_camera_groups_expand_by_key() -> None:
    names = set(expand(("front", "wrist")))
    assert {"camera.front.topic", "camera.wrist.max_age_s"} <= names
    assert not any("<key>" in name for name in names)
    assert camera_keys(None) == ()


def test_unknown_names_come_with_the_nearest_known_one() -> None:
    given = ["rate_hz", "rate", "camera.front.topick", "camera.back.topic", "zzz"]
    given += ["use_sim_time", "use_sim_times"]
    assert unknown_parameters(given, ("front",)) == {
        "rate": "did you mean 'rate_hz'?",
        "camera.front.topick": "did you mean 'camera.front.topic'?",
        "camera.back.topic": "add 'back' to cameras",
        "zzz": "",
        "use_sim_times": "",
    }
    former = unknown_parameters(["camera.front.compressed"], ("front",))["camera.front.compressed"]
    assert "camera.<key>.transport" in former


def test_qos_overrides_of_topics_that_are_no_input_are_unknown() -> None:
    known = [f"qos_overrides./image.subscription.{policy}" for policy in ("depth", "reliability")]
    given = [known[0], "qos_overrides./imag.subscription.depth", known[1] + "x"]
    assert unknown_parameters(given, (), known) == {
        "qos_overrides./imag.subscription.depth": f"the nearest that has one is '{known[0]}'",
        known[1] + "x": f"the nearest that has one is '{known[1]}'",
    }


def test_the_reference_in_the_docs_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "parameters.md"
    assert page.read_text() == render_markdown(), "python -m flashrt_ros.parameters > docs/..."
    for param in TABLE:
        assert f"| `{param.name}` | {param.kind} |" in render_markdown()
        assert param.doc.endswith("."), param.name


@pytest.mark.jazzy
@pytest.mark.ros
class TestOnANode:
    """Declaring on a real node, with values as a parameter file would give them."""

    @pytest.fixture
    def declare(self) -> Any:
        rclpy = pytest.importorskip("rclpy")
        from rclpy.context import Context
        from rclpy.node import Node
        from rclpy.parameter import Parameter

        from flashrt_ros.declaration import NodeParameters

        context = Context()
        rclpy.init(args=[], context=context)
        nodes = []

        def make(values: dict[str, Any], configured: bool = False) -> Any:
            overrides = [Parameter(name, value=value) for name, value in values.items()]
            node = Node("params", context=context, parameter_overrides=overrides)
            nodes.append(node)
            return node, NodeParameters(node, lambda: configured)

        yield make
        for node in nodes:
            node.destroy_node()
        rclpy.shutdown(context=context)

    @staticmethod
    def set(node: Any, name: str, value: Any) -> Any:
        from rclpy.parameter import Parameter

        (result,) = node.set_parameters([Parameter(name, value=value)])
        return result

    def test_reads_what_was_given(self, declare: Any) -> None:
        _, parameters = declare(MINIMAL | {"rate_hz": 3, "camera.front.slot": "eye"})
        config = parameters.read()
        assert config.rate_hz == 3.0 and config.cameras[0].slot == "eye"
        assert parameters.unknown == {}

    def test_a_mistyped_value_fails_the_reading_until_it_is_mended(self, declare: Any) -> None:
        node, parameters = declare(MINIMAL | {"rate_hz": "fast", "camera.front.max_age_s": -1.0})
        with pytest.raises(OptionError, match=r"'rate_hz': expected float, got 'fast'"):
            parameters.read()
        assert self.set(node, "rate_hz", 4.0).successful
        with pytest.raises(OptionError, match=r"'camera.front.max_age_s'"):
            parameters.read()
        assert self.set(node, "camera.front.max_age_s", 1).successful
        config = parameters.read()
        assert config.rate_hz == 4.0 and config.cameras[0].max_age_s == 1.0

    def test_cameras_may_change_while_unconfigured(self, declare: Any) -> None:
        node, parameters = declare(MINIMAL | {"camera.back.topic": "rear"})
        assert parameters.unknown == {"camera.back.topic": "add 'back' to cameras"}
        assert self.set(node, "cameras", ["back"]).successful
        assert parameters.read().cameras[0].topic == "rear"
        assert "camera.front.topic" in parameters.unknown
        assert not node.has_parameter("camera.front.topic")

    def test_qos_overrides_follow_the_topics(self, declare: Any) -> None:
        name = "qos_overrides./rear.subscription.depth"
        node, parameters = declare(MINIMAL | {name: 3})
        assert list(parameters.unknown) == [name]
        assert self.set(node, "camera.front.topic", "rear").successful
        parameters.read()
        assert parameters.unknown == {}
        assert self.set(node, "camera.front.topic", "no topic").successful
        parameters.read()
        assert list(parameters.unknown) == [name]

    def test_setting_is_checked_and_refused_while_configured(self, declare: Any) -> None:
        node, _ = declare(MINIMAL)
        assert "out of range" in self.set(node, "rate_hz", -1.0).reason, "rclpy, by the descriptor"
        assert "expected 0 to 1000 Hz, got -1" in self.set(node, "rate_hz", -1).reason
        assert "expected string" in self.set(node, "prompt", 5).reason
        node, _ = declare(MINIMAL, configured=True)
        assert self.set(node, "rate_hz", 2.0).reason == (
            "parameter 'rate_hz' is read-only until cleanup; deactivate and clean up the node, set"
            " it, and configure again"
        )

    def test_descriptors_carry_meaning_unit_and_bounds(self, declare: Any) -> None:
        node, _ = declare(MINIMAL)
        rate = node.describe_parameter("rate_hz")
        assert "[Hz]" in rate.description
        assert rate.floating_point_range[0].to_value == 1000.0
        assert "read-only from configure to cleanup" in rate.additional_constraints
        assert node.describe_parameter("seed").integer_range[0].from_value == 0
        assert "cpu | cuda" in node.describe_parameter("device").additional_constraints


def test_settings_reach_the_policys_configuration() -> None:
    given = {"settings": ["channels=0,2", "action_steps=20"], "policy": "lingbot_va"}
    options = load_options(build_config(MINIMAL | given | {"camera.front.slot": "view_0"}))
    assert options.extra == {"channels": (0, 2), "action_steps": 20}
    _, config = configuration(options)
    assert (config.channels, config.action_steps) == ((0, 2), 20)


@pytest.mark.parametrize("name", OPTIONS_OF_SOME)
def test_the_table_says_which_policies_have_a_parameter(name: str) -> None:
    said = expand(())[name].doc.rpartition(" Of ")[2]
    having = {
        each for each in REGISTRY
        if name in {one.name for one in fields(find_policy(each).config("tiny"))}
    }  # fmt: skip
    assert {each for each in REGISTRY if f"`{each}`" in said} == having
