"""Parameter files and -p arguments: the last one on the command line counts, whatever its type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")

import rclpy
from rclpy.context import Context
from rclpy.node import Node

from flashrt_ros import command_line
from flashrt_ros.command_line import Asked, Source, sources

from .harness import CONFIGURE, Robot

pytestmark = pytest.mark.ros


def test_sources_in_their_order() -> None:
    arguments = ["node", "-p", "not:=ros", "--ros-args", "-r", "a:=b", "--params-file", "one.yaml"]
    arguments += ["-p", "x:=1", "--", "-p", "not:=ros", "--ros-args", "--param", "n:y:=2", "-p"]
    assert sources(arguments) == [
        Source("--params-file", "one.yaml"),
        Source("-p", "x:=1"),
        Source("--param", "n:y:=2"),
    ]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Callable[..., tuple[dict[str, Any], Asked]]]:
    """``ask(*parts)``: values that a node /here/arm gets, and what was asked.

    A part with a newline is a parameter file, another one the text behind -p.
    """
    contexts: list[Context] = []

    def run(*parts: str) -> tuple[dict[str, Any], Asked]:
        arguments = ["--ros-args", "-r", "__node:=arm", "-r", "__ns:=/here"]
        for number, part in enumerate(parts):
            if "\n" in part:
                key, body = part.split("\n", 1)
                file = tmp_path / f"{number}.yaml"
                file.write_text(f"{key}:\n  ros__parameters: {{{body}}}\n")
                arguments += ["--params-file", str(file)]
            else:
                arguments += ["-p", part]
        context = Context()
        contexts.append(context)
        rclpy.init(args=arguments, context=context)
        asked = command_line.read(arguments, "policy", context)
        node = Node(
            "policy",
            context=context,
            parameter_overrides=list(asked.overrides),
            automatically_declare_parameters_from_overrides=True,
        )
        values = {name: node.get_parameter(name).value for name in node._parameters}
        node.destroy_node()
        return values, asked

    yield run
    for context in contexts:
        rclpy.shutdown(context=context)


@pytest.mark.jazzy
@pytest.mark.parametrize(
    ("parts", "value"),
    [
        (["/**\nx: 5", "x:=20.0"], 20.0),
        (["/**\nx: 5.0", "x:=abc"], "abc"),
        (["/**\nx: true", "x:=3"], 3),
        (["/**\nx: abc", "x:=3"], 3),
        (["/**\nx: [a, b]", "x:=a"], "a"),
        (["/**\nx: 5", "/**\nx: 20.0"], 20.0),
        (["/**\nx: 5.0", "/**\nx: 20", "/**\nx: end"], "end"),
        (["x:=7", "/**\nx: 2.5"], 2.5),
        (["x:=1", "x:=2.5", "x:='4'"], "4"),
        (["/here/arm\nx: 5", "x:=6"], 6),
        (["/here/arm\nx: 5", "/**\nx: 6"], 6),
        (["/**\nx: 5", "other:x:=20.0"], 5),
        (["/**\nx: 5", "x:=6"], 6),
    ],
)
def test_the_last_source_counts(ask: Callable[..., Any], parts: list[str], value: Any) -> None:
    values, _ = ask(*parts)
    assert values["x"] == value and type(values["x"]) is type(value)


@pytest.mark.jazzy
def test_what_rcl_gets_right_is_left_to_it(ask: Callable[..., Any]) -> None:
    values, asked = ask("/**\nx: 5, y: [1, 2], z: a", "x:=6", "/**\nz: b")
    assert asked == Asked()
    assert (values["x"], list(values["y"]), values["z"]) == (6, [1, 2], "b")
    assert ask() == (ask()[0], Asked())


@pytest.mark.jazzy
def test_parameters_of_rclpy_itself_count_too(ask: Callable[..., Any]) -> None:
    values, _ = ask("/**\nuse_sim_time: 'yes'", "use_sim_time:=true")
    assert values["use_sim_time"] is True


def test_sources_that_set_nothing_are_named(ask: Callable[..., Any]) -> None:
    _, asked = ask("/polici\nx: 5", "/**\ny: 1", "hand:x:=3")
    assert [source.text.rsplit("/")[-1] for source in asked.idle] == ["0.yaml", "hand:x:=3"]


def test_on_the_node(start: Callable[..., Robot], tmp_path: Path) -> None:
    stray = tmp_path / "stray.yaml"
    stray.write_text("polici:\n  ros__parameters: {rate_hz: 99.0}\n")
    arguments = ("-p", "rate_hz:=20.0", "--params-file", str(stray))
    robot = start(rate_hz=5, arguments=arguments)
    assert robot.change(CONFIGURE), robot.target.log
    assert robot.fresh_part("decisions")["wanted_rate_hz"] == "20.000"
    robot.wait_log("stray.yaml' sets no parameter of")
    assert "the top key of the file must be /**" in robot.target.log
    assert "stray.yaml" in robot.fresh_part("node")["idle_parameter_sources"]
    assert robot.levels["policy: node"][0] == 1

    wrong = start(rate_hz=5.0, arguments=("-p", "rate_hz:=abc"))
    assert not wrong.change(CONFIGURE)
    wrong.wait_log("configure failed: parameter 'rate_hz': expected float, got 'abc' (string)")
