"""What every launch file of this package describes: one policy node, which activates itself.

A launch file names its parameter file and nothing else. Importing this module needs `launch` and
`launch_ros`; only launch files import it.
"""

from __future__ import annotations

import os

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from flashrt_core.errors import OptionError

from .paths import config_file

# Parameters that can be set on the command line over the parameter file.
OVERRIDES = {
    "device": "cpu or cuda",
    "checkpoint": "folder of the weights, or random:<seed>",
    "precision": "fp32, bf16, fp8, int4, fp8_int4, or a YAML file",
}
_SWITCH = ["true", "false"]
_RESPAWN_DELAY_S = 2.0


def policy_launch_description(parameter_file: str) -> LaunchDescription:
    """Describe one deployment.

    Args:
        parameter_file: name of the file in ``config/`` that ``params_file`` defaults to.

    Raises:
        OptionError: this package has no such parameter file.
    """
    arguments = [
        DeclareLaunchArgument(
            "params_file",
            default_value=str(config_file(parameter_file)),
            description="parameter file of the node; its top key must be /**",
        ),
        DeclareLaunchArgument(
            "namespace", default_value="", description="namespace of the node and its topics"
        ),
        DeclareLaunchArgument(
            "autostart",
            default_value="true",
            choices=_SWITCH,
            description="configure and activate the node; false leaves it unconfigured",
        ),
        DeclareLaunchArgument(
            "respawn",
            default_value="false",
            choices=_SWITCH,
            description="start the node again when its process ends by itself; with autostart it"
            " is configured and activated again, so the robot may move again",
        ),
        DeclareLaunchArgument(
            "use_sim_time",
            default_value="false",
            choices=_SWITCH,
            description="take the time from /clock, for simulation and bag replay",
        ),
        DeclareLaunchArgument(
            "log_level",
            default_value="info",
            choices=["debug", "info", "warn", "error", "fatal"],
            description="least severe log messages to show",
        ),
        *(
            DeclareLaunchArgument(
                name, default_value="", description=f"{text}; empty: as in the parameter file"
            )
            for name, text in OVERRIDES.items()
        ),
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=_start)])


def _start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The node, once the arguments have values."""

    def value(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    params_file = value("params_file")
    if not os.path.isfile(params_file):
        # rcl would only say that it failed to parse its arguments.
        raise OptionError("launch argument 'params_file'", expected="a file", got=params_file)
    # Given as strings: a checkpoint that looks like a number must not arrive as one.
    overrides = {
        name: ParameterValue(value(name), value_type=str) for name in OVERRIDES if value(name)
    }
    node = LifecycleNode(
        package="flashrt_ros",
        executable="policy_node",
        name="policy",
        namespace=value("namespace"),
        parameters=[
            params_file,
            {name: value(name) == "true" for name in ("use_sim_time", "autostart")} | overrides,
        ],
        ros_arguments=["--log-level", value("log_level")],
        output="screen",
        emulate_tty=True,
        respawn=value("respawn") == "true",
        respawn_delay=_RESPAWN_DELAY_S,
    )
    return [node]
