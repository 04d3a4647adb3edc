"""Capsules as files: one layout, checked from end to end before anything of it is used.

::

    magic 8, version u32, header bytes u32, bytes of the whole file u64   (little endian)
    header: JSON in UTF-8 with what the capsule is, and the table of what follows
    the regions, then the host's arrays, without gaps, as the table says
    SHA-256 of everything before it, 32 bytes

Reading runs nothing that a file says and believes no size that the file itself does not have.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterable
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..contract import DType, ShapeKey
from ..errors import CapsuleError
from ..files import LFS_POINTER, LFS_REMEDY, local_path
from ..fingerprint import Fingerprint
from ..freshness import Lineage
from ..limits import COUNTS, STAMPS
from .disk import at_once, kind, write_whole
from .fields import Fields, MalformedError
from .state import Array, CapsuleImage, CapsuleInfo, HostState, Part

# Version 1 had one stamp for all inputs. The first byte is no text, and a copy that "corrects"
# line ends damages the last ones.
MAGIC, VERSION = b"\x89FRTC\r\n\n", 2
#: Far above what a capsule takes: no file is read into memory beyond it.
LARGEST = 1 << 33
_LARGEST_HEADER = 1 << 20
_PREFIX = struct.Struct("<8sIIQ")
_DIGEST = hashlib.sha256().digest_size
_STATE, _RAW, _STAGED = "robot_state", "raw", "staged"
_KINDS = ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")
_DTYPES = {f"<{kind}": np.dtype(f"<{kind}") for kind in _KINDS}
_DTYPES |= {name: np.dtype(name) for name in ("|i1", "|u1", "|b1")}
_I64, _U64 = 1 << 63, 1 << 64


def write_capsule(image: CapsuleImage, path: str | os.PathLike[str]) -> int:
    """Write a capsule to a file, whole or not at all; how many bytes it has.

    CapsuleError where the place cannot be written, memory does not take the file, or the capsule
    holds what no file can.
    """
    target = _place(path)
    what = f"capsule file {str(target)!r}"
    try:
        pieces = _pieces(image, what)
        write_whole(target.resolve(), pieces)
    except MemoryError as error:
        raise CapsuleError(what, expected="memory for all of it", got="too little") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
        reason = getattr(error, "strerror", None) or str(error)
        raise CapsuleError(what, expected="a file that can be written", got=reason) from error
    return sum(len(piece) for piece in pieces)


def read_capsule(path: str | os.PathLike[str], most: int | None = None) -> CapsuleImage:
    """The capsule in a file; whether it fits a plan is the store's to say.

    Args:
        path: of the file.
        most: bytes that regions and arrays of the plan's capsules have; nothing of a file that has
            more is read.

    CapsuleError where there is none, or the file is too large, cut off, damaged, malformed or
    newer, or memory does not take it.
    """
    source = _place(path)
    what = f"capsule file {str(source)!r}"
    try:
        return parse(_read_whole(source, what, _largest(most)), what)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CapsuleError(what, expected="a file that can be read", got=reason) from error
    except MemoryError as error:
        raise CapsuleError(what, expected="memory for all of it", got="too little") from error


def parse(data: bytes | bytearray, what: str = "capsule file") -> CapsuleImage:
    """The capsule that ``data`` is; its payload shares memory with it.

    CapsuleError as :func:`read_capsule`; ``what`` names the file in it.
    """
    header_bytes = _check_prefix(data[: _PREFIX.size], len(data), what, LARGEST)
    content = memoryview(data)[:-_DIGEST]
    if hashlib.sha256(content).digest() != data[-_DIGEST:]:
        raise CapsuleError(
            what, expected="a file as it was written", got="a damaged one: its checksum differs"
        )
    start = _PREFIX.size + header_bytes
    try:
        document = json.loads(
            bytes(content[_PREFIX.size : start]),
            parse_constant=_no_number,
            object_pairs_hook=_each_once,
        )
        payload = np.frombuffer(content, np.uint8)[start:]
        payload.flags.writeable = False
        return _image(document, payload)
    except (MalformedError, ValueError, RecursionError) as error:
        got = "nested too deeply" if isinstance(error, RecursionError) else error
        raise CapsuleError(
            what, expected="a header of this version", got=f"a malformed one: {got}"
        ) from error


def _place(path: str | os.PathLike[str]) -> Path:
    """The path of a file; CapsuleError on what is none, also by a slash at its end."""
    place = local_path("capsule file", path, CapsuleError)
    text = os.fspath(path)
    if text.endswith(("/", "/.")):  # which Path leaves out
        raise CapsuleError(
            f"capsule file {text!r}",
            expected="the path of a file",
            got="that of a folder, by its end",
            remedy="leave the slash out, or put a name behind it",
        )
    return place


def _pieces(image: CapsuleImage, what: str) -> list[bytes]:
    """The file's content, in order."""
    table, arrays, end = [], [], 0
    for part in image.regions:
        row = {"name": part.name, "dtype": str(part.dtype), "offset": end, "nbytes": part.nbytes}
        table.append(row)
        end += part.nbytes
    host = image.host
    named = {(_STAGED, name): value for name, value in host.staged.items()}
    if host.robot_state is not None:
        named[_STATE, ""] = host.robot_state
    if host.raw is not None:
        named[_RAW, ""] = host.raw
    kept = [image.payload.tobytes()]
    for (role, name), value in named.items():
        raw = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        arrays.append(
            {"role": role, "name": name, "dtype": raw.dtype.str, "shape": list(value.shape)}
            | {"offset": end, "nbytes": raw.nbytes}
        )
        kept.append(raw.tobytes())
        end += raw.nbytes
    content = b"".join(kept)
    document = {
        "name": image.info.name,
        "session": image.info.session,
        "created_ns": image.info.created_ns,
        "shape": None if host.shape is None else host.shape._asdict(),
        "prompt": host.prompt,
        "seed": host.seed,
        "decisions": host.decisions,
        "stamp_ns": host.stamp_ns,
        "stamps_ns": dict(host.stamps_ns),
        "lineage": {stage: dict(epochs) for stage, epochs in host.lineage.made.items()},
        "fingerprint": dict(image.fingerprint.parts),
        "regions": table,
        "arrays": arrays,
    }
    if host.turn:
        document["turn"] = host.turn
    if host.lineage.newer:  # of something stale: who cannot know that must not read it
        document["newer"] = dict(host.lineage.newer)
    try:
        header = json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        # What cannot be read again is not written: the payload must be as long as the table says.
        _image(json.loads(header), np.frombuffer(content, np.uint8))
    except (MalformedError, TypeError, ValueError) as error:  # ValueError: text that is no Unicode
        raise CapsuleError(what, expected="a capsule that a file can hold", got=error) from error
    size = _PREFIX.size + len(header) + end + _DIGEST
    for place, found, most in (("header", len(header), _LARGEST_HEADER), ("file", size, LARGEST)):
        if found > most:
            raise CapsuleError(what, expected=f"a {place} of at most {most} bytes", got=found)
    pieces = [_PREFIX.pack(MAGIC, VERSION, len(header), size), header, content]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


def _image(document: Any, payload: Array) -> CapsuleImage:
    """The capsule of a header and all bytes behind it; MalformedError where they do not agree."""
    top = Fields(document, "header")
    shape = top.fields("shape")
    key = ShapeKey(*(shape.whole(name, 1, 1 << 31) for name in ShapeKey._fields))
    shape.end()
    parts, stages, told = (top.fields(n) for n in ("fingerprint", "lineage", "stamps_ns"))
    stamps_ns = {name: told.whole(name, STAMPS.start, STAMPS.stop) for name in told}
    lineage, newer = {}, {}
    for stage in stages:
        epochs = stages.fields(stage)
        lineage[stage] = {name: epochs.whole(name, 1, COUNTS.stop) for name in epochs}
    if "newer" in document:
        changed = top.fields("newer")
        newer = {name: changed.whole(name, 1, COUNTS.stop) for name in changed}
    regions, end = _regions(top.items("regions"))
    arrays = _arrays(top.items("arrays"), payload, end)
    host = HostState(
        shape=key,
        prompt=top.text("prompt"),
        seed=top.whole("seed", 0, _U64),
        decisions=top.whole("decisions", COUNTS.start, COUNTS.stop),
        stamp_ns=(stamp_ns := top.whole("stamp_ns", STAMPS.start, STAMPS.stop)),
        seen_ns=stamp_ns,
        stamps_ns=MappingProxyType(stamps_ns),
        seen_stamps_ns=MappingProxyType(stamps_ns),
        robot_state=(robot_state := arrays.pop((_STATE, ""), None)),
        seen_state=robot_state,
        turn=top.whole("turn", 1, COUNTS.stop) if "turn" in document else 0,
        raw=arrays.pop((_RAW, ""), None),
        staged={name: value for (_, name), value in arrays.items()},
        lineage=Lineage.of(lineage, newer),
    )
    if host.lineage.newer != newer:
        raise MalformedError(f"newer is {newer}, with nothing made from an older value of each")
    fingerprint = Fingerprint({name: parts.text(name) for name in parts})
    info = CapsuleInfo(
        name=top.text("name"),
        session=top.text("session"),
        fingerprint=fingerprint.digest,
        nbytes=end,
        created_ns=top.whole("created_ns", -_I64, _I64),
        decision=host.decisions,
        prompt=host.prompt,
        stamp_ns=host.stamp_ns,
    )
    top.end()
    return CapsuleImage(info, fingerprint, host, regions, payload[:end])


def _regions(table: Iterable[Fields]) -> tuple[tuple[Part, ...], int]:
    """Regions in their order, and where they end."""
    found, end = [], 0
    for row in table:
        dtype = DType(row.choice("dtype", [kind.value for kind in DType]))
        found.append(Part(row.text("name"), dtype, _extent(row, end)))
        end += found[-1].nbytes
        row.end()
    return tuple(found), end


def _arrays(table: Iterable[Fields], payload: Array, end: int) -> dict[tuple[str, str], Array]:
    """Arrays of the host by role and name, which share memory with the payload."""
    found: dict[tuple[str, str], Array] = {}
    for row in table:
        role = row.choice("role", (_STATE, _RAW, _STAGED))
        name = row.text("name") if role == _STAGED else row.choice("name", ("",))
        dtype = _DTYPES[row.choice("dtype", _DTYPES)]
        shape, nbytes = row.sizes("shape"), _extent(row, end)
        if prod(shape) * dtype.itemsize != nbytes:
            raise MalformedError(f"{row.where} has {nbytes} bytes and a shape of {shape}")
        if (role, name) in found:
            raise MalformedError(f"{row.where} comes twice")
        row.end()
        if end + nbytes > payload.nbytes:
            raise MalformedError(f"{row.where} ends behind the file")
        found[role, name] = payload[end : end + nbytes].view(dtype).reshape(shape)
        end += nbytes
    if end != payload.nbytes:
        raise MalformedError(f"the table has {end} bytes and the file {payload.nbytes}")
    return found


def _extent(row: Fields, begin: int) -> int:
    """Bytes of a row of the table, which must stand at ``begin``."""
    if (offset := row.whole("offset", 0, LARGEST)) != begin:
        raise MalformedError(f"{row.where} stands at {offset}, not at {begin}")
    return row.whole("nbytes", 0, LARGEST)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of a name that comes twice every reader would believe another value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedError(f"field {twice!r} comes twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _largest(payload: int | None) -> int:
    """Bytes of a file that has so many behind its header, at most."""
    around = _PREFIX.size + _LARGEST_HEADER + _DIGEST
    return LARGEST if payload is None else min(LARGEST, around + payload)


def _check_prefix(prefix: bytes | bytearray, size: int, what: str, most: int) -> int:
    """Bytes of the header, once a file of ``size`` bytes, of which there may be ``most``, can be a
    capsule of this version.
    """
    if prefix.startswith(LFS_POINTER[: _PREFIX.size]):
        raise CapsuleError(
            what, expected="a capsule", got="a git-lfs pointer to it", remedy=LFS_REMEDY
        )
    if not prefix.startswith(MAGIC[: len(prefix)]) or not prefix:
        got = "another kind of file" if prefix else "an empty file"
        raise CapsuleError(what, expected="a capsule", got=got)
    if len(prefix) < _PREFIX.size:
        raise CapsuleError(what, expected="a whole capsule", got=f"one cut off at {size} bytes")
    _, version, header_bytes, stated = _PREFIX.unpack(prefix)
    if version != VERSION:
        newer = version > VERSION
        raise CapsuleError(
            what,
            expected=f"version {VERSION}, which says how old each input was",
            got=f"version {version}" + (", a newer one" if newer else ", an older one"),
            remedy="load it with the flashrt that wrote it" if newer else "save it anew",
        )
    if stated > most or size > most:
        raise CapsuleError(
            what,
            expected=f"a capsule of at most {most} bytes",
            got=f"{max(stated, size)} bytes",
            remedy="load the policy and the shapes that it was made with",
        )
    if size != stated:
        got = f"one cut off at {size}" if size < stated else f"{size - stated} bytes behind it"
        raise CapsuleError(what, expected=f"a whole capsule of {stated} bytes", got=got)
    if not 0 < header_bytes <= min(_LARGEST_HEADER, size - _PREFIX.size - _DIGEST):
        got = f"one of {header_bytes} bytes in a file of {size}"
        raise CapsuleError(what, expected="a header inside the file", got=got)
    return int(header_bytes)


def _read_whole(path: Path, what: str, most: int) -> bytearray:
    """All bytes of a file that may be a capsule; nothing is allocated for any other."""
    with open(path, "rb", buffering=0, opener=at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise CapsuleError(what, expected="a file", got=kind(status.st_mode))
        prefix = file.read(_PREFIX.size) or b""
        _check_prefix(prefix, status.st_size, what, most)
        data = bytearray(status.st_size)
        data[: len(prefix)] = prefix
        view, place = memoryview(data), len(prefix)
        while place < len(data) and (count := file.readinto(view[place:])):
            place += count
        if place != len(data):
            raise CapsuleError(what, expected="a file that stays as it is", got="one that shrank")
    return data
