"""Runs a launch file without the launch packages, and records what it describes.

Stand-ins take the place of ``launch`` and ``launch_ros`` while the file is loaded: each name
imported from them becomes a class which keeps its arguments. Three of them do what a launch service
would: a launch configuration gives the value of its argument, a declared argument checks its value,
an opaque function is called.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest


class Recorded:
    """Any class of the launch packages: keeps its arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    @property
    def kind(self) -> str:
        """Name of the class that the launch file used."""
        return type(self).__name__


class LaunchConfiguration(Recorded):
    """Gives the value of an argument."""

    def perform(self, context: Context) -> str:
        return context.values[self.args[0]]


class Context:
    """Values of the launch arguments."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values


class StandIn(types.ModuleType):
    """A module in which every name is a recording class."""

    known: ClassVar[dict[str, type[Recorded]]] = {"LaunchConfiguration": LaunchConfiguration}

    def __getattr__(self, name: str) -> type[Recorded]:
        if name.startswith("__"):
            raise AttributeError(name)
        cls = self.known.get(name) or type(name, (Recorded,), {})
        setattr(self, name, cls)
        return cls


STOOD_IN = (
    "launch",
    "launch.actions",
    "launch.conditions",
    "launch.substitutions",
    "launch_ros",
    "launch_ros.actions",
    "launch_ros.parameter_descriptions",
)


class Described:
    """What a launch file describes: its arguments, and the actions that start with given values."""

    def __init__(self, entities: list[Recorded]) -> None:
        self.entities = entities
        self.arguments = {
            e.args[0]: e.kwargs for e in entities if e.kind == "DeclareLaunchArgument"
        }

    def start(self, **given: str) -> list[Recorded]:
        """Actions in order, with opaque functions replaced by what they return."""
        unknown = set(given) - set(self.arguments)
        assert not unknown, f"no such launch argument: {unknown}"
        defaults = {name: kwargs.get("default_value") for name, kwargs in self.arguments.items()}
        values = {name: str(value) for name, value in defaults.items() if value is not None} | given
        assert values.keys() == self.arguments.keys(), "one without a default must be given"
        for name, kwargs in self.arguments.items():
            assert values[name] in kwargs.get("choices", [values[name]]), name
        actions: list[Recorded] = []
        for entity in self.entities:
            if entity.kind == "OpaqueFunction":
                actions += entity.kwargs["function"](Context(values))
            elif entity.kind != "DeclareLaunchArgument":
                actions.append(entity)
        return actions


def describe(path: Path, monkeypatch: pytest.MonkeyPatch) -> Described:
    """Load a launch file over the stand-ins and call its ``generate_launch_description``."""
    for name in STOOD_IN:
        module = StandIn(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    # A copy imported earlier would be bound to the real packages, this one must not outlive us.
    monkeypatch.delitem(sys.modules, "flashrt_ros.launching", raising=False)
    spec = importlib.util.spec_from_file_location("described_launch_file", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    described = Described(module.generate_launch_description().args[0])
    sys.modules.pop("flashrt_ros.launching", None)
    return described
