"""Where capsules are kept: named, in slots that were allocated at configure.

A slot lies in the device's memory or in the host's; a capsule moves between the two only when asked
to. A full store is an error, never an eviction. What comes from elsewhere is held against the plan
first, and what does not fit is refused with the parts that differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace as changed

from torch import Tensor

from ..contract import Contract, ShapeKey
from ..devices import Device
from ..devices.transfer import Rows
from ..errors import CapsuleError, CapsuleStoreFullError
from ..fingerprint import Fingerprint
from ..text import check_text
from .checks import RobotChecks, check_host, check_regions, largest_arrays, whole_staged
from .file import read_capsule, write_capsule
from .held import Held, Slot
from .state import CapsuleImage, CapsuleInfo, HostState, Place, RegionCopier, SlotCopier

__all__ = ["CapsuleStore", "Held", "Slot"]

#: Kept, since an enumeration looks its members up.
_DEVICE, _HOST = Place.DEVICE, Place.HOST
_OPTION = {_DEVICE: "capsule_slots", _HOST: "host_slots"}


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
        # Which slots are free follows from this alone. An interrupt may come between any two steps:
        # a slot is given up by the one that forgets its capsule, and taken by the one that adds it.
        self._held: dict[str, Held] = {}
        self._all = {_DEVICE: tuple(slots), _HOST: tuple(host_slots)}
        self._spare = {place: list(all_of) for place, all_of in self._all.items()}  # free, not all
        # By the identity of the slots, as in RegionCopier.
        self._forks = {
            (id(slot), id(seat), nbytes): device.plan([Rows(seat, slot, nbytes)])
            for slot in (*slots, *host_slots)
            for seat in parking
            for nbytes in self._slots.sizes
        }
        self._most = contract.region_bytes() + largest_arrays(contract, robot)
        self.capacity, self.host_capacity = len(slots), len(host_slots)

    def __len__(self) -> int:
        return len(self._held)

    def without_bytes(self) -> CapsuleStore:
        """A store of one slot, one of those here, that goes through everything, the start of a copy
        as well, and copies nothing: only to be saved to and forked from.
        """
        slots, check_here = self._all[_DEVICE][:1], self._check_here
        plan = (self._contract, self._fingerprint, self._robot)
        store = CapsuleStore(self._device, *plan, slots, check_here=check_here)
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
        self._check_here("capsules")
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
        self._held.pop(name, None)  # from here on it is not what it was
        self._start(saving)
        # The device copies meanwhile.
        held.copier, held.saving = copier, None if host.turn else saving
        held.host, held.nbytes = host, copier.nbytes(shape, host.turn)
        held.created_ns, held.told = time.time_ns(), None
        info = held.info()
        self._held[name] = held  # behind all others: the order is that in which they came
        return info

    def fork(self, held: Held, seat: Tensor) -> None:
        """Copy what a capsule holds into the slot of a session."""
        self._check_here("capsules")
        self._start(self._forks[id(held.slot), id(seat), held.nbytes])

    def drop(self, name: str) -> None:
        """Free the slot of ``name``; CapsuleError when unknown."""
        held = self.find(name)
        del self._held[name]
        self._spare[held.place].append(held.slot)

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
        host = whole_staged(self._contract, held.host)
        return CapsuleImage(held.info(), self._fingerprint, host, parts, payload)

    def adopt(self, image: CapsuleImage, *, replace: bool = False) -> CapsuleInfo:
        """Take in a capsule that another store of the same plan exported.

        Args:
            image: the capsule.
            replace: whether it takes the place of one that is here under its name, of the same
                session. What comes from another robot may have any name.

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
                remedy="restore it where it was made, or load the same policy, weights, "
                "shapes and threads",
            )
        self._check(image)
        check_text("session name", image.info.session, error=CapsuleError)
        size = image.payload.nbytes
        host = image.host.owned()
        session = image.info.session
        old = self._held.get(name) if isinstance(name, str) else None
        if old is None or old.session != session:
            self._check_free(name, old)
            place, slot = _DEVICE, self._take(name, _DEVICE)
        elif not replace:
            raise CapsuleError(
                f"capsule {name!r}",
                expected="a name that is free",
                got="one that a capsule here has",
                remedy="choose another name, drop that capsule, or pass replace=True",
            )
        else:
            place, slot = old.place, old.slot
        held = Held(name, session, self._digest, place, slot, host, size, image.info.created_ns)
        self._held.pop(name, None)  # from here on the slot is not what it was
        self._device.write(slot[:size], image.payload)
        info = held.info()
        self._held[name] = held
        return info

    def write_file(self, name: str, path: str | os.PathLike[str]) -> int:
        """Write a capsule to a file, whole or not at all; how many bytes it has.

        CapsuleError when the capsule is unknown, when no store would take it in again (a host wrote
        windows that no stage can work with), or the file cannot be written.
        """
        image = self.export(name)
        self._check(image)
        return write_capsule(image, path)

    def read_file(
        self, path: str | os.PathLike[str], name: str | None = None, *, replace: bool = False
    ) -> CapsuleInfo:
        """Take in a capsule from a file.

        Args:
            path: that :meth:`write_file` wrote, here or elsewhere.
            name: to hold it under; None keeps its own.
            replace: as of :meth:`adopt`.

        CapsuleError where the file is none, damaged, cut off or larger than a capsule of this plan
        can be, or as :meth:`adopt`; nothing changes then.
        """
        self._check_here("capsules")
        image = read_capsule(path, self._most)
        if name is not None:
            image = changed(image, info=image.info._replace(name=name))
        return self.adopt(image, replace=replace)

    def _check(self, image: CapsuleImage) -> None:
        """CapsuleError where a capsule is none that a session of this plan could have saved."""
        name, host = image.info.name, image.host
        check_host(self._contract, self._robot, name, host)
        shape = _shape(host)
        parts, size = self._slots.parts(shape, host.turn), self._slots.nbytes(shape, host.turn)
        if image.regions != parts or image.payload.nbytes != size:
            raise CapsuleError(
                f"capsule {name!r}",
                expected=f"regions {_told(parts)}, {size} bytes",
                got=f"{_told(image.regions)}, {image.payload.nbytes} bytes",
            )
        check_regions(self._contract, name, host, image.payload)

    def slots(self) -> tuple[Slot, ...]:
        """Every slot and what it holds, for who keeps the store meanwhile."""
        full = ((held.place, held.slot, held) for held in self._held.values())
        return (*full, *((place, slot, None) for place in Place for slot in self._free(place)))

    def refill(self, slots: Sequence[Slot]) -> None:
        """The same slots as they are now; the opposite of :meth:`slots`."""
        full = sorted((held for *_, held in slots if held), key=lambda held: held.created_ns)
        held = {each.name: each for each in full}
        self._spare, self._held = {place: [] for place in Place}, held

    def _move(self, name: str, place: Place) -> CapsuleInfo:
        held = self.find(name)
        if held.place is place:
            return held.info()
        slot = self._take(name, place)
        self._slots.copy_slot(_shape(held.host), held.slot, slot, held.host.turn)
        moved = changed(held, place=place, slot=slot, told=None, saving=None)
        info = moved.info()
        self._held[name] = moved
        self._spare[held.place].append(held.slot)
        return info

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
        """A free slot of a place; CapsuleStoreFullError without one. Where no capsule comes into it
        it is found again.
        """
        spare = self._spare[place]
        if not spare:
            spare += self._free(place)
        if not spare:
            there = sorted(n for n, held in self._held.items() if held.place is place)
            raise CapsuleStoreFullError(
                f"capsule {name!r}",
                expected="a free slot" + (" of the host" if place is _HOST else ""),
                got=f"{len(there)} of {len(there)} in use: {there}",
                remedy=f"drop a capsule or raise {_OPTION[place]}",
            )
        return spare.pop()

    def _free(self, place: Place) -> Sequence[Tensor]:
        """All slots of a place that no capsule is in."""
        used = {id(held.slot) for held in self._held.values()}
        return [slot for slot in self._all[place] if id(slot) not in used]


def _nothing(what: str) -> None:
    pass


def _shape(host: HostState) -> ShapeKey:
    if host.shape is None:
        raise CapsuleError("capsule", expected="a captured shape", got="none")
    return host.shape


def _told(parts: Sequence[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    return [(name, str(dtype), nbytes) for name, dtype, nbytes in parts]
