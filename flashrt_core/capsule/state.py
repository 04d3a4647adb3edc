"""Capsules: copies of a session's declared state.

A capsule holds the bytes of every region of the contract for one shape, and the host's part of the
session (prompt, decision index, lineage). It belongs to one plan. What it is made of is here; where
capsules are kept is in store.py, how they become files in file.py. Source: paper
section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..contract import (
    BufferSpec,
    Contract,
    DType,
    Rate,
    RegionSpec,
    Role,
    ShapeKey,
    StageSpec,
)
from ..devices import Device
from ..devices.transfer import Rows, Transfer
from ..fingerprint import Fingerprint
from ..freshness import Lineage, context_stages

Array = np.ndarray[Any, Any]

#: Of an observation whose host told the stamp of none of its parts.
NO_STAMPS: Mapping[str, int] = MappingProxyType({})
#: Of a host state whose windows hold what no observation told: fields of what was seen.
UNSEEN: Mapping[str, Any] = MappingProxyType(
    {"seen_ns": 0, "seen_stamps_ns": NO_STAMPS, "seen_state": None}
)
#: Of one whose context is of no single observation: fields of what it was made with.
UNMADE: Mapping[str, Any] = MappingProxyType(
    {"stamp_ns": 0, "stamps_ns": NO_STAMPS, "robot_state": None}
)


@dataclass(frozen=True, slots=True)
class HostState:
    """What a session knows outside the buffers. Immutable, so that sharing it is copying it.

    Its arrays are copies that nobody can write (:func:`frozen`): a host reuses its own. ``staged``
    holds the last values of staged inputs: their products are in the regions. ``stamp_ns`` is of
    the observation that the retained context was made from, ``seen_ns`` of the newest, and those of
    their parts, by the host's names, are ``stamps_ns`` and ``seen_stamps_ns``: empty where it told
    none, so that their ages are unknown. Likewise ``robot_state`` is the one that the context was
    made with, which relative actions add to, and ``seen_state`` the newest. In a policy with a
    history, ``turn`` counts the decisions of the episode, and ``raw`` are the last one's actions
    [H, A] as the network gave them.
    """

    shape: ShapeKey | None = None
    prompt: str = ""
    seed: int = 0
    decisions: int = 0
    stamp_ns: int = 0
    robot_state: Array | None = None
    staged: Mapping[str, Array] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    turn: int = 0
    raw: Array | None = None
    seen_ns: int = 0
    stamps_ns: Mapping[str, int] = field(default_factory=lambda: NO_STAMPS)
    seen_stamps_ns: Mapping[str, int] = field(default_factory=lambda: NO_STAMPS)
    seen_state: Array | None = None

    def made_of(
        self, lineage: Lineage, contract: Contract, decisions: int | None = None
    ) -> HostState:
        """The same, of what is retained now; behind so many decisions, if that has changed."""
        return replace(
            self,
            lineage=lineage,
            decisions=self.decisions if decisions is None else decisions,
            **(self.newest if lineage.current(contract) else {}),
        )

    @property
    def newest(self) -> dict[str, Any]:
        """What changes here where the context is made of the newest observation."""
        return {
            "stamp_ns": self.seen_ns,
            "stamps_ns": self.seen_stamps_ns,
            "robot_state": self.seen_state,
        }

    def before(self, stage: StageSpec, contract: Contract) -> HostState:
        """The same, where ``stage`` is about to run. A context that it makes is of nothing that is
        known, until :meth:`made_of` finds that it is of the newest inputs alone.
        """
        return replace(self, **UNMADE) if stage.name in context_stages(contract) else self

    def has_staged(self, names: Iterable[str], values: Mapping[str, Array]) -> bool:
        """Whether the values of all ``names`` are those that are staged."""
        staged = self.staged
        return all(
            name in staged
            and (staged[name] is values[name] or staged[name].tobytes() == values[name].tobytes())
            for name in names
        )

    def seen_in(self, values: Mapping[str, Array], contract: Contract) -> Mapping[str, Any]:
        """What changes here when a host writes ``values`` itself: of what they show, nothing is
        known. Noise, guidance and what is staged already show nothing new.
        """
        for name in values:
            if contract.input(name).rate is not Rate.CHUNK and not self.has_staged([name], values):
                return UNSEEN
        return {}

    def undated(self) -> HostState:
        """The same, of parts whose ages nobody knows any more."""
        return replace(self, stamps_ns=NO_STAMPS, seen_stamps_ns=NO_STAMPS)

    def owned(self) -> HostState:
        """The same with arrays of its own, whoever made these."""
        state, seen, raw = self.robot_state, self.seen_state, self.raw
        return replace(
            self,
            robot_state=None if state is None else frozen(state),
            seen_state=None if seen is None else frozen(seen),
            raw=None if raw is None else frozen(raw),
            staged={name: frozen(value) for name, value in self.staged.items()},
        )


def frozen(values: Array) -> Array:
    """A copy that cannot be written; the array itself where nobody can as it is."""
    flags = values.flags
    if flags.owndata and flags.c_contiguous and not flags.writeable:
        return values
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


class CapsuleInfo(NamedTuple):
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
        self._nbytes = {
            (shape, age): sum(region.nbytes for region in contract.regions_at(shape, age))
            for shape in contract.shapes
            for age in range(contract.ages)
        }

    @property
    def sizes(self) -> frozenset[int]:
        """Bytes that capsules may have."""
        return frozenset(self._nbytes.values())

    def regions(self, shape: ShapeKey, turn: int = 0) -> tuple[RegionSpec, ...]:
        """The regions a capsule of ``shape`` holds behind ``turn`` decisions, in slot order."""
        return self.contract.regions_at(shape, self.contract.age(turn))

    def parts(self, shape: ShapeKey, turn: int = 0) -> tuple[Part, ...]:
        """The same as they lie in a capsule."""
        return tuple(
            Part(region.name, self.contract.buffer(region.buffer).dtype, region.nbytes)
            for region in self.regions(shape, turn)
        )

    def nbytes(self, shape: ShapeKey, turn: int = 0) -> int:
        """Bytes such a capsule fills."""
        return self._nbytes[shape, turn and self.contract.age(turn)]

    def copy_slot(self, shape: ShapeKey, source: Tensor, target: Tensor, turn: int = 0) -> None:
        """Slot -> slot."""
        self._device.copy(target, source, self.nbytes(shape, turn))


class RegionCopier(SlotCopier):
    """Moves the regions of one shape between working buffers and a slot.

    Where everything lies is known at configure, so every copy is planned then: one for each shape,
    age of a history, slot and direction. A shape's regions are its bucket's rows, which do not
    depend on the prompt.

    Args:
        device: plans the copies.
        contract: of the plan.
        buffers: the working buffers.
        slots: all that there will ever be.
    """

    def __init__(
        self,
        device: Device,
        contract: Contract,
        buffers: Mapping[str, Tensor],
        slots: Iterable[Tensor],
    ) -> None:
        super().__init__(device, contract)
        self._planned_for = tuple(slots)
        # By the identity of the slot, which is quicker to tell than its address.
        self._planned: dict[tuple[int, ShapeKey, int], tuple[Transfer, Transfer]] = {}
        self._start = device.transfer
        for slot in self._planned_for:
            for shape, age in self._nbytes:
                regions = contract.regions_at(shape, age)
                save, load = (device.plan(_copies(regions, buffers, slot, to)) for to in _WAYS)
                self._planned[id(slot), shape, age] = save, load

    def saving(self, shape: ShapeKey, slot: Tensor, turn: int = 0) -> Transfer:
        """What :meth:`save` starts."""
        return self._planned[id(slot), shape, turn and self.contract.age(turn)][0]

    def save(self, shape: ShapeKey, slot: Tensor, turn: int = 0) -> None:
        """Buffers -> slot."""
        self._start(self.saving(shape, slot, turn))

    def load(self, shape: ShapeKey, slot: Tensor, turn: int = 0) -> None:
        """Slot -> buffers."""
        self._start(self._planned[id(slot), shape, turn and self.contract.age(turn)][1])

    def planned(self, shape: ShapeKey, slot: Tensor) -> tuple[Transfer, Transfer]:
        """What :meth:`save` and :meth:`load` start, in a policy without history."""
        return self._planned[id(slot), shape, 0]


_WAYS = (True, False)  # to the slot, and from it


def _copies(
    regions: Iterable[RegionSpec], buffers: Mapping[str, Tensor], slot: Tensor, to_slot: bool
) -> list[Rows]:
    found, start = [], 0
    for region in regions:
        buffer = buffers[region.buffer]
        size = (region.row_bytes, region.rows)
        there, here = (region.offset, region.pitch), (start, region.row_bytes)
        if to_slot:
            found.append(Rows(slot, buffer, *size, *here, *there))
        else:
            found.append(Rows(buffer, slot, *size, *there, *here))
        start += region.nbytes
    return found


def slot_specs(contract: Contract, prefix: str, count: int) -> list[BufferSpec]:
    """Buffers for ``count`` slots, each able to hold a capsule of any shape."""
    size = contract.region_bytes()
    return [
        BufferSpec(f"{prefix}.{index}", (size,), DType.U8, Role.STATE, "a capsule slot")
        for index in range(count)
    ]
