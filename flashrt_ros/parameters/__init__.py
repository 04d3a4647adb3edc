"""The parameters of the policy node: one table, and the typed configuration read from it.

``TABLE`` is the only declaration. The node, the documentation (docs/parameters.md, printed by
``python -m flashrt_ros.parameters``) and the checks all come from it. Nothing here imports rclpy,
so that tools can read the table without ROS; ``declaration.py`` puts it on a node.
"""

from .config import (
    JOINTS,
    NO_ACTION,
    CameraConfig,
    NodeConfig,
    build_config,
    camera_keys,
    transport_topic,
)
from .document import render_markdown
from .param import Param
from .table import ACTION_KINDS, COMPRESSED, HOLD, RAW, STOP, TABLE, WAIT, expand

__all__ = [
    "ACTION_KINDS",
    "COMPRESSED",
    "HOLD",
    "JOINTS",
    "NO_ACTION",
    "RAW",
    "STOP",
    "TABLE",
    "WAIT",
    "CameraConfig",
    "NodeConfig",
    "Param",
    "build_config",
    "camera_keys",
    "expand",
    "render_markdown",
    "transport_topic",
]
