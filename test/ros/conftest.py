"""Nodes for the tests over DDS: started once a module, always stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """``start(sim_time, arguments, name, namespace, disturbed, **parameters) -> Robot``.

    A value of None takes a parameter out. Names are given with ``__`` for the dot.
    """
    pytest.importorskip("rclpy")
    from .disturbance import Disturbance
    from .harness import PARAMETERS, PolicyProcess, Robot

    folder = tmp_path_factory.mktemp("nodes")
    robots: list[Robot] = []

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
        robots.append(Robot(process, sim_time))
        robots[-1].disturbance = disturbance
        return robots[-1]

    yield make
    for robot in robots:
        robot.close()
        robot.target.stop()
