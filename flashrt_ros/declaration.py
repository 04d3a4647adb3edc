"""The parameter table on a node: declared, guarded while configured, read back typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import NameValidationException
from rclpy.node import Node
from rclpy.parameter import Parameter

from flashrt_core.errors import OptionError
from flashrt_ros.parameters import (
    NodeConfig,
    Param,
    build_config,
    camera_keys,
    expand,
    transport_topic,
)
from flashrt_ros.unknown_parameters import QOS, QOS_POLICIES, refuse_execution, unknown_parameters

_ARRAYS = {
    "int[]": Parameter.Type.INTEGER_ARRAY,
    "float[]": Parameter.Type.DOUBLE_ARRAY,
    "string[]": Parameter.Type.STRING_ARRAY,
}


class NodeParameters:
    """Declares the table on a node and reads it.

    Declaring never fails for what a user wrote: a mistyped override is kept in ``errors`` and makes
    :meth:`read` (that is, configure) fail with its message, until a valid value is set. rclpy
    itself would raise from the constructor, so that the node would not even start.

    Args:
        node: the node to declare on.
        configured: says whether the node is configured, when parameters are read-only.
    """

    def __init__(self, node: Node, configured: Callable[[], bool]) -> None:
        self._node = node
        self._configured = configured
        self._declared: dict[str, Param] = {}
        # rclpy has no public way to list the values given in files and on the command line.
        self._given: dict[str, Any] = {
            name: given.value for name, given in node._parameter_overrides.items()
        }
        self.errors: dict[str, OptionError] = {}
        self.unknown: dict[str, str] = {}
        self._declare(())
        self._follow_cameras()
        node.add_on_set_parameters_callback(self._on_set)
        node.add_post_set_parameters_callback(self._after_set)

    def read(self) -> NodeConfig:
        """Return the checked configuration.

        Raises:
            OptionError: a value is mistyped, out of range, missing or contradicts another; or an
                output is on, and a parameter of the execution is unknown.
        """
        self._follow_cameras()
        for error in self.errors.values():
            raise error
        values = {name: self._node.get_parameter(name).value for name in self._declared}
        config = build_config(values)
        if config.execution.enabled:
            refuse_execution(self.unknown)
        return config

    def _follow_cameras(self) -> None:
        """Declare the group of every camera key; forget the groups of keys that are gone."""
        try:
            keys = camera_keys(self._node.get_parameter("cameras").value)
        except OptionError as error:
            self.errors["cameras"] = error
            keys = ()
        wanted = expand(keys)
        for name in [name for name in self._declared if name not in wanted]:
            self._node.undeclare_parameter(name)
            del self._declared[name]
            self.errors.pop(name, None)
        self._declare(keys)
        self.unknown = unknown_parameters(self._given, keys, self._qos_names(keys))

    def _qos_names(self, keys: Sequence[str]) -> list[str]:
        """Parameters by which the QoS of the topics as now named can be changed."""
        topics = [("publisher", "~/action_chunk")]
        value = {name: str(self._node.get_parameter(name).value) for name in self._declared}
        for key in keys:
            topic, transport = (value[f"camera.{key}.{each}"] for each in ("topic", "transport"))
            topics.append(("subscription", transport_topic(topic, transport)))
        topics.append(("subscription", value["joints.topic"]))
        found = []
        for role, topic in topics:
            try:
                resolved = self._node.resolve_topic_name(topic)
            except (NameValidationException, RuntimeError, ValueError):
                continue  # not a topic name: subscribing will say so
            found += [f"{QOS}{resolved}.{role}.{policy}" for policy in QOS_POLICIES]
        return found

    def _declare(self, keys: Sequence[str]) -> None:
        for name, param in expand(keys).items():
            if name in self._declared:
                continue
            value = param.default
            if name in self._given:
                try:
                    value = param.check(self._given[name])
                except OptionError as error:
                    self.errors[name] = error
            self._declared[name] = param
            stored = list(value) if isinstance(value, tuple) else value
            self._node.declare_parameter(name, stored, _descriptor(param), ignore_override=True)
            if stored == []:
                # rclpy takes an empty list for a byte array.
                self._node.set_parameters([Parameter(name, _ARRAYS[param.kind], [])])

    def _on_set(self, parameters: list[Any]) -> SetParametersResult:
        for parameter in parameters:
            param = self._declared.get(parameter.name)
            if param is None:
                continue
            if param.read_only and self._configured():
                reason = (
                    f"parameter '{param.name}' is read-only until cleanup; deactivate and clean up"
                    " the node, set it, and configure again"
                )
                return SetParametersResult(successful=False, reason=reason)
            try:
                if parameter.type_ == Parameter.Type.NOT_SET:
                    raise OptionError(
                        f"parameter '{param.name}'",
                        expected=param.kind,
                        got="unset",
                        remedy="set it to its default instead",
                    )
                param.check(parameter.value)
            except OptionError as error:
                return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _after_set(self, parameters: list[Any]) -> None:
        for parameter in parameters:
            self.errors.pop(parameter.name, None)


def _descriptor(param: Param) -> ParameterDescriptor:
    unit = f" [{param.unit}]" if param.unit else ""
    notes = [param.limits()] if param.choices else []
    if param.read_only:
        notes.append("read-only from configure to cleanup")
    descriptor = ParameterDescriptor(
        name=param.name,
        description=param.doc + unit,
        additional_constraints="; ".join(notes),
        # Types are checked by the table, which takes 5 for 5.0 and [] for an empty array.
        dynamic_typing=True,
    )
    if param.bounds and param.kind == "float":
        low, high = param.bounds
        descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
    elif param.bounds and param.kind == "int":
        low, high = param.bounds
        descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
    return descriptor
