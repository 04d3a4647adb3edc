"""What launch/replay_bench.launch.py describes: one run of ``flashrt replay``, then the end.

The command starts the node itself, on /clock and on a DDS domain of its own, so that the launch
measures what the command does. Importing this module needs `launch`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, Shutdown
from launch.substitutions import LaunchConfiguration

from flashrt_core.errors import OptionError
from flashrt_ros.paths import config_file

_ARGUMENTS = {
    "bag": (None, "the recording: a rosbag2 folder, an .mcap or a .db3"),
    "params_file": ("pi05_tiny.yaml", "parameter file of the node; its top key must be /**"),
    "rate": ("1", "times the recorded timing, or max: as fast as the node follows"),
    "step": ("false", "one decision after the other, which repeats to the bit"),
    "remap": ("", "BAG_TOPIC:=NODE_TOPIC, several with commas between"),
    "seed": ("", "instead of that of the parameter file"),
    "domain": ("", "DDS domain; empty: one that nothing on this host uses"),
    "out": ("out", "folder for replay.json, .csv and .png and the log of the node"),
}
_CHOICES = {"step": ["true", "false"]}


def replay_launch_description() -> LaunchDescription:
    """Describe the run; OptionError when this package has no parameter file of the default's name.

    ``use_sim_time`` is no argument: a replay always gives the node its clock.
    """
    arguments = []
    for name, (default, description) in _ARGUMENTS.items():
        given: dict[str, Any] = {"choices": _CHOICES[name]} if name in _CHOICES else {}
        if default is not None:  # one without must be given
            value = str(config_file(default)) if name == "params_file" else default
            given["default_value"] = value
        arguments.append(DeclareLaunchArgument(name, description=description, **given))
    return LaunchDescription([*arguments, OpaqueFunction(function=_start)])


def _start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The command, once the arguments have values."""

    def value(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    for name in ("bag", "params_file"):
        if not os.path.exists(value(name)):
            raise OptionError(f"launch argument '{name}'", expected="a path", got=value(name))
    # Not `flashrt`: of a workspace that colcon built, only lib/flashrt_ros is on a path.
    command = [sys.executable, "-m", "flashrt_ros.cli", "replay", value("bag")]
    command += ["--params", value("params_file"), "--out", value("out")]
    command += ["--step"] if value("step") == "true" else ["--rate", value("rate")]
    for name in ("seed", "domain"):
        command += [f"--{name}", value(name)] if value(name) else []
    for remap in filter(None, value("remap").split(",")):
        command += ["--remap", remap]
    return [
        ExecuteProcess(
            cmd=command,
            name="replay",
            output="screen",
            emulate_tty=True,
            on_exit=[Shutdown(reason="the replay has ended")],
        )
    ]
