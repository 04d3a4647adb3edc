"""Parameters of the execution: what goes together, and the examples in the parameter files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashrt_core.errors import OptionError
from flashrt_core.policies import find_policy
from flashrt_ros.execution.parameters import NAMES
from flashrt_ros.loading import check_delay, check_replan_rows, load_options
from flashrt_ros.parameters import TABLE, build_config
from flashrt_ros.unknown_parameters import refuse_execution, unknown_parameters

CONFIG = Path(__file__).parents[2] / "config"
MINIMAL: dict[str, Any] = {
    "cameras": ["front"],
    "camera.front.topic": "image",
    "joints.names": ["a", "b"],
}
OPTIONS = [
    ({"output.trajectory.topic": "t", "action.kind": "delta"}, "as action.kind is delta"),
    ({"output.commands.topic": "t", "action.kind": "delta"}, "as action.kind is delta"),
    ({"output.trajectory.topic": "t", "action.kind": "velocity"}, "action.kind is velocity"),
    ({"output.commands.topic": "t", "safe.action": "stop_trajectory"}, "without trajectories"),
    (
        {
            "output.trajectory.topic": "t",
            "safe.action": "stop_trajectory",
            "action.names": ["a", "hand"],
        },
        "as no position of hand comes in",
    ),
    ({"output.trajectory.topic": "t", "output.commands.topic": "t"}, "another topic"),
    (
        {"output.commands.topic": "t", "safe.controller_state.topic": "s"},
        "'safe.controller_timeout_s': expected more than 0",
    ),
    ({"limits.lower": [0.0, 0.0]}, "'limits.lower': expected none, or an output"),
    ({"execution.replan_rows": 3}, "'execution.replan_rows': expected none, or an output"),
    (
        {"output.commands.topic": "t", "limits.lower": [0.0]},
        "expected 2 values, one of each action",
    ),
    (
        {"output.commands.topic": "t", "limits.lower": [0, 1], "limits.upper": [1, 1]},
        "'limits.upper': expected more than 1 of limits.lower for 'b', got 1",
    ),
    ({"output.commands.topic": "t", "limits.max_step": [0.0, 1.0]}, "'limits.max_step': expected"),
    ({"output.commands.topic": "t", "safe.causes": ["boredom"]}, "'safe.causes': expected"),
    (
        {"output.commands.topic": "t", "safe.action": "stop", "action.kind": "velocity"},
        "'safe.action': expected hold, as action.kind is velocity.*set it to hold",
    ),
    (
        {
            "output.commands.topic": "t",
            "limits.max_step": [0.1, 0.1, 0.1],
            "joints.names": ["a", "gripper"],
            "action.names": ["a", "Gripper", "b"],
        },
        "'limits.max_step': expected joints' names.*got 'Gripper', 'b'.*mean 'gripper'",
    ),
    (
        {"output.commands.topic": "t", "execution.replan_rows": 3, "rate_hz": 0.0},
        "expected 0, as rate_hz is 0",
    ),
    (
        {
            "output.commands.topic": "t",
            "execution.strategy": "real_time_chunking",
            "rate_hz": 0.0,
        },
        "'execution.strategy': expected another than real_time_chunking, as rate_hz is 0",
    ),
    (
        {"output.commands.topic": "t", "execution.rtc.decay": "ones"},
        "'execution.rtc.decay': expected none, without execution.strategy real_time_chunking",
    ),
    (
        {"output.commands.topic": "t", "execution.ensemble_decay": 0.5},
        "'execution.ensemble_decay': expected none, without .* temporal_ensemble, got 0.5",
    ),
]


@pytest.mark.parametrize(("change", "message"), OPTIONS)
def test_options_that_do_not_go_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as error:
        build_config(MINIMAL | change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("output.rate_hz", 50.0, "100.0"),
        ("output.trajectory.stamp", "zero", "now"),
        ("execution.strategy", "temporal_ensemble", "replace"),
        ("execution.strategy", "real_time_chunking", "replace"),
        ("execution.ensemble_decay", 0.5, "0.01"),
        ("execution.rtc.decay", "linear", "exponential"),
        ("execution.interpolation", "hold", "linear"),
        ("execution.replan_rows", 3, "none"),
        ("execution.delay_s", 0.1, "none"),
        ("execution.delay_quantile", 0.5, "0.95"),
        ("limits.lower", [0.0, 0.0], "none"),
        ("limits.upper", [1.0, 1.0], "none"),
        ("limits.max_step", [1.0, 1.0], "none"),
        ("limits.on_violation", "stop", "clamp"),
        ("safe.action", "stop", "hold"),
        ("safe.causes", ["stale"], "stale, failed"),
        ("safe.controller_timeout_s", 1.0, "none"),
        ("safe.controller_state.topic", "t", "none"),
        ("safe.controller_state.type", "a/msg/B", "control_msgs/.*"),
        ("safe.stop_within_s", 1.0, "0.1"),
    ],
)
def test_what_only_an_output_heeds_is_refused_without_one(
    name: str, value: Any, default: str
) -> None:
    message = f"'{name}': expected {default}, or an output that it applies to"
    with pytest.raises(OptionError, match=message):
        build_config(MINIMAL | {name: value})


def test_every_parameter_of_the_outputs_is_in_the_test_above() -> None:
    mark = test_what_only_an_output_heeds_is_refused_without_one.pytestmark[0]  # type: ignore[attr-defined]
    tested = {case[0] for case in mark.args[1]}
    assert tested == NAMES - {
        "output.trajectory.topic",
        "output.commands.topic",
        "execution.gap_s",
    }


def test_real_time_chunking_is_a_plan_that_can_and_a_policy_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = MINIMAL | {"output.commands.topic": "t"}
    assert not load_options(build_config(values)).real_time_chunking
    config = build_config(values | {"execution.strategy": "real_time_chunking"})
    assert load_options(config).real_time_chunking
    monkeypatch.setattr(type(find_policy("pi05")), "continues_chunks", False)
    with pytest.raises(OptionError, match="'execution.strategy': expected another: policy 'pi05'"):
        load_options(config)


def test_nothing_is_asked_for_by_default() -> None:
    assert not build_config(MINIMAL).execution.enabled
    assert {p.name for p in TABLE} >= {"output.rate_hz", "limits.max_step", "safe.action"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("limits.max_steps", "did you mean 'limits.max_step'?"),
        ("safe.actoin", "did you mean 'safe.action'?"),
        ("safe.zzzzzzzzzzzz", "take it out"),
        ("output.rate", "did you mean 'output.rate_hz'?"),
        ("limit.max_step", "did you mean 'limits.max_step'?"),
    ],
)
def test_an_unknown_limit_is_refused(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}': expected a known name") as error:
        refuse_execution(unknown_parameters([name], ("front",)))
    assert hint in str(error.value) and "\n" not in str(error.value)


def test_other_unknown_names_are_not() -> None:
    refuse_execution(unknown_parameters(["zzz", "rate", "camera.front.topick"], ("front",)))


def test_a_chunk_must_reach_beyond_the_row_that_brings_the_next() -> None:
    config = build_config(MINIMAL | {"output.commands.topic": "t", "execution.replan_rows": 10})
    check_replan_rows(config, 11)
    check_replan_rows(config, 0)
    with pytest.raises(OptionError, match="'execution.replan_rows': expected less than 10.* 10"):
        check_replan_rows(config, 10)


def test_a_chunk_must_last_until_it_is_expected() -> None:
    given = {"output.commands.topic": "t", "action.dt_s": 0.02, "execution.delay_s": 0.2}
    config = build_config(MINIMAL | given)
    check_delay(config, 11)
    check_delay(config, 0)
    with pytest.raises(OptionError, match="'execution.delay_s': expected less than 0.2 s"):
        check_delay(config, 10)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


@pytest.mark.parametrize("name", ["pi05_tiny.yaml", "pi05_thor.yaml"])
def test_the_commented_example_works_when_it_is_taken_in(name: str) -> None:
    text = (CONFIG / name).read_text()
    as_it_is, mark, example = text.partition("    # Let the node execute its chunks")
    assert mark
    example = re.sub("(?m)^    # ", "    ", example.partition("\n")[2])

    def config(document: str) -> Any:
        values = dict(flat(yaml.safe_load(document)["/**"]["ros__parameters"]))
        assert set(values) >= {"prompt"}
        return build_config(values).execution

    assert not config(as_it_is).enabled
    taken = config(as_it_is + example)
    assert 0 < taken.replan_rows < 10, "the horizon of the presets"
    assert taken.trajectory_topic and taken.safe_action == "stop_trajectory"
    assert len(taken.max_step) == len(taken.lower) == len(taken.names)
