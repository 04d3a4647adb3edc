"""One piece of memory for many buffers: where each starts, and tensors over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..contract import BufferSpec

#: Bytes. What the driver's own allocations have; the same on every device, so that layouts agree.
ALIGNMENT = 256


def placed(specs: Iterable[BufferSpec]) -> tuple[dict[str, int], int]:
    """Where each buffer of one piece of memory starts, and how large that is."""
    offsets, size = {}, 0
    for spec in specs:
        offsets[spec.name] = size
        size += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, size


def views(
    memory: Tensor, specs: Iterable[BufferSpec], offsets: Mapping[str, int]
) -> dict[str, Tensor]:
    """Each buffer as a tensor over its part of ``memory``."""
    return {
        spec.name: memory[offsets[spec.name] :][: spec.nbytes]
        .view(getattr(torch, spec.dtype.value))
        .view(spec.shape)
        for spec in specs
    }
