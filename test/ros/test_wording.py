"""Whatever loading refuses, the node names the parameter that its user has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_core.errors import FlashRTError, InputError, OptionError, SessionError, StaleStateError
from flashrt_core.load import load
from flashrt_ros.loading import check_history, load_options
from flashrt_ros.parameters import build_config
from flashrt_ros.wording import in_node_terms, one_line

POLICIES = ["groot_n17", "lingbot_va", "pi05"]
pytestmark = pytest.mark.ros
VALUES: dict[str, Any] = {
    "prompt": "wave",
    "horizon": 2,
    "steps": 1,
    "threads": 1,
    "cameras": ["front"],
    "camera.front.topic": "image",
    "camera.front.slot": "base_0_rgb",
    "joints.names": ["a", "b"],
}


def refusal(**changes: Any) -> str:
    config = build_config(VALUES | {key.replace("__", "."): v for key, v in changes.items()})
    with pytest.raises(FlashRTError) as found:
        load(load_options(config))
    return str(in_node_terms(found.value, config))


@pytest.mark.parametrize(
    ("changes", "begin"),
    [
        ({"policy": "pi99"}, f"parameter 'policy': expected one of {POLICIES}, got 'pi99'"),
        ({"preset": "huge"}, "parameter 'preset': "),
        ({"precision": "fp4"}, "parameter 'precision': "),
        ({"horizon": 4000}, "parameter 'horizon': expected a whole number in 1..256, got 4000"),
        ({"steps": 1024}, "parameter 'steps': "),
        ({"prompt_buckets": [64, 32]}, "parameter 'prompt_buckets': "),
        ({"prompt_buckets": [4]}, "parameter 'prompt_buckets': expected room for the state"),
        ({"camera__front__slot": "eye"}, "parameter 'camera.front.slot': expected at least one of"),
        ({"camera__front__slot": ""}, "parameter 'camera.front.slot': expected at least one of"),
        (
            {"action__names": [f"a{k}" for k in range(40)]},
            "number of names in parameter 'action.names': expected a whole number in 1..32, got 40",
        ),
        (
            {"joints__names": [], "action__names": ["a"]},
            "number of names in parameter 'joints.names': expected 1 or more",
        ),
        ({"prompt": "\u202e\u200b"}, "prompt: expected an instruction with at least one visible"),
        ({"prompt": "a\0b"}, "prompt: expected no control characters but newline and tab, got U+0"),
    ],
)
def test_load_refusals(changes: dict[str, Any], begin: str) -> None:
    text = refusal(**changes)
    assert text.startswith(begin), text
    assert "option" not in text and "override" not in text and "\n" not in text


@pytest.mark.parametrize("content", ["[]", "{}", "3", '{"norm_stats": {"state": null}}'])
def test_statistics_of_another_layout(tmp_path: Path, content: str) -> None:
    file = tmp_path / "norm_stats.json"
    file.write_text(content)
    text = refusal(norm_stats=str(file))
    assert "expected a list of numbers at norm_stats.state.q01, got " in text
    assert "Error" not in text, "the reader's own exception tells a user nothing"


def test_remedies_are_possible_for_a_ros_user() -> None:
    session = load(load_options(build_config(VALUES | {"prompt": ""})))
    with pytest.raises(FlashRTError) as save:
        session.snapshot("x")
    assert "activate the node" in str(in_node_terms(save.value))
    with pytest.raises(FlashRTError) as act:
        session.act()
    assert str(in_node_terms(act.value)).endswith("; decide without reuse_context")
    with pytest.raises(FlashRTError) as observe:
        session.observe(None)  # type: ignore[arg-type]
    assert str(in_node_terms(observe.value)).endswith("; call ~/set_prompt first")
    session.engine.close()


def test_other_errors_pass_unchanged() -> None:
    error = OptionError("parameter 'rate_hz'", expected="float", got="x", remedy="mend it")
    assert in_node_terms(error) is error


def test_places_in_c_sources_are_left_out() -> None:
    text = "failed to take, at ./src/rcl/subscription.c:572\n: no type, at /project/src/a.cpp:139"
    assert one_line(RuntimeError(text)) == "failed to take : no type"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            InputError(
                "pictures", remedy="record() each while the chunk is executed, or restart()"
            ),
            "call ~/restart for a new episode",
        ),
        (
            StaleStateError("session", remedy="restore a capsule, or restart() for a new episode"),
            "call ~/restore_capsule, or ~/restart for a new episode",
        ),
        (StaleStateError("stage", remedy="run it"), "decide without reuse_context"),
        (SessionError("the last stage alone", remedy="decide()"), "decide without reuse_context"),
    ],
)
def test_calls_of_python_become_those_of_the_node(error: FlashRTError, said: str) -> None:
    assert str(in_node_terms(error)).endswith(said)


def test_only_a_policy_of_whole_chunks_has_gaps() -> None:
    config = build_config(VALUES | {"execution.gap_s": 1.0})
    looking: Any = SimpleNamespace(history=object())
    alone: Any = SimpleNamespace(history=None)
    check_history(config, looking)
    with pytest.raises(OptionError, match=r"'execution.gap_s': expected 5: policy 'pi05' decides"):
        check_history(config, alone)
    config = build_config(
        VALUES | {"rate_hz": 10.0, "output.commands.topic": "c", "execution.replan_rows": 2}
    )
    with pytest.raises(OptionError, match="decides where a chunk ends"):
        check_history(config, looking)
