"""What every launch file of this package describes: one policy node, brought to `active`.

A launch file names its parameter file and nothing else. Importing this module needs `launch` and
`launch_ros`; only launch files import it.
"""

from __future__ import annotations

import os
import time

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    OpaqueFunction,
    RegisterEventHandler,
    TimerAction,
)
from launch.event_handlers import OnProcessStart
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from lifecycle_msgs.msg import Transition

from flashrt_core.errors import OptionError

from .paths import config_file

# Parameters that can be set on the command line over the parameter file.
OVERRIDES = {
    "device": "cpu or cuda",
    "checkpoint": "folder of the weights, or random:<seed>",
    "precision": "fp32, bf16, fp8, or a YAML file",
}
_SWITCH = ["true", "false"]
_RESPAWN_DELAY_S = 2.0
# A killed process keeps its name until DDS misses it, some 20 s; till then it is refused to others.
_ASK_AGAIN_S, _ASK_FOR_S = 3.0, 40.0


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
    """The node and the events that start it, once the arguments have values."""

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
            {"use_sim_time": value("use_sim_time") == "true", **overrides},
        ],
        ros_arguments=["--log-level", value("log_level")],
        output="screen",
        emulate_tty=True,
        respawn=value("respawn") == "true",
        respawn_delay=_RESPAWN_DELAY_S,
    )
    if value("autostart") != "true":
        return [node]
    return [*_Starts(node).handlers(), _activate_when_configured(node), node]


class _Starts:
    """Configures the node each time that its process starts.

    The first time it is asked once: what is wrong then is for a person to mend. A respawned node is
    asked again while the name of the process that died may still be taken.
    """

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self._count = 0
        self._last_s = 0.0

    def handlers(self) -> list[RegisterEventHandler]:
        """For the start of the process, and for a configuration that failed."""
        started = OnProcessStart(
            target_action=self._node, on_start=[OpaqueFunction(function=self._started)]
        )
        failed = OnStateTransition(
            target_lifecycle_node=self._node,
            start_state="configuring",
            goal_state="unconfigured",
            entities=[OpaqueFunction(function=self._failed)],
        )
        return [RegisterEventHandler(started), RegisterEventHandler(failed)]

    def _started(self, context: LaunchContext) -> list[LaunchDescriptionEntity]:
        self._count += 1
        self._last_s = time.monotonic()
        return [_request(self._node, Transition.TRANSITION_CONFIGURE)]

    def _failed(self, context: LaunchContext) -> list[LaunchDescriptionEntity]:
        if self._count < 2 or time.monotonic() - self._last_s > _ASK_FOR_S:
            return []
        again = _request(self._node, Transition.TRANSITION_CONFIGURE)
        return [TimerAction(period=_ASK_AGAIN_S, actions=[again])]


def _activate_when_configured(node: LifecycleNode) -> RegisterEventHandler:
    """Activate on the step from `configuring` to `inactive`, and on no other way to `inactive`.

    A request to activate sent before the node is inactive is refused, and a deactivation by hand
    must last.
    """
    return RegisterEventHandler(
        OnStateTransition(
            target_lifecycle_node=node,
            start_state="configuring",
            goal_state="inactive",
            entities=[_request(node, Transition.TRANSITION_ACTIVATE)],
        )
    )


def _request(node: LifecycleNode, transition: int) -> EmitEvent:
    return EmitEvent(
        event=ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition)
    )
