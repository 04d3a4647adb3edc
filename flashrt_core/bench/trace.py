"""The kernels of one replay with their times, from torch's profiler (CUPTI)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from ..devices.base import Program
from ..devices.cuda import CudaDevice


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a replay.

    Attributes:
        name: of the kernel, shortened for library kernels.
        start_us: since the first kernel of the replay.
        duration_us: from its first block's start to its last block's end; with overlap a kernel's
            time holds its wait for the kernel in front.
    """

    name: str
    start_us: float
    duration_us: float


def trace(device: CudaDevice, program: Program) -> list[KernelTime]:
    """Every kernel of one replay, in order of their starts."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        device.replay(program)
        torch.cuda.synchronize()
    events: list[Any] = [
        event
        for event in profiler.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA and not _is_copy(event.name)
    ]
    events.sort(key=lambda event: event.time_range.start)
    if not events:
        return []
    first = events[0].time_range.start
    return [
        KernelTime(
            _short(event.name),
            event.time_range.start - first,
            event.time_range.end - event.time_range.start,
        )
        for event in events
    ]


def totals(kernels: list[KernelTime]) -> list[dict[str, Any]]:
    """Calls, summed and mean microseconds by kernel name, the most expensive first."""
    sums: dict[str, list[float]] = {}
    for kernel in kernels:
        sums.setdefault(kernel.name, []).append(kernel.duration_us)
    rows: list[dict[str, Any]] = [
        {
            "kernel": name,
            "calls": len(times),
            "total_us": round(sum(times), 1),
            "mean_us": round(sum(times) / len(times), 2),
        }
        for name, times in sums.items()
    ]
    return sorted(rows, key=lambda row: -row["total_us"])


def _is_copy(name: str) -> bool:
    return name.startswith(("Memcpy", "Memset"))


def _short(name: str) -> str:
    name = re.sub(r"^void ", "", name)
    return name.split("<", 1)[0].split("(", 1)[0][-100:]
