"""Capsules: copies of a session's declared state.

A capsule holds the bytes of every region of the contract for one shape, and the host's part of the
session (prompt, decision index, lineage). It belongs to one plan. What it is made of is here; where
capsules are kept is in store.py, how they become files in file.py. Source: paper
section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..contract import BufferSpec, Contract, DType, RegionSpec, Role, ShapeKey
from ..devices import Device
from ..fingerprint import Fingerprint
from ..freshness import Lineage

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class HostState:
    """What a session knows outside the buffers. Immutable, so that sharing it is copying it.

    Its arrays are copies that nobody can write (:func:`frozen`): a host reuses its own. ``staged``
    holds the last values of staged inputs: their products are in the regions.
    """

    shape: ShapeKey | None = None
    prompt: str = ""
    seed: int = 0
    decisions: int = 0
    stamp_ns: int = 0
    robot_state: Array | None = None
    staged: Mapping[str, Array] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)

    def owned(self) -> HostState:
        """The same with arrays of its own, whoever made these."""
        state = self.robot_state
        return replace(
            self,
            robot_state=None if state is None else frozen(state),
            staged={name: frozen(value) for name, value in self.staged.items()},
        )


def frozen(values: Array) -> Array:
    """A copy that cannot be written."""
    copy = np.array(values, order="C")
    copy.setflags(write=False)
    return copy


class Place(StrEnum):
    """Whose memory a capsule's slot is."""

    DEVICE = "device"
    HOST = "host"


class Part(NamedTuple):
    """A region's bytes in a capsule; they stand in the order of the contract, without gaps."""

    name: str
    dtype: DType
    nbytes: int


@dataclass(frozen=True)
class CapsuleInfo:
    """What there is to know about a capsule without opening it."""

    name: str
    session: str
    fingerprint: str
    nbytes: int
    created_ns: int
    decision: int
    prompt: str
    stamp_ns: int
    place: Place = Place.DEVICE


@dataclass(frozen=True)
class CapsuleImage:
    """A capsule taken out of its store: what another store of the same plan can adopt."""

    info: CapsuleInfo
    fingerprint: Fingerprint
    host: HostState
    regions: tuple[Part, ...]
    payload: Array


class SlotCopier:
    """Knows how regions lie in a slot, and copies slots.

    A slot may lie in the device's memory or in that of :meth:`Device.allocate_host`.
    """

    def __init__(self, device: Device, contract: Contract) -> None:
        self.contract = contract
        self._device = device

    def regions(self, shape: ShapeKey) -> tuple[RegionSpec, ...]:
        """The regions a capsule of ``shape`` holds, in slot order."""
        return self.contract.regions[shape]

    def parts(self, shape: ShapeKey) -> tuple[Part, ...]:
        """The same as they lie in a capsule."""
        return tuple(
            Part(region.name, self.contract.buffer(region.buffer).dtype, region.nbytes)
            for region in self.regions(shape)
        )

    def nbytes(self, shape: ShapeKey) -> int:
        """Bytes a capsule of ``shape`` fills."""
        return sum(region.nbytes for region in self.regions(shape))

    def copy_slot(self, shape: ShapeKey, source: Tensor, target: Tensor) -> None:
        """Slot -> slot."""
        size = self.nbytes(shape)
        self._device.copy_rows(
            target,
            source,
            row_bytes=size,
            rows=1,
            target_offset=0,
            target_pitch=0,
            source_offset=0,
            source_pitch=0,
        )


class RegionCopier(SlotCopier):
    """Moves the regions of one shape between working buffers and a slot."""

    def __init__(self, device: Device, contract: Contract, buffers: Mapping[str, Tensor]) -> None:
        super().__init__(device, contract)
        self._buffers = buffers

    def save(self, shape: ShapeKey, slot: Tensor) -> None:
        """Buffers -> slot."""
        for region, start in self._layout(shape):
            self._device.copy_rows(
                slot,
                self._buffers[region.buffer],
                row_bytes=region.row_bytes,
                rows=region.rows,
                target_offset=start,
                target_pitch=region.row_bytes,
                source_offset=region.offset,
                source_pitch=region.pitch,
            )

    def load(self, shape: ShapeKey, slot: Tensor) -> None:
        """Slot -> buffers."""
        for region, start in self._layout(shape):
            self._device.copy_rows(
                self._buffers[region.buffer],
                slot,
                row_bytes=region.row_bytes,
                rows=region.rows,
                target_offset=region.offset,
                target_pitch=region.pitch,
                source_offset=start,
                source_pitch=region.row_bytes,
            )

    def _layout(self, shape: ShapeKey) -> list[tuple[RegionSpec, int]]:
        placed, start = [], 0
        for region in self.regions(shape):
            placed.append((region, start))
            start += region.nbytes
        return placed


def slot_specs(contract: Contract, prefix: str, count: int) -> list[BufferSpec]:
    """Buffers for ``count`` slots, each able to hold a capsule of any shape."""
    size = contract.region_bytes()
    return [
        BufferSpec(f"{prefix}.{index}", (size,), DType.U8, Role.STATE, "a capsule slot")
        for index in range(count)
    ]


def with_lineage(host: HostState, lineage: Lineage) -> HostState:
    """``host`` as it has to be saved: with what the retained values were made from."""
    return replace(host, lineage=lineage)
