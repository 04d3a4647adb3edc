"""Copies between buffers that are planned once, at configure, and started as one ever after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..errors import DeviceError


class Rows(NamedTuple):
    """``rows`` runs of ``row_bytes`` between two buffers; offsets and pitches in bytes."""

    target: Tensor
    source: Tensor
    row_bytes: int
    rows: int = 1
    target_offset: int = 0
    target_pitch: int = 0
    source_offset: int = 0
    source_pitch: int = 0


class Piece(NamedTuple):
    """The same as addresses: what a driver copies. Pitches are at least ``width``."""

    target: int
    source: int
    width: int
    rows: int
    target_pitch: int
    source_pitch: int


@dataclass(frozen=True)
class Transfer:
    """Copies that a device has planned; each adds what it needs to start them.

    Attributes:
        rows: the copies, in order. None reads what another one writes.
    """

    rows: tuple[Rows, ...]


def pieces(copies: Iterable[Rows]) -> tuple[Piece, ...]:
    """The addresses of ``copies``; those without a gap, at either end, are one piece.

    What is between two rows is never part of a piece: it belongs to nobody who asked for it.
    DeviceError where one is read from between the first and the last byte that one is written to:
    in what order they are copied is the device's choice.
    """
    found: list[Piece] = []
    for piece in map(_piece, copies):
        last = found[-1] if found else None
        if last is not None and _follows(last, piece):
            width = last.width + piece.width
            found[-1] = Piece(last.target, last.source, width, 1, width, width)
        else:
            found.append(piece)
    _check_apart(found)
    return tuple(found)


def _check_apart(found: Iterable[Piece]) -> None:
    written = [(each.target, each.target + _extent(each, each.target_pitch)) for each in found]
    for each in found:
        start, end = each.source, each.source + _extent(each, each.source_pitch)
        for first, last in written:
            if start < last and first < end:
                raise DeviceError(
                    "planned copies",
                    expected="none that reads what one of them writes",
                    got=f"{min(end, last) - max(start, first)} bytes in common",
                )


def _extent(piece: Piece, pitch: int) -> int:
    return (piece.rows - 1) * pitch + piece.width


def _piece(copy: Rows) -> Piece:
    target = copy.target.data_ptr() + copy.target_offset
    source = copy.source.data_ptr() + copy.source_offset
    width, rows = copy.row_bytes, copy.rows
    to_pitch, from_pitch = max(copy.target_pitch, width), max(copy.source_pitch, width)
    if rows == 1 or to_pitch == from_pitch == width:
        width *= rows
        return Piece(target, source, width, 1, width, width)
    return Piece(target, source, width, rows, to_pitch, from_pitch)


def _follows(first: Piece, second: Piece) -> bool:
    return (
        first.rows == second.rows == 1
        and first.target + first.width == second.target
        and first.source + first.width == second.source
    )
