"""Watches the inputs of a policy's products while its stages run, without touching the stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import CaptureError, NumericsError
from ..kernels.op import Lane, Op
from ..precision import Format, Site
from ..scales import Range

Body = Callable[[Lane, Mapping[str, Tensor]], None]

_BINS = 1 << 15  # the bits of a positive bf16


class Observer:
    """Collects the magnitudes of what every site reads, layer by layer.

    Stage bodies are wrapped at capture: in front of every op with a product stands one that looks
    at the product's input when it is replayed. Which product it is follows from the buffer that
    the weight lies in.

    Args:
        sites: of the policy.

    Attributes:
        active: whether replays count; a warm-up on empty windows must not.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = sites
        self._counts: dict[tuple[str, int], Tensor] = {}
        self._amax: dict[tuple[str, int], float] = {}
        # Of the columns, sums of squares and how many rows they are of.
        self._squares: dict[tuple[str, int], tuple[Tensor, int]] = {}
        self.active = False

    def watch(self, body: Body, stage: str = "") -> Body:
        """The same body of a stage, observed."""
        return lambda lane, buffers: body(_ObservedLane(lane, self, buffers, stage), buffers)

    def look(self, key: tuple[str, int], rows: Tensor | None, x: Tensor) -> None:
        """Counts the magnitudes of a product's input ``x`` [M, K], of its first ``rows`` [1] rows.

        NumericsError on a number that is not finite.
        """
        if not self.active:
            return
        x = (x if rows is None else x[: int(rows)]).float().abs()
        amax = float(x.max())
        if not amax < float("inf"):
            raise NumericsError(
                f"input of {key[0]}, layer {key[1]}", expected="finite values", got=amax
            )
        self._amax[key] = max(amax, self._amax.get(key, 0.0))
        if Format.W4A16 in self._sites[key[0]].formats:
            squares, count = self._squares.get(key, (torch.zeros(()), 0))
            self._squares[key] = (x.double().square().sum(0) + squares.to(x.device), count + len(x))
        counts = torch.bincount((x.flatten().view(torch.int32) >> 16), minlength=_BINS)
        self._counts[key] = self._counts[key] + counts if key in self._counts else counts

    def ranges(self, percentile: float) -> dict[str, Range]:
        """What was seen, by site; percentiles are rounded down to a bf16."""
        found = {}
        for name in self._sites:
            layers = sorted(layer for site, layer in self._amax if site == name)
            if layers:
                found[name] = Range(
                    amax=tuple(self._amax[name, layer] for layer in layers),
                    percentile=tuple(
                        _percentile(self._counts[name, layer], percentile) for layer in layers
                    ),
                )
        return found

    def inputs(self) -> dict[str, tuple[Tensor, ...]]:
        """Mean square of each column of the input, a tensor [K] a layer; of the sites that may have
        weights of four bits.
        """
        found: dict[str, tuple[Tensor, ...]] = {}
        for name, layer in sorted(self._squares):
            squares, count = self._squares[name, layer]
            found[name] = (*found.get(name, ()), (squares / count).float().cpu())
        return found

    def site_of(
        self, weight: Tensor, buffers: Mapping[str, Tensor], stage: str = ""
    ) -> tuple[str, int] | None:
        """Name and layer of the site that a weight belongs to, in a stage; None for no site's."""
        # Of sites that share a weight the stage's own one.
        for name, site in sorted(self._sites.items(), key=lambda each: each[1].stage != stage):
            if site.stage not in ("", stage):
                continue
            stack = buffers.get(site.weight, buffers.get(site.shared))
            if stack is None:
                continue
            offset = weight.data_ptr() - stack.data_ptr()
            if 0 <= offset < stack.nbytes:
                return name, offset // (stack[0].nbytes if stack.dim() == 3 else stack.nbytes)
        return None

    def rows_of(self, name: str, buffers: Mapping[str, Tensor]) -> Tensor | None:
        """The count of a site's valid rows, in its buffer."""
        rows = self._sites[name].rows
        return buffers[rows] if rows else None


class _ObservedLane:
    def __init__(
        self, lane: Lane, observer: Observer, buffers: Mapping[str, Tensor], stage: str
    ) -> None:
        self._lane = lane
        self._observer = observer
        self._buffers = buffers
        self._stage = stage

    def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
        if op.operands is not None:
            self._look(op, args, kwargs)
        self._lane.issue(op, *args, **kwargs)

    def _look(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        operands = partial(_required(op), **kwargs)
        key = self._observer.site_of(operands(*args)[0], self._buffers, self._stage)
        if key is None:
            return
        rows = self._observer.rows_of(key[0], self._buffers)

        def look(*args: Any) -> None:
            self._observer.look(key, rows, operands(*args)[1])

        self._lane.issue(Op(f"observe {op.name}", look), *args)


def _required(op: Op) -> Callable[..., tuple[Any, Any]]:
    if op.operands is None:
        raise CaptureError(f"op {op.name!r}", expected="one with a product", got="none")
    return op.operands


def _percentile(counts: Tensor, percentile: float) -> float:
    """The value that ``percentile`` of all counted magnitudes do not exceed."""
    cumulative = counts.cumsum(0)
    wanted = cumulative[-1].double() * (percentile / 100.0) * (1.0 - 1e-12)  # 99.9 % of 1000: 999
    index = int(torch.searchsorted(cumulative.double(), wanted))
    bits = torch.tensor([min(index, _BINS - 1) << 16], dtype=torch.int32)
    return float(bits.view(torch.float32))
