"""One torch thread: the machines that run tests are shared, and results then repeat exactly.

And the GPU of the tests that need one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from test.gpu import PLACE, kernel_device, skip_emulation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_emulation(items)


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Restores the number of threads afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with kernel_device(overlap="on") as device:
        yield device


@pytest.fixture
def draw() -> Any:
    generator = torch.Generator(PLACE).manual_seed(torch.seed() % (1 << 40))

    def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return (torch.randn(shape, generator=generator, device=PLACE) * scale).to(dtype)

    return draw
