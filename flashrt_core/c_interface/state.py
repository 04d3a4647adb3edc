"""What sessions and capsules know outside the buffers, as records of the C interface and back.

Texts and arrays that C has no use for stay with Python as *origins*; a record says which one it
began as, and what of it the host has overwritten since.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np

from ..capsule.state import UNMADE, UNSEEN, HostState, frozen
from ..contract import Contract
from ..devices.base import NUMPY_DTYPES
from ..freshness import Lineage, Page
from . import records
from .tables import bits, staged_places, staged_size


class Translator:
    """Between a contract's names and the indices of its records."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._origins: list[HostState] = []
        self._inputs = [spec.name for spec in contract.inputs]
        self._stages = [spec.name for spec in contract.stages]
        self._places = staged_places(contract)
        self._size = staged_size(contract)

    def block(self) -> Any:
        """Memory for the values of staged inputs."""
        return (ctypes.c_uint8 * max(1, self._size))()

    def hold(self, host: HostState, held: records.Held, block: Any) -> None:
        """Put a host state into a record and a staged block."""
        held.origin, held.foreign = len(self._origins), 0
        held.context = records.CONTEXT_ORIGIN
        self._origins.append(host)
        shape = host.shape
        held.shape = records.NONE if shape is None else self._contract.shapes.index(shape)
        held.decisions = host.decisions
        for stage, epochs in host.lineage.made.items():
            at = self._stages.index(stage)
            held.made |= 1 << at
            for name, epoch in epochs.items():
                held.lineage[at][self._inputs.index(name)] = epoch
        for name, epoch in host.lineage.newer.items():
            held.newer[self._inputs.index(name)] = epoch
        for name, value in host.staged.items():
            index, offset = self._places[name]
            ctypes.memmove(ctypes.addressof(block) + offset, value.tobytes(), value.nbytes)
            held.staged |= 1 << index
            held.staged_bytes[index] = value.nbytes

    def host(self, held: records.Held, block: Any, seat: records.Seat | None = None) -> HostState:
        """The host state that a record has become, in a capsule or in a seat."""
        origin = HostState() if held.origin == records.NONE else self._origins[held.origin]
        if held.context != records.CONTEXT_ORIGIN:
            seen = held.context == records.CONTEXT_SEEN
            origin = replace(origin, **(origin.newest if seen else UNMADE))
        if held.foreign & records.FOREIGN_PROMPT:
            origin = replace(origin, prompt="")  # its tokens are known, its text is not
        if held.foreign & records.FOREIGN_OBSERVATION:  # of tokens too: they may spell a state
            origin = replace(origin, **UNSEEN)
        shapes = self._contract.shapes
        return replace(
            origin,
            lineage=self._lineage(held, held.newer if seat is None else seat.epochs),
            shape=None if held.shape == records.NONE else shapes[held.shape],
            decisions=held.decisions,
            staged=self._staged(held, block),
        )

    def turn(self, page: Page, seat: records.Seat) -> None:
        """Put a ledger's page into a seat."""
        seat.clock = page.clock
        for index, name in enumerate(self._inputs):
            seat.epochs[index] = page.epochs[name] or 0
            seat.announced |= (name in page.announced) << index

    def page(self, seat: records.Seat) -> Page:
        """The page that a seat has become."""
        epochs = {name: seat.epochs[index] or None for index, name in enumerate(self._inputs)}
        announced = frozenset(self._inputs[index] for index in bits(seat.announced))
        return Page(seat.clock, epochs, announced, self._lineage(seat.held, seat.epochs))

    def _lineage(self, held: records.Held, epochs: Any) -> Lineage:
        made = {
            self._stages[stage]: {
                name: held.lineage[stage][index]
                for index, name in enumerate(self._inputs)
                if held.lineage[stage][index]
            }
            for stage in bits(held.made)
        }
        return Lineage.of(made, dict(zip(self._inputs, epochs, strict=False)))

    def _staged(self, held: records.Held, block: Any) -> dict[str, np.ndarray[Any, Any]]:
        found = {}
        for name, (index, offset) in self._places.items():
            if held.staged >> index & 1:
                spec = self._contract.inputs[index]
                nbytes = held.staged_bytes[index]
                data = ctypes.string_at(ctypes.addressof(block) + offset, nbytes)
                found[name] = frozen(
                    np.frombuffer(data, NUMPY_DTYPES[spec.dtype]).reshape(spec.shape)
                )
        return found
