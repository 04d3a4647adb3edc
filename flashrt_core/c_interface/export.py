"""Sessions handed to the C interface, and taken back.

The library works on the records that are made here, in place: there is one state, which is lent.
While it is, nothing in Python touches it; afterwards Python reads the same records. Two drivers at
once would need one ledger behind a lock, and the Python half of it under the GIL: then a host's
thread would wait for Python in the middle of a decision, which is what it exports a session to
avoid.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from ..capsule.state import Place
from ..capsule.store import Held, Slot
from ..devices import Program
from ..devices.base import Native
from ..engine import Engine
from ..errors import ContractError, SessionError
from ..resident import Resident, Returned
from ..working_set import Member
from . import records, tables
from .library import call, load_library
from .state import Translator

_PLACES = {Place.DEVICE: records.PLACE_DEVICE, Place.HOST: records.PLACE_HOST}


class Export:
    """A session that the C interface drives; a context manager that ends in :meth:`close`.

    Attributes:
        handle: address of its ``flashrt_session``.
        library: the shared library that the handle belongs to.
    """

    def __init__(self, lent: Lent, name: str, handle: int) -> None:
        self.handle = handle
        self.library: Path = lent.path
        self._lent: Lent | None = lent
        self._name = name

    def close(self) -> None:
        """Give the session back; with the last export of the engine, Python drives again.

        Calls of the C interface that are under way are waited for, and later ones refused.
        DeviceError where what was under way on the device has failed. A second call does nothing.
        """
        if self._lent is not None:
            self._lent.close(self._name)
        self._lent = None  # behind it: who is interrupted may call again

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lend(engine: Engine[Any], session: Member) -> Lent:
    """Lend the engine to the C interface, if it is not yet; see :meth:`Session.export`."""
    if engine.contract.history is not None:
        raise ContractError(
            f"export of policy {engine.contract.policy!r}",
            expected="one whose decisions stand alone",
            got="one with a history",
        )
    lent = engine.lent
    if isinstance(lent, Lent):
        lent.finish()
        lent = engine.lent
    if not isinstance(lent, Lent):
        engine.admit(session)
        engine.lent = lent = Lent(engine)
    return lent


class Lent:
    """All sessions and capsules of an engine while the C interface has them."""

    def __init__(self, engine: Engine[Any]) -> None:
        contract = engine.contract
        tables.check_exportable(contract)
        self._library = load_library()
        self.path = Path(self._library._name)
        self._engine = engine
        self._translator = Translator(contract)
        self._open: set[str] = set()
        self._slots = engine.store.slots()
        self._parking = [*engine.parking.values(), *engine.free_parking]
        self._shelves, self._seats = self._shelf_table(), self._seat_table()
        self._residents = tables.array(
            ctypes.c_uint32, [self._seat_of(working.resident) for working in engine.sets]
        )
        self._programs: list[Program] = []
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        native = engine.device.lend()
        try:
            self._plan = self._handover(native)
            call(
                self._library,
                "flashrt_handover_begin",
                ctypes.byref(self._plan),
                ctypes.byref(self._handle),
            )
        except BaseException:
            engine.device.take_back()
            raise

    def open(self, session: Member) -> Export:
        """A handle of ``session``; SessionError when it has one."""
        name = session.name
        if self._engine.sessions.get(name) is not session or name in self._open:
            raise SessionError(
                f"export of session {name!r}",
                expected="a live session without an export",
                got="one that is exported" if name in self._open else "one that was dropped",
                remedy="close its export first" if name in self._open else None,
            )
        handle = ctypes.c_void_p()
        seat = self._seat_of(session)
        call(self._library, "flashrt_handover_open", self._handle, seat, ctypes.byref(handle))
        self._open.add(name)
        return Export(self, name, handle.value or 0)

    def close(self, name: str) -> None:
        """One export less; with the last one Python drives again."""
        self._open.discard(name)
        if not self._open:
            self.take_back()

    def take_back(self) -> None:
        """Retire all handles; Python drives again, from where the C interface has come."""
        if self._engine.lent is not self:
            return
        handle, self._handle = self._handle, None  # it ends once
        try:
            if handle is not None:
                call(self._library, "flashrt_handover_end", handle)
        finally:
            # Also where the device failed: then the records say that nothing is retained.
            self._return()

    def finish(self) -> None:
        """Take back what an interrupt has left half taken back."""
        if self._handle is None:
            self.take_back()

    def _return(self) -> None:
        """Read the records; only with the last step does Python drive again."""
        engine = self._engine
        engine.device.take_back()
        traffic = type(engine.traffic)(self._plan.switches, self._plan.moved_bytes)
        engine.capsules.refill([self._held(index) for index in range(len(self._slots))])
        engine.take_back([self._returned(index) for index in range(len(self._parking))], traffic)

    def _handover(self, native: Native) -> records.Handover:
        engine, contract = self._engine, self._engine.contract
        buffers, programs = [], []
        for working in engine.sets:
            buffers += tables.buffer_records(contract, working.buffers)
            for (shape, names, _), program in working.programs.items():
                own = engine.device.native(program)
                graph = records.Graph(
                    shape=contract.shapes.index(shape),
                    stages=tables.program_mask(contract, names),
                    executable=own.executable or None,
                )
                programs.append(
                    records.ProgramRecord(graph, tables.array(ctypes.c_uint64, own.events))
                )
                self._programs.append(program)
        regions = tables.region_records(contract)
        transfers = [
            tables.transfer_record(engine.device.native(planned).executable, planned)
            for working in engine.sets
            for place in (*self._parking, *(memory for _, memory, _ in self._slots))
            for shape in contract.shapes
            for planned in working.copier.planned(shape, place)
        ]
        return records.Handover(
            version=records.HANDOVER_VERSION,
            device=records.DEVICES[native.kind],
            shapes=len(contract.shapes),
            buffers=len(contract.buffers),
            inputs=len(contract.inputs),
            outputs=len(contract.outputs),
            stages=len(contract.stages),
            regions=len(regions),
            slots=len(self._slots),
            seats=len(self._parking),
            sets=len(engine.sets),
            programs=len(programs) // len(engine.sets),
            policy=contract.policy.encode(),
            digest=engine.fingerprint.digest.encode(),
            identity=tables.identity_text(engine.fingerprint).encode(),
            shape=tables.array(records.Shape, tables.shape_records(contract)),
            buffer=tables.array(records.Buffer, buffers),
            input=tables.array(records.Input, tables.input_records(contract)),
            range=tables.array(records.RangeRecord, tables.range_records(contract)),
            output=tables.array(records.Output, tables.output_records(contract)),
            stage=tables.array(records.Stage, tables.stage_records(contract)),
            region=tables.array(records.Region, regions),
            program=tables.array(records.ProgramRecord, programs),
            transfer=tables.array(records.TransferRecord, transfers),
            shelf=self._shelves,
            seat=self._seats,
            resident=self._residents,
            slot_bytes=contract.region_bytes(),
            switches=engine.traffic.switches,
            moved_bytes=engine.traffic.nbytes,
            **_handles(native),
            replay=records.ReplayFn(self._replay),
        )

    def _replay(self, index: int, stage_ms: Any, error: Any, room: int) -> int:
        """What the CPU device calls: ctypes has taken the GIL, and gives it back behind this."""
        try:
            device, program = self._engine.device, self._programs[index]
            device.replay(program)
            stages = [stage.name for stage in self._engine.contract.stages]
            for name, elapsed in device.elapsed_ms(program).items():
                stage_ms[stages.index(name)] = elapsed
        except BaseException as failure:  # all of them: C would take any other ending for success
            text = repr(failure).encode()[: room - 1] + b"\0"
            ctypes.memmove(error, text, len(text))
            return 1
        return 0

    def _seat_table(self) -> Any:
        seats = (records.Seat * max(1, len(self._parking)))()
        sessions = self._engine.sessions
        self._seat_blocks = [self._translator.block() for _ in self._parking]
        for index, slot in enumerate(self._parking):
            seat, block = seats[index], self._seat_blocks[index]
            seat.parking = slot.data_ptr()
            seat.staged_block = ctypes.cast(block, ctypes.POINTER(ctypes.c_uint8))
            seat.held.shape = records.NONE
        for index, name in enumerate(self._engine.parking):
            seat, session = seats[index], sessions[name]
            seat.used, seat.name = 1, _fitting("session", name)
            seat.working_set = self._engine.sets.index(self._engine.set_of(session))
            seat.parked = name in self._engine.parked
            self._translator.hold(session.host_state(), seat.held, self._seat_blocks[index])
            self._translator.turn(session.ledger.page(), seat)
        return seats

    def _shelf_table(self) -> Any:
        shelves = (records.Shelf * max(1, len(self._slots)))()
        self._shelf_blocks = [self._translator.block() for _ in self._slots]
        for index, (place, memory, held) in enumerate(self._slots):
            shelf, block = shelves[index], self._shelf_blocks[index]
            shelf.address = memory.data_ptr()
            shelf.staged_block = ctypes.cast(block, ctypes.POINTER(ctypes.c_uint8))
            shelf.slot = slot = records.Slot(place=_PLACES[place], capacity=memory.nbytes)
            if held is None:
                continue
            info = held.info()
            self._translator.hold(held.host, shelf.held, block)
            slot.full, slot.shape, slot.bytes = 1, shelf.held.shape, info.nbytes
            slot.decision, slot.created_ns = info.decision, info.created_ns
            slot.name = _fitting("capsule", info.name)
            slot.session = _fitting("session", info.session)
            shelf.slot = slot
        return shelves

    def _seat_of(self, session: Resident | None) -> int:
        names = list(self._engine.parking)
        return records.NONE if session is None else names.index(session.name)

    def _returned(self, index: int) -> Returned:
        seat = self._seats[index]
        resident = seat.used and self._residents[seat.working_set] == index
        return Returned(
            slot=self._parking[index],
            name=seat.name.decode() if seat.used else None,
            working_set=seat.working_set,
            resident=bool(resident),
            parked=bool(seat.parked),
            host=self._translator.host(seat.held, self._seat_blocks[index], seat),
            page=self._translator.page(seat),
        )

    def _held(self, index: int) -> Slot:
        place, memory, _ = self._slots[index]
        shelf = self._shelves[index]
        if not shelf.slot.full:
            return place, memory, None
        held = Held(
            name=shelf.slot.name.decode(),
            session=shelf.slot.session.decode(),
            fingerprint=self._engine.fingerprint.digest,
            place=place,
            slot=memory,
            host=self._translator.host(shelf.held, self._shelf_blocks[index]),
            nbytes=shelf.slot.bytes,
            created_ns=shelf.slot.created_ns,
        )
        return place, memory, held


def _handles(native: Native) -> dict[str, Any]:
    """What C needs of the device's driver."""
    handles = {name: getattr(native, name) or None for name in ("context", "stream", "copier")}
    return {"driver": native.driver.encode(), "copy_blocks": native.copy_blocks, **handles}


def _fitting(what: str, name: str) -> bytes:
    """A name as C has it; SessionError when it is too long."""
    text = name.encode(errors="replace")  # lone surrogates: C could not give them back
    if text.decode() != name:
        raise SessionError(f"export of {what} {name!r}", expected="Unicode text", got=ascii(name))
    if len(text) >= records.NAME_BYTES:
        raise SessionError(
            f"export of {what} {name!r}",
            expected=f"fewer than {records.NAME_BYTES} bytes",
            got=len(text),
            remedy="give it a shorter name",
        )
    return text
