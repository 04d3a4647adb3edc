"""What a parameter file makes the node do and subscribe to, read without starting a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flashrt_core.errors import OptionError
from flashrt_ros.parameters import JOINTS, NodeConfig, build_config, camera_keys
from flashrt_ros.unknown_parameters import unknown_parameters

from .output import writing

IMAGE_TYPE = "sensor_msgs/msg/Image"
COMPRESSED_TYPE = "sensor_msgs/msg/CompressedImage"
JOINTS_TYPE = "sensor_msgs/msg/JointState"
# Groups of parameters that move a robot, or only say how.
_OUTPUT_GROUPS = ("output", "execution", "limits", "safe")


@dataclass(frozen=True)
class NodeInput:
    """One subscription of the node.

    Attributes:
        name: camera key, or ``joints``; what ``~/decide`` calls it.
        topic: absolute topic name.
        msgtype: ``package/msg/Name``.
        parameter: the parameter that holds the topic, for messages.
    """

    name: str
    topic: str
    msgtype: str
    parameter: str


@dataclass(frozen=True)
class ParameterFile:
    """A parameter file, and what the node makes of it.

    Attributes:
        path: of the file.
        config: what its values mean.
        values: the parameters that count for the node, by full name.
    """

    path: Path
    config: NodeConfig
    values: Mapping[str, Any]

    @property
    def inputs(self) -> tuple[NodeInput, ...]:
        """Cameras in declared order, then the joints where the policy gets any."""
        found = [
            NodeInput(
                camera.key,
                _absolute(camera.topic),
                COMPRESSED_TYPE if camera.compressed else IMAGE_TYPE,
                f"camera.{camera.key}.topic",
            )
            for camera in self.config.cameras
        ]
        if self.config.joints_names:
            topic = _absolute(self.config.joints_topic)
            found.append(NodeInput(JOINTS, topic, JOINTS_TYPE, "joints.topic"))
        return tuple(found)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the parameters that are about the outputs, in order."""
        return tuple(name for name in self.values if name.split(".")[0] in _OUTPUT_GROUPS)

    def changed(self, values: Mapping[str, Any]) -> ParameterFile:
        """The same with other values, by full name; OptionError where the node refuses them."""
        keys = camera_keys(self.values.get("cameras", ()))
        for name, hint in unknown_parameters(values, keys).items():
            raise OptionError(
                f"parameter '{name}'",
                expected="one of docs/parameters.md",
                got="none of them",
                remedy=hint or None,
            )
        merged = {**self.values, **values}
        return ParameterFile(self.path, build_config(merged), merged)

    def write_without_outputs(self, path: Path) -> None:
        """Write what counts for the node, without :attr:`outputs`, as a parameter file.

        Raises:
            OptionError: the file cannot be written.
        """
        off = set(self.outputs)
        kept = {name: value for name, value in self.values.items() if name not in off}
        with writing("parameter file", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                yaml.safe_dump({"/**": {"ros__parameters": kept}}, sort_keys=False, width=4096)
            )


def read_parameters(path: Path, node: str = "policy") -> ParameterFile:
    """Read a ROS parameter file; the keys that match ``node`` count, later ones win.

    Raises:
        OptionError: no such file, not YAML, nothing in it for this node, or values that the node
            would refuse.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        # str() of an OSError would name the file a second time.
        reason = error.strerror if isinstance(error, OSError) else "text that is not UTF-8"
        raise OptionError(
            f"parameter file '{path}'",
            expected="a readable file",
            got=reason,
            remedy="name the file that the node runs with, or one like those in config/",
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise OptionError(f"parameter file '{path}'", expected="YAML", got=error) from None
    values: dict[str, Any] = {}
    for key, body in (document if isinstance(document, dict) else {}).items():
        if str(key) in ("/**", "/*", "/**/" + node, "/" + node, node) and isinstance(body, dict):
            values.update(_flat(body.get("ros__parameters") or {}))
    if not values:
        raise OptionError(
            f"parameter file '{path}'",
            expected=f"parameters under '/**: ros__parameters:' or '/{node}: ros__parameters:'",
            got="none",
        )
    try:
        return ParameterFile(path, build_config(values), values)
    except OptionError as error:
        raise OptionError(f"parameter file '{path}'", got=error) from error


def _absolute(topic: str) -> str:
    return "/" + topic.lstrip("/")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
