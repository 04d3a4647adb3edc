"""One layer of the prefix and one of the action expert, kernel by kernel, from a trace.

A layer is found by what repeats: the same names in the same order as often as the network has such
layers. So the trace needs no list of kernel names that would go out of date.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .trace import KernelTime

_LONGEST = 40  # kernels of a layer at most
_FEWEST = 5  # repeats: a small network's names repeat by chance


@dataclass(frozen=True)
class LayerKernel:
    """One kernel of a layer; microseconds.

    Attributes:
        kernel: its name.
        start_us: since the start of the layer's first kernel.
        duration_us: start to end. With overlap it starts before the kernel in front has ended, and
            this holds the wait.
        share_us: from the end of the kernel in front to its own end: what the layer spends on it.
    """

    kernel: str
    start_us: float
    duration_us: float
    share_us: float


@dataclass(frozen=True)
class LayerTrace:
    """A typical layer: medians over all its repeats.

    Attributes:
        layer_us: from the first kernel's start to the same kernel's start in the next layer.
        repeats: layers it was taken from.
        kernels: in order.
    """

    layer_us: float
    repeats: int
    kernels: tuple[LayerKernel, ...]

    def to_json(self) -> dict[str, Any]:
        """As it goes into a result file; microseconds."""
        return {
            "layer_us": round(self.layer_us, 2),
            "repeats": self.repeats,
            "kernels": [
                {
                    name: round(value, 2) if isinstance(value, float) else value
                    for name, value in asdict(kernel).items()
                }
                for kernel in self.kernels
            ],
        }


def layer_traces(trace: Sequence[KernelTime], depths: dict[str, int]) -> dict[str, LayerTrace]:
    """The typical layer of each part of the network.

    Args:
        trace: every kernel of a replay, in order of their starts.
        depths: name of a part -> how many equal layers follow each other in it. No two the same.

    Returns:
        By name; a part that repeats too rarely, or not at all, is left out.
    """
    names = [kernel.name for kernel in trace]
    found = {}
    for part, depth in depths.items():
        runs = list(_runs(names, depth)) if depth >= _FEWEST else []
        if runs:
            length = min(length for _, length in runs)
            starts = [start for start, period in runs if period == length]
            found[part] = _typical(trace, starts, length, depth)
    return found


def _runs(names: Sequence[str], times: int) -> Iterator[tuple[int, int]]:
    """(start, period) of every stretch in which a period of names comes exactly ``times`` times."""
    for period in range(2, _LONGEST + 1):
        start = 0
        while start + period < len(names):
            end = start
            while end + period < len(names) and names[end] == names[end + period]:
                end += 1
            if (end - start + period) // period == times:
                yield start, period
            start = end + 1


def _typical(
    trace: Sequence[KernelTime], starts: Sequence[int], length: int, depth: int
) -> LayerTrace:
    firsts = [start + layer * length for start in starts for layer in range(depth)]
    # The layer behind the last one of a run is none, so its span is not known.
    spans = [
        trace[first + length].start_us - trace[first].start_us
        for index, first in enumerate(firsts)
        if index % depth < depth - 1
    ]
    ends = [kernel.start_us + kernel.duration_us for kernel in trace]
    kernels = tuple(
        LayerKernel(
            trace[firsts[0] + place].name,
            median(trace[first + place].start_us - trace[first].start_us for first in firsts),
            median(trace[first + place].duration_us for first in firsts),
            median(
                ends[first + place] - (ends[first + place - 1] if first + place else 0.0)
                for first in firsts
            ),
        )
        for place in range(length)
    )
    return LayerTrace(median(spans), len(firsts), kernels)
