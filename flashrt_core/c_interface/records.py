"""The records of ``csrc/include/flashrt.h`` and ``csrc/abi/handover.h`` as ctypes sees them.

The library tells the sizes of its own when it is loaded; tests compare every field's place.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_uint8
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64
from ctypes import c_void_p as address
from typing import Any, ClassVar

from ..specs import DType, Rate, Role, Update

ABI_VERSION = 2
HANDOVER_VERSION = 5
NONE = 0xFFFFFFFF
MAX_RANK, MAX_STAGES, MAX_INPUTS, NAME_BYTES = 8, 16, 32, 256
DEVICES = {"cpu": 1, "cuda": 2}
DTYPES = {kind: place for place, kind in enumerate(DType, 1)}
ROLES = {kind: place for place, kind in enumerate(Role, 1)}
UPDATES = {kind: place for place, kind in enumerate(Update, 1)}
RATES = {kind: place for place, kind in enumerate(Rate, 1)}
PLACE_DEVICE, PLACE_HOST = 1, 2
FOREIGN_PROMPT, FOREIGN_OBSERVATION = 1, 2
CONTEXT_ORIGIN, CONTEXT_SEEN, CONTEXT_UNKNOWN = range(3)

Fields = list[tuple[str, Any]]


class Record(ctypes.Structure):
    """A record that says its size first."""

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **values)


class Info(Record):
    """``flashrt_info``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("abi_version", u32), ("device", u32), ("streams", u32),
        ("shapes", u32), ("graphs", u32), ("buffers", u32), ("inputs", u32), ("outputs", u32),
        ("stages", u32), ("regions", u32), ("slots", u32), ("sessions", u32),
        ("max_sessions", u32), ("working_sets", u32), ("reserved", u32), ("policy", c_char_p),
        ("switches", u64), ("moved_bytes", u64),
    ]  # fmt: skip


class FingerprintRecord(Record):
    """``flashrt_fingerprint``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("reserved", u32), ("digest", c_char * 65), ("identity", c_char_p),
    ]  # fmt: skip


class Stream(Record):
    """``flashrt_stream``."""

    _fields_: ClassVar[Fields] = [("struct_size", u32), ("device", u32), ("handle", address)]


class Shape(Record):
    """``flashrt_shape``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("views", u32), ("prompt_tokens", u32), ("horizon", u32),
        ("steps", u32),
    ]  # fmt: skip


class Graph(Record):
    """``flashrt_graph``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("shape", u32), ("stages", u64), ("executable", address),
    ]  # fmt: skip


class Buffer(Record):
    """``flashrt_buffer``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("role", u32), ("dtype", u32), ("rank", u32), ("name", c_char_p),
        ("address", u64), ("bytes", u64), ("shape", u64 * MAX_RANK),
    ]  # fmt: skip


class Input(Record):
    """``flashrt_input``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("buffer", u32), ("dtype", u32), ("rank", u32), ("update", u32),
        ("rate", u32), ("transform", u32), ("shorter", u32), ("name", c_char_p),
        ("unit", c_char_p), ("bytes", u64), ("shape", u64 * MAX_RANK), ("lowest", c_int64),
        ("highest", c_int64),
    ]  # fmt: skip


class Output(Record):
    """``flashrt_output``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("buffer", u32), ("dtype", u32), ("rank", u32), ("name", c_char_p),
        ("unit", c_char_p), ("bytes", u64), ("shape", u64 * MAX_RANK),
    ]  # fmt: skip


class Stage(Record):
    """``flashrt_stage``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("rate", u32), ("transform", u32), ("validity", u32),
        ("name", c_char_p), ("requires_stages", u64), ("reads_inputs", u64),
        ("writes_outputs", u64),
    ]  # fmt: skip


class Region(Record):
    """``flashrt_region``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("shape", u32), ("buffer", u32), ("rows", u32), ("name", c_char_p),
        ("offset", u64), ("row_bytes", u64), ("pitch", u64),
    ]  # fmt: skip


class Slot(Record):
    """``flashrt_slot``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("place", u32), ("full", u32), ("shape", u32), ("capacity", u64),
        ("bytes", u64), ("decision", u64), ("created_ns", c_int64), ("name", c_char * NAME_BYTES),
        ("session", c_char * NAME_BYTES),
    ]  # fmt: skip


class State(Record):
    """``flashrt_state``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("shape", u32), ("working_set", u32), ("resident", u32),
        ("decisions", u64), ("name", c_char * NAME_BYTES),
    ]  # fmt: skip


class Report(Record):
    """``flashrt_report``."""

    _fields_: ClassVar[Fields] = [
        ("struct_size", u32), ("reserved", u32), ("stages", u64), ("index", u64),
        ("wall_us", c_double), ("stage_ms", c_float * MAX_STAGES),
    ]  # fmt: skip


class Held(ctypes.Structure):
    """``flashrt_held``."""

    _fields_: ClassVar[Fields] = [
        ("shape", u32), ("origin", u32), ("foreign", u32), ("context", u32), ("decisions", u64),
        ("made", u64), ("staged", u64), ("staged_bytes", u64 * MAX_INPUTS),
        ("lineage", (u64 * MAX_INPUTS) * MAX_STAGES), ("newer", u64 * MAX_INPUTS),
    ]  # fmt: skip


class Seat(ctypes.Structure):
    """``flashrt_seat``."""

    _fields_: ClassVar[Fields] = [
        ("used", u32), ("forked", u32), ("working_set", u32), ("parked", u32), ("clock", u64),
        ("announced", u64), ("epochs", u64 * MAX_INPUTS), ("parking", u64),
        ("staged_block", POINTER(c_uint8)), ("name", c_char * NAME_BYTES), ("held", Held),
    ]  # fmt: skip


class Shelf(ctypes.Structure):
    """``flashrt_shelf``."""

    _fields_: ClassVar[Fields] = [
        ("address", u64), ("staged_block", POINTER(c_uint8)), ("slot", Slot), ("held", Held),
    ]  # fmt: skip


class RangeRecord(ctypes.Structure):
    """``flashrt_range``."""

    _fields_: ClassVar[Fields] = [("lowest", c_int64), ("highest", c_int64)]


class ProgramRecord(ctypes.Structure):
    """``flashrt_program``."""

    _fields_: ClassVar[Fields] = [("graph", Graph), ("events", POINTER(u64))]


class PieceRecord(ctypes.Structure):
    """``flashrt_piece``."""

    _fields_: ClassVar[Fields] = [
        ("to", u64), ("from_", u64), ("width", u64), ("rows", u64), ("to_pitch", u64),
        ("from_pitch", u64),
    ]  # fmt: skip


class TransferRecord(ctypes.Structure):
    """``flashrt_transfer``."""

    _fields_: ClassVar[Fields] = [
        ("executable", address), ("piece", POINTER(PieceRecord)), ("pieces", u32),
        ("reserved", u32),
    ]  # fmt: skip


#: ``flashrt_replay_fn``: program, milliseconds by stage, place of the error's text, its bytes.
ReplayFn = ctypes.CFUNCTYPE(c_int32, u32, POINTER(c_float), POINTER(c_char), u64)


class Handover(ctypes.Structure):
    """``flashrt_handover``."""

    _fields_: ClassVar[Fields] = [
        ("version", u32), ("device", u32), ("shapes", u32), ("buffers", u32), ("inputs", u32),
        ("outputs", u32), ("stages", u32), ("regions", u32), ("slots", u32), ("seats", u32),
        ("sets", u32), ("programs", u32), ("policy", c_char_p), ("digest", c_char_p),
        ("identity", c_char_p), ("shape", POINTER(Shape)), ("buffer", POINTER(Buffer)),
        ("input", POINTER(Input)), ("range", POINTER(RangeRecord)),
        ("output", POINTER(Output)), ("stage", POINTER(Stage)),
        ("region", POINTER(Region)), ("program", POINTER(ProgramRecord)),
        ("transfer", POINTER(TransferRecord)),
        ("shelf", POINTER(Shelf)), ("seat", POINTER(Seat)), ("resident", POINTER(u32)),
        ("slot_bytes", u64), ("switches", u64), ("moved_bytes", u64), ("driver", c_char_p),
        ("context", address), ("stream", address), ("copier", address), ("copy_blocks", u32),
        ("reserved", u32), ("replay", ReplayFn),
    ]  # fmt: skip


#: In the order in which the library tells the sizes of its own.
ALL = (
    Info, FingerprintRecord, Stream, Shape, Graph, Buffer, Input, Output, Stage, Region, Slot,
    State, Report, Held, Seat, Shelf, RangeRecord, ProgramRecord, PieceRecord, TransferRecord,
    Handover,
)  # fmt: skip
