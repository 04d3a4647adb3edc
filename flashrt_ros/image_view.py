"""sensor_msgs/Image read in place: a view of the received bytes, without a copy of the pixels.

rclpy would copy the pixels twice more on the way from bytes to a message: for a megabyte, longer
than everything else that the node does with a frame that arrives.

Source: OMG DDSI-RTPS 10.2 (encapsulation), CDR (every value aligned to its size, strings with their
length and a NUL); field order of sensor_msgs/msg/Image.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_ENCAPSULATION = 4  # bytes before the body; alignment counts from behind them
_ORDERS = {b"\x00\x00": ">", b"\x00\x01": "<"}  # plain CDR, big and little endian


@dataclass(frozen=True, slots=True)
class Stamp:
    """builtin_interfaces/Time."""

    sec: int
    nanosec: int


@dataclass(frozen=True, slots=True)
class Header:
    """std_msgs/Header without its frame."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class ImageView:
    """The fields of sensor_msgs/Image that the node reads; ``data`` is a view of the message."""

    header: Header
    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: memoryview


def view_image(message: bytes) -> ImageView | None:
    """View a serialised sensor_msgs/Image; None where this reader does not understand the bytes.

    None means: let the middleware read it. It knows further encapsulations, and says what is wrong
    with a message that is malformed.
    """
    order = _ORDERS.get(message[:2])
    if order is None:
        return None
    body = memoryview(message)[_ENCAPSULATION:]
    try:
        sec, nanosec, size = struct.unpack_from(f"{order}iII", body, 0)
        at = _aligned(12 + size)
        height, width, size = struct.unpack_from(f"{order}III", body, at)
        at += 12
        encoding = _string(body, at, size)
        at += size
        is_bigendian = body[at]
        at = _aligned(at + 1)
        step, size = struct.unpack_from(f"{order}II", body, at)
        at += 8
    except (struct.error, IndexError, ValueError):
        return None
    # Some middlewares pad the end to a multiple of four.
    if not at + size <= len(body) < at + size + 4:
        return None
    header = Header(Stamp(sec, nanosec))
    data = body[at : at + size]
    return ImageView(header, height, width, encoding, is_bigendian, step, data)


def _aligned(offset: int) -> int:
    return (offset + 3) & ~3


def _string(body: memoryview, at: int, size: int) -> str:
    raw = bytes(body[at : at + size])
    if len(raw) != size or raw[-1:] not in (b"", b"\0"):
        raise ValueError("a string that does not end")
    return raw[:-1].decode()
