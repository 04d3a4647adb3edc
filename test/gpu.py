"""What the tests that need a GPU share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.kernels.op import Lane

requires_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def run(device: Any, body: Callable[[Lane], None]) -> Any:
    """Captures one body on a CUDA device and replays it once."""
    program = device.capture([("op", body)])
    device.replay(program)
    return program


def error(out: Tensor, reference: Tensor) -> float:
    """||out - reference|| / ||reference||; infinite when anything is not finite."""
    out, reference = out.double(), reference.double()
    if not bool(torch.isfinite(out).all()):
        return float("inf")
    return float((out - reference).norm() / reference.norm())


#: What one decision asks of the driver: fresh windows in one copy, the graph, the actions, one
#: wait, the time of each stage. No call here allocates, captures or compiles.
DECISION_CALLS = {
    "cuMemcpyHtoDAsync": 1,
    "cuGraphLaunch": 1,
    "cuMemcpyDtoHAsync": 1,
    "cuStreamSynchronize": 1,
    "cuEventElapsedTime": 2,
}


class _Counting:
    """The driver's bindings with every call counted, also those around ``CudaDriver.call``."""

    def __init__(self, api: Any, calls: Counter[str]) -> None:
        self._api, self._calls = api, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if not name.startswith("cu") or not callable(found):
            return found

        def counted(*args: Any) -> Any:
            self._calls[name] += 1
            return found(*args)

        return counted


@contextmanager
def count_calls(driver: Any) -> Iterator[Counter[str]]:
    """Counts every call of a device's driver by name."""
    api, calls = driver.api, Counter[str]()
    driver.api = _Counting(api, calls)
    try:
        yield calls
    finally:
        driver.api = api
