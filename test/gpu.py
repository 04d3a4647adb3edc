"""What the tests that need a GPU share."""

from __future__ import annotations

from collections.abc import Callable
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
