"""Capsules: copies of a session's declared state, in slots that were allocated at configure.

A capsule holds the bytes of every region of the contract for one shape, and the host's part of the
session (prompt, decision index, lineage). It belongs to one plan: restoring checks the fingerprint
and names what differs. A full store is an error, never an eviction. Source: paper section 3.4.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from .contract import BufferSpec, Contract, DType, RegionSpec, Role, ShapeKey
from .devices import Device
from .errors import CapsuleError, CapsuleStoreFullError
from .fingerprint import Fingerprint
from .freshness import Lineage
from .text import check_text

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


@dataclass(frozen=True)
class CapsuleImage:
    """A capsule taken out of its store: what another store of the same plan can adopt."""

    info: CapsuleInfo
    fingerprint: Fingerprint
    host: HostState
    regions: tuple[tuple[str, int], ...]
    payload: Array


@dataclass(frozen=True)
class _Held:
    info: CapsuleInfo
    host: HostState
    slot: Tensor


class RegionCopier:
    """Moves the regions of one shape between the working buffers and a slot."""

    def __init__(self, device: Device, contract: Contract, buffers: Mapping[str, Tensor]) -> None:
        self._device = device
        self._contract = contract
        self._buffers = buffers

    def regions(self, shape: ShapeKey) -> tuple[RegionSpec, ...]:
        """The regions a capsule of ``shape`` holds, in slot order."""
        return self._contract.regions[shape]

    def nbytes(self, shape: ShapeKey) -> int:
        """Bytes a capsule of ``shape`` fills."""
        return sum(region.nbytes for region in self.regions(shape))

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


class CapsuleStore:
    """Named capsules in a fixed number of slots. One store an engine."""

    def __init__(
        self,
        device: Device,
        copier: RegionCopier,
        fingerprint: Fingerprint,
        slots: Sequence[Tensor],
    ) -> None:
        self._device = device
        self._copier = copier
        self._fingerprint = fingerprint
        self._free = list(slots)
        self._held: dict[str, _Held] = {}
        self.capacity = len(slots)

    def __len__(self) -> int:
        return len(self._held)

    def list(self) -> list[CapsuleInfo]:
        """All capsules, oldest first."""
        return [held.info for held in self._held.values()]

    def info(self, name: str) -> CapsuleInfo:
        """The capsule called ``name``; CapsuleError when unknown."""
        return self._find(name).info

    def save(self, name: str, session: str, host: HostState) -> CapsuleInfo:
        """Copy the working buffers' regions into a slot.

        An existing capsule of that name is replaced if it belongs to the same session. Raises
        CapsuleError on a bad name, a foreign capsule or a session with nothing to save, and
        CapsuleStoreFullError when no slot is free.
        """
        shape = host.shape
        if shape is None or not host.lineage.made:
            raise CapsuleError(
                f"session {session!r}",
                expected="a completed stage to save",
                got="none",
                remedy="run a decision or the context stage first",
            )
        slot = self._slot_for(name, session)
        self._copier.save(shape, slot)
        return self._hold(name, session, host, self._copier.nbytes(shape), slot)

    def load(self, name: str, session: str) -> HostState:
        """Copy a capsule's regions into the working buffers; what the session must resume with.

        CapsuleError when the capsule is unknown or belongs to another session.
        """
        held = self._find(name)
        if held.info.session != session:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"one of session {session!r}",
                got=f"one of session {held.info.session!r}",
                remedy="fork it into a new session instead",
            )
        self._copier.load(_shape(held.host), held.slot)
        return held.host

    def copy_to(self, name: str, slot: Tensor) -> HostState:
        """Copy a capsule into a slot outside the store (a fork); CapsuleError when unknown."""
        held = self._find(name)
        self._copier.copy_slot(_shape(held.host), held.slot, slot)
        return held.host

    def drop(self, name: str) -> None:
        """Free the slot of ``name``; CapsuleError when unknown."""
        self._free.append(self._find(name).slot)
        del self._held[name]

    def export(self, name: str) -> CapsuleImage:
        """A host copy of a capsule with its identity."""
        held = self._find(name)
        shape = _shape(held.host)
        regions = tuple((region.name, region.nbytes) for region in self._copier.regions(shape))
        payload = self._device.read(held.slot)[: held.info.nbytes].copy()
        return CapsuleImage(held.info, self._fingerprint, held.host, regions, payload)

    def adopt(self, image: CapsuleImage) -> CapsuleInfo:
        """Take in a capsule that another store of the same plan exported.

        CapsuleError names the parts of the plan, the region or the size that differ.
        """
        name = image.info.name
        different = self._fingerprint.diff(image.fingerprint)
        if different:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"plan {self._fingerprint.digest[:12]}",
                got=f"plan {image.fingerprint.digest[:12]}, which differs in {different}",
                remedy="restore it where it was made, or load the same policy, weights and shapes",
            )
        shape = _shape(image.host)
        regions = tuple((region.name, region.nbytes) for region in self._copier.regions(shape))
        size = self._copier.nbytes(shape)
        if image.regions != regions or image.payload.nbytes != size:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"regions {regions}, {size} bytes",
                got=f"{image.regions}, {image.payload.nbytes} bytes",
            )
        slot = self._slot_for(name, image.info.session)
        self._device.write(slot[:size], image.payload)
        return self._hold(name, image.info.session, image.host.owned(), size, slot)

    def _hold(
        self, name: str, session: str, host: HostState, size: int, slot: Tensor
    ) -> CapsuleInfo:
        info = CapsuleInfo(
            name=name,
            session=session,
            fingerprint=self._fingerprint.digest,
            nbytes=size,
            created_ns=time.time_ns(),
            decision=host.decisions,
            prompt=host.prompt,
            stamp_ns=host.stamp_ns,
        )
        self._held[name] = _Held(info, host, slot)
        return info

    def _slot_for(self, name: str, session: str) -> Tensor:
        check_text("capsule name", name, error=CapsuleError)
        if name in self._held:
            owner = self._held[name].info.session
            if owner != session:
                raise CapsuleError(
                    f"capsule {name!r}",
                    expected="a free name",
                    got=f"one that session {owner!r} uses",
                    remedy="choose another name or drop that capsule",
                )
            return self._held.pop(name).slot
        if not self._free:
            raise CapsuleStoreFullError(
                f"capsule {name!r}",
                expected="a free slot",
                got=f"{self.capacity} of {self.capacity} in use: {sorted(self._held)}",
                remedy="drop a capsule or raise capsule_slots",
            )
        return self._free.pop()

    def _find(self, name: str) -> _Held:
        held = self._held.get(name) if isinstance(name, str) else None
        if held is None:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"one of {sorted(self._held)}" if self._held else "a saved capsule",
                got="no such capsule",
                remedy="save it first, or list the capsules",
            )
        return held


def _shape(host: HostState) -> ShapeKey:
    if host.shape is None:
        raise CapsuleError("capsule", expected="a captured shape", got="none")
    return host.shape


def with_lineage(host: HostState, lineage: Lineage) -> HostState:
    """``host`` as it has to be saved: with what the retained values were made from."""
    return replace(host, lineage=lineage)
