"""Stream capture into graphs, and the time that captured calls take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .cuda_driver import CudaDriver


class Captured:
    """Holds the graph of a finished capture."""

    value: Any = None


@contextlib.contextmanager
def captured(driver: CudaDriver, stream: Any) -> Iterator[Captured]:
    """Everything put on ``stream`` inside goes into a graph instead; ended on errors too."""
    graph = Captured()
    mode = driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    driver.call("cuStreamBeginCapture", stream, mode)
    try:
        yield graph
    except BaseException:
        _, broken = driver.api.cuStreamEndCapture(stream)
        if broken is not None and int(broken):
            driver.call("cuGraphDestroy", broken)
        raise
    graph.value = driver.call("cuStreamEndCapture", stream)


def instantiate(driver: CudaDriver, graph: Captured) -> tuple[Any, int]:
    """The executable of a captured graph, and its kernels; the graph itself is destroyed."""
    try:
        _, count = driver.call("cuGraphGetNodes", graph.value, 0)
        nodes, _ = driver.call("cuGraphGetNodes", graph.value, count)
        kernel = driver.api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        kernels = sum(driver.call("cuGraphNodeGetType", node) == kernel for node in nodes)
        return driver.call("cuGraphInstantiate", graph.value, 0), kernels
    finally:
        driver.call("cuGraphDestroy", graph.value)


class Timing:
    """One algorithm's products in a graph, as they will run."""

    def __init__(
        self,
        driver: CudaDriver,
        stream: Any,
        algorithm: Any,
        calls: Sequence[Callable[[], None]],
    ) -> None:
        self.algorithm = algorithm
        self.best = float("inf")  # microseconds of one product
        self._driver = driver
        self._stream = stream
        self._count = len(calls)
        with captured(driver, stream) as graph:
            for call in calls:
                call()
        self._executable, kernels = instantiate(driver, graph)
        self.kernels = kernels / len(calls)  # of one product
        self._events: list[Any] = []
        try:
            for _ in range(2):
                self._events.append(driver.call("cuEventCreate", 0))
        except BaseException:
            self.close()
            raise

    def measure(self, rounds: int) -> None:
        """Replay that often and keep the shortest time."""
        start, end = self._events
        for _ in range(rounds):
            self._driver.call("cuEventRecord", start, self._stream)
            self._driver.call("cuGraphLaunch", self._executable, self._stream)
            self._driver.call("cuEventRecord", end, self._stream)
            self._driver.call("cuStreamSynchronize", self._stream)
            elapsed = self._driver.call("cuEventElapsedTime", start, end)
            self.best = min(self.best, elapsed * 1e3 / self._count)

    def close(self) -> None:
        """Release the graph."""
        self._driver.call("cuGraphExecDestroy", self._executable)
        for event in self._events:
            self._driver.call("cuEventDestroy", event)
