"""What the command line asks for, source by source: parameter files and ``-p`` arguments.

rcl merges them into one structure that holds a value of each YAML type beside the others, and of
two types of one parameter not the later wins but the first in a fixed order: ``-p rate_hz:=20.0``
over a file with ``rate_hz: 5`` is lost without a word. Here each source is read alone, by rcl
itself, so that its rules of names and types hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node
from rclpy.parameter import Parameter

from flashrt_core.errors import OptionError

_OPTIONS = ("-p", "--param")
_FILE = "--params-file"


@dataclass(frozen=True)
class Source:
    """One ``--params-file FILE`` or ``-p NAME:=VALUE``."""

    flag: str
    text: str

    @property
    def is_file(self) -> bool:
        """A parameter file, not a single value."""
        return self.flag == _FILE


@dataclass(frozen=True)
class Asked:
    """What to give a node beside its arguments.

    Attributes:
        overrides: parameters whose last source is not the one that rcl would take.
        idle: sources without a parameter for this node.
    """

    overrides: tuple[Parameter[Any], ...] = ()
    idle: tuple[Source, ...] = ()


def sources(arguments: Iterable[str]) -> list[Source]:
    """The parameter sources among command line arguments, in order."""
    found: list[Source] = []
    flag, ros = "", False
    for argument in arguments:
        if flag:
            found.append(Source(flag, argument))
            flag = ""
        elif argument == "--ros-args":
            ros = True
        elif argument == "--":
            ros = False
        elif ros and argument in (*_OPTIONS, _FILE):
            flag = argument
    return found


def check_files(arguments: Iterable[str]) -> None:
    """OptionError where a parameter file cannot be read: rcl tells that in lines of its own."""
    for source in sources(arguments):
        if not source.is_file:
            continue
        try:
            with open(source.text, "rb") as file:
                file.read(1)
        except (OSError, ValueError) as error:  # ValueError: a NUL
            raise OptionError(
                f"argument '{source.flag}'",
                expected="a parameter file that can be read",
                got=f"'{source.text}': {getattr(error, 'strerror', None) or error}",
                remedy="give the path of a file, as config/pi05_tiny.yaml is one",
            ) from error


def read(arguments: Sequence[str], name: str, context: Any = None) -> Asked:
    """Compare what each source asks for with what rcl makes of all.

    The last source of a parameter counts.

    Args:
        arguments: of the process, given to ``rclpy.init`` already.
        name: the node's name before remapping.
        context: of rclpy; None for the default one.
    """
    given = sources(arguments)
    if not given:
        return Asked()
    node = _scratch(name, context)
    try:
        arrived = _parameters(node)
        named = (node.get_name(), node.get_namespace())
    finally:
        node.destroy_node()
    last: dict[str, Parameter[Any]] = {}
    idle = []
    for source in given:
        parameters = _alone(source, *named, context)
        if not parameters:
            idle.append(source)
        last |= parameters
    overrides = tuple(p for name, p in last.items() if not _same(p, arrived.get(name)))
    return Asked(overrides, tuple(idle))


def _alone(source: Source, name: str, namespace: str, context: Any) -> dict[str, Parameter[Any]]:
    arguments = ["--ros-args", source.flag, source.text]
    node = _scratch(
        name, context, namespace=namespace, cli_args=arguments, use_global_arguments=False
    )
    try:
        return _parameters(node)
    finally:
        node.destroy_node()


def _scratch(name: str, context: Any, **options: Any) -> Node:
    """A node that is only there to be asked for its parameters."""
    quiet = {"use_sim_time": False, "start_type_description_service": False}
    return Node(
        name,
        context=context,
        enable_rosout=False,
        start_parameter_services=False,
        parameter_overrides=[Parameter(key, value=value) for key, value in quiet.items()],
        **options,
    )


def _parameters(node: Node) -> dict[str, Parameter[Any]]:
    with node.handle:
        found: dict[str, Parameter[Any]] = node.handle.get_parameters(Parameter)
    return found


def _same(one: Parameter[Any], other: Parameter[Any] | None) -> bool:
    return other is not None and one.type_ == other.type_ and one.value == other.value
