"""Where capsules are kept: named, in slots that were allocated at configure.

A slot lies in the device's memory or in the host's; a capsule moves between the two only when asked
to. A full store is an error, never an eviction. What comes from elsewhere is held against the plan
first, and what does not fit is refused with the parts that differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..contract import Contract, ShapeKey
from ..devices import Device
from ..devices.transfer import Rows, Transfer
from ..errors import CapsuleError, CapsuleStoreFullError
from ..fingerprint import Fingerprint
from ..text import check_text
from .checks import RobotChecks, check_host
from .file import read_capsule, write_capsule
from .state import CapsuleImage, CapsuleInfo, HostState, Place, RegionCopier, SlotCopier

#: Kept, since an enumeration looks its members up.
_DEVICE, _HOST = Place.DEVICE, Place.HOST
_OPTION = {_DEVICE: "capsule_slots", _HOST: "host_slots"}


@dataclass(slots=True)
class Held:
    """A capsule and the slot that it fills.

    A snapshot over an older one changes it in place, which takes less than to make another: a robot
    waits for both.
    """

    name: str
    session: str
    fingerprint: str
    place: Place
    slot: Tensor
    host: HostState
    nbytes: int
    created_ns: int
    told: CapsuleInfo | None = None  # as long as it is true
    copier: RegionCopier | None = None  # that saved it last, and
    saving: Transfer | None = None  # how; None where the next time may be another

    def info(self) -> CapsuleInfo:
        """What is told of it."""
        if self.told is None:
            host = self.host
            self.told = CapsuleInfo(
                self.name,
                self.session,
                self.fingerprint,
                self.nbytes,
                self.created_ns,
                host.decisions,
                host.prompt,
                host.stamp_ns,
                self.place,
            )
        return self.told


#: Where it is, its memory, and the capsule in it.
Slot = tuple[Place, Tensor, Held | None]


class CapsuleStore:
    """Named capsules in a fixed number of slots. One store an engine.

    Args:
        device: moves the bytes.
        contract: of the plan.
        fingerprint: of the plan.
        robot: what a session would check of a prompt and a state; so of what comes from elsewhere.
        slots: in the device's memory.
        host_slots: in the host's.
        parking: slots of sessions, to which capsules are forked.
        check_here: raises while another driver has the capsules. Whoever was given the store before
            that is refused like everybody: what he saw and did would not be what is there.
    """

    def __init__(
        self,
        device: Device,
        contract: Contract,
        fingerprint: Fingerprint,
        robot: RobotChecks,
        slots: Sequence[Tensor],
        host_slots: Sequence[Tensor] = (),
        parking: Sequence[Tensor] = (),
        check_here: Callable[[str], None] | None = None,
    ) -> None:
        self._robot, self._check_here = robot, check_here or _nothing
        self._device, self._start = device, device.transfer
        self._contract = contract
        self._slots = SlotCopier(device, contract)
        self._fingerprint = fingerprint
        self._digest = fingerprint.digest
        self._free = {_DEVICE: list(slots), _HOST: list(host_slots)}
        self._held: dict[str, Held] = {}
        # By the identity of the slots, as in RegionCopier.
        self._forks = {
            (id(slot), id(seat), nbytes): device.plan([Rows(seat, slot, nbytes)])
            for slot in (*slots, *host_slots)
            for seat in parking
            for nbytes in self._slots.sizes
        }
        self.capacity, self.host_capacity = len(slots), len(host_slots)

    def __len__(self) -> int:
        return len(self._held)

    def without_bytes(self) -> CapsuleStore:
        """A store of one slot, one of those here, that goes through everything, the start of a copy
        as well, and copies nothing: only to be saved to and forked from.
        """
        slots = self._free[_DEVICE][:1]
        store = CapsuleStore(self._device, self._contract, self._fingerprint, self._robot, slots)
        store._start = lambda planned: self._device.transfer(self._device.idle)
        store._forks = self._forks
        return store

    def list(self) -> list[CapsuleInfo]:
        """All capsules, in the order they came in; each says whose memory it is in."""
        self._check_here("capsules")
        return [held.info() for held in self._held.values()]

    def info(self, name: str) -> CapsuleInfo:
        """The capsule called ``name``; CapsuleError when unknown."""
        return self.find(name).info()

    def find(self, name: str, session: str | None = None) -> Held:
        """The capsule called ``name`` with what it holds.

        CapsuleError when unknown, or of another session than ``session``, if one is named;
        SessionError, as of every call of a host, while the capsules are exported.
        """
        self._check_here("capsules")
        try:
            held = self._held[name]
        except (KeyError, TypeError):  # also what cannot be a name
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"one of {sorted(self._held)}" if self._held else "a saved capsule",
                got="no such capsule",
                remedy="save it first, or list the capsules",
            ) from None
        if session is not None and held.session != session:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"one of session {session!r}",
                got=f"one of session {held.session!r}",
                remedy="fork it into a new session instead",
            )
        return held

    def save(self, name: str, session: str, host: HostState, copier: RegionCopier) -> CapsuleInfo:
        """Copy the regions of ``copier``'s buffers into a slot.

        An existing capsule of that name is replaced, where it is, if it belongs to the same
        session; a new one takes a slot of the device. Raises CapsuleError on a bad name, a foreign
        capsule or a session with nothing to save, and CapsuleStoreFullError when no slot is free.
        """
        shape = host.shape
        if shape is None or not host.lineage.made:
            raise CapsuleError(
                f"session {session!r}",
                expected="a completed stage to save",
                got="none",
                remedy="run a decision or the context stage first",
            )
        held = self._held.get(name) if isinstance(name, str) else None
        if held is None or held.session != session:
            self._check_free(name, held)
            slot = self._take(name, _DEVICE)
            held = Held(name, session, self._digest, _DEVICE, slot, host, 0, 0)
        # A robot waits, with cold caches: what was looked up for the last one serves again.
        saving = held.saving
        if saving is None or held.copier is not copier or held.host.shape is not shape or host.turn:
            saving = copier.saving(shape, held.slot, host.turn)
        try:
            self._start(saving)
            # The device copies meanwhile.
            held.copier, held.saving = copier, None if host.turn else saving
            held.host, held.nbytes = host, copier.nbytes(shape, host.turn)
            held.created_ns, held.told = time.time_ns(), None
            self._held.pop(name, None)  # the order is that in which they came
            self._held[name] = held
        except BaseException:
            self._held.pop(name, None)
            self._free[held.place].append(held.slot)
            raise
        return held.info()

    def fork(self, held: Held, seat: Tensor) -> None:
        """Copy what a capsule holds into the slot of a session."""
        self._start(self._forks[id(held.slot), id(seat), held.nbytes])

    def drop(self, name: str) -> None:
        """Free the slot of ``name``; CapsuleError when unknown."""
        held = self.find(name)
        self._free[held.place].append(held.slot)
        del self._held[name]

    def to_host(self, name: str) -> CapsuleInfo:
        """Move a capsule into the host's memory, which frees its slot of the device.

        There it is restored, forked and exported as before, only slower. Nothing to do where it is
        there already. CapsuleError when unknown, CapsuleStoreFullError when no host slot is free.
        """
        return self._move(name, _HOST)

    def to_device(self, name: str) -> CapsuleInfo:
        """Move a capsule back into a slot of the device; errors as :meth:`to_host`."""
        return self._move(name, _DEVICE)

    def export(self, name: str) -> CapsuleImage:
        """A host copy of a capsule with its identity."""
        held = self.find(name)
        parts = self._slots.parts(_shape(held.host), held.host.turn)
        payload = self._device.read(held.slot[: held.nbytes])
        return CapsuleImage(held.info(), self._fingerprint, held.host, parts, payload)

    def adopt(self, image: CapsuleImage) -> CapsuleInfo:
        """Take in a capsule that another store of the same plan exported.

        Raises:
            CapsuleError: it names the parts of the plan, the region, the size or the host's value
                that differ; and errors as :meth:`save`. Nothing changes then.
        """
        self._check_here("capsules")
        name = image.info.name
        different = self._fingerprint.diff(image.fingerprint)
        if different:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"plan {self._fingerprint.digest[:12]}",
                got=f"plan {image.fingerprint.digest[:12]}, which differs in {different}",
                remedy="restore it where it was made, or load the same policy, weights and shapes",
            )
        check_host(self._contract, self._robot, name, image.host)
        shape = _shape(image.host)
        turn = image.host.turn
        parts, size = self._slots.parts(shape, turn), self._slots.nbytes(shape, turn)
        if image.regions != parts or image.payload.nbytes != size:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"regions {_told(parts)}, {size} bytes",
                got=f"{_told(image.regions)}, {image.payload.nbytes} bytes",
            )
        check_text("session name", image.info.session, error=CapsuleError)
        host = image.host.owned()
        session = image.info.session
        held = self._held.get(name) if isinstance(name, str) else None
        if held is None or held.session != session:
            self._check_free(name, held)
        place = _DEVICE if held is None else held.place
        slot = self._take(name, place) if held is None else held.slot
        self._held.pop(name, None)
        try:
            self._device.write(slot[:size], image.payload)
        except BaseException:
            self._free[place].append(slot)
            raise
        created_ns = image.info.created_ns
        held = Held(name, session, self._digest, place, slot, host, size, created_ns)
        self._held[name] = held
        return held.info()

    def write_file(self, name: str, path: str | os.PathLike[str]) -> int:
        """Write a capsule to a file, whole or not at all; how many bytes it has.

        CapsuleError when the capsule is unknown or the file cannot be written.
        """
        return write_capsule(self.export(name), path)

    def read_file(self, path: str | os.PathLike[str], name: str | None = None) -> CapsuleInfo:
        """Take in a capsule from a file.

        Args:
            path: that :meth:`write_file` wrote, here or elsewhere.
            name: to hold it under; None keeps its own.

        CapsuleError where the file is none, damaged or cut off, or as :meth:`adopt`; nothing
        changes then.
        """
        self._check_here("capsules")
        image = read_capsule(path)
        if name is not None:
            image = replace(image, info=image.info._replace(name=name))
        return self.adopt(image)

    def slots(self) -> tuple[Slot, ...]:
        """Every slot and what it holds, for who keeps the store meanwhile."""
        full = ((held.place, held.slot, held) for held in self._held.values())
        return (*full, *((place, slot, None) for place in Place for slot in self._free[place]))

    def refill(self, slots: Sequence[Slot]) -> None:
        """The same slots as they are now; the opposite of :meth:`slots`."""
        self._free = {
            place: [slot for where, slot, held in slots if where is place and held is None]
            for place in Place
        }
        full = sorted((held for *_, held in slots if held), key=lambda held: held.created_ns)
        self._held = {held.name: held for held in full}

    def _move(self, name: str, place: Place) -> CapsuleInfo:
        held = self.find(name)
        left = held.place
        if left is not place:
            slot = self._take(name, place)
            try:
                self._slots.copy_slot(_shape(held.host), held.slot, slot, held.host.turn)
            except BaseException:
                self._free[place].append(slot)
                raise
            self._free[left].append(held.slot)
            held.place, held.slot, held.told, held.saving = place, slot, None, None
        return held.info()

    def _check_free(self, name: str, held: Held | None) -> None:
        """CapsuleError on what is no name, and on that of a capsule of another session."""
        if held is None:
            check_text("capsule name", name, error=CapsuleError)
            return
        raise CapsuleError(
            f"capsule {name!r}",
            expected="a free name",
            got=f"one that session {held.session!r} uses",
            remedy="choose another name or drop that capsule",
        )

    def _take(self, name: str, place: Place) -> Tensor:
        if not self._free[place]:
            there = sorted(n for n, held in self._held.items() if held.place is place)
            raise CapsuleStoreFullError(
                f"capsule {name!r}",
                expected="a free slot" + (" of the host" if place is _HOST else ""),
                got=f"{len(there)} of {len(there)} in use: {there}",
                remedy=f"drop a capsule or raise {_OPTION[place]}",
            )
        return self._free[place].pop()


def _nothing(what: str) -> None:
    pass


def _shape(host: HostState) -> ShapeKey:
    if host.shape is None:
        raise CapsuleError("capsule", expected="a captured shape", got="none")
    return host.shape


def _told(parts: Sequence[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    return [(name, str(dtype), nbytes) for name, dtype, nbytes in parts]
