"""Nodes for the tests over DDS, always stopped: of one test, or of all tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """``start(sim_time, arguments, name, namespace, disturbed, **parameters) -> Robot``.

    A value of None takes a parameter out. Names are given with ``__`` for the dot. The nodes end
    with the test: those that go on to decide take the cores from what comes next.
    """
    with _starting(tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="module")
def start_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """The same for nodes that a module's tests share."""
    with _starting(tmp_path_factory) as make:
        yield make


@contextmanager
def _starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    pytest.importorskip("rclpy")
    from .disturbance import Disturbance
    from .harness import PARAMETERS, PolicyProcess, Robot

    folder = tmp_path_factory.mktemp("nodes")
    robots: list[Robot] = []
    ends = ExitStack()

    def make(
        sim_time: bool = False,
        arguments: tuple[str, ...] = (),
        name: str = "policy",
        namespace: str = "",
        disturbed: bool = False,
        **changes: Any,
    ) -> Robot:
        merged = PARAMETERS | {key.replace("__", "."): value for key, value in changes.items()}
        merged = {key: value for key, value in merged.items() if value is not None}
        if sim_time:
            merged["use_sim_time"] = True
        disturbance = Disturbance(folder / f"disturbance{len(robots)}.json") if disturbed else None
        process = PolicyProcess(
            folder,
            merged,
            name=name,
            namespace=namespace,
            arguments=arguments,
            **(disturbance.process if disturbance else {}),
        )
        ends.callback(process.stop)
        robots.append(Robot(process, sim_time))
        ends.callback(robots[-1].close)
        robots[-1].disturbance = disturbance
        return robots[-1]

    with ends:
        yield make
