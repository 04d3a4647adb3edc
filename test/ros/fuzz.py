"""Messages that no sensor should send: damaged bytes, and sound ones with absurd fields."""

from __future__ import annotations

import array
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from flashrt_ros import stamps

from .harness import JOINTS, image, joint_state, jpeg

Rng = np.random.Generator
_LENGTHS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000000)
_NUMBERS = (0.0, -0.0, 1e-310, 1e30, -1e38, 1e308, float("nan"), float("inf"), float("-inf"))
_TEXTS = ("", "rgb8", "RGB8", "x" * 5000, "rgb8\n", "yuv422", "bayer_rggb8", "32FC1", "mono16")


def truncated(rng: Rng, data: bytes) -> bytes:
    """Less than the whole."""
    return data[: rng.integers(0, len(data))]


def flipped(rng: Rng, data: bytes) -> bytes:
    """A few bits changed, mostly in front, where the lengths are."""
    found = bytearray(data)
    reach = len(found) if rng.random() < 0.3 else min(len(found), 120)
    for _ in range(rng.integers(1, 9)):
        found[rng.integers(0, reach)] ^= 1 << int(rng.integers(0, 8))
    return bytes(found)


def overlong(rng: Rng, data: bytes) -> bytes:
    """A length, or what lies where one may be, that is not true."""
    found = bytearray(data)
    at = 4 * int(rng.integers(1, max(2, min(len(found) // 4, 40))))
    if at + 4 <= len(found):
        struct.pack_into("<I", found, at, _LENGTHS[rng.integers(0, len(_LENGTHS))])
    return bytes(found)


def extended(rng: Rng, data: bytes) -> bytes:
    """More than the whole."""
    return data + rng.bytes(int(rng.integers(1, 300)))


def noise(rng: Rng, data: bytes) -> bytes:
    """Nothing of it."""
    return data[: 4 * int(rng.integers(0, 2))] + rng.bytes(int(rng.integers(0, 400)))


DAMAGES: tuple[Callable[[Rng, bytes], bytes], ...] = (
    truncated, flipped, overlong, extended, noise,
)  # fmt: skip


def absurd(rng: Rng, kind: Any) -> Any:
    """A well-formed message of ``kind`` with fields that mean nothing."""
    if kind is String:
        texts = ("", " \t\n", "\x00", "\x1b[2J", "w" * 100_000, "\U0001f916" * 50, "wave")
        return String(data=_one(rng, texts))
    message = _MAKERS[kind](rng)
    if rng.random() < 0.3:
        message.header.stamp.sec = int(rng.integers(-(2**31), 2**31))
        message.header.stamp.nanosec = int(rng.integers(0, 2**32))
    return message


def _one(rng: Rng, values: Any) -> Any:
    return values[int(rng.integers(0, len(values)))]


def _image(rng: Rng) -> Any:
    message = image(pixels=rng.integers(0, 256, (24, 32, 3), np.uint8))
    message.encoding = _one(rng, _TEXTS)
    for name in ("height", "width", "step"):
        if rng.random() < 0.4:
            setattr(message, name, int(_one(rng, (*_LENGTHS, int(rng.integers(0, 200))))))
    message.is_bigendian = int(rng.integers(0, 256))
    if rng.random() < 0.3:
        message.data = array.array("B", rng.bytes(int(rng.integers(0, 5000))))
    return message


def _picture(rng: Rng) -> Any:
    good = bytes(jpeg(kind=_one(rng, ("jpeg", "png"))).data)
    huge = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 60000, 60000) + good[24:]
    data = _one(rng, (good, huge, flipped(rng, good), truncated(rng, good), rng.bytes(500), b""))
    return jpeg(data, _one(rng, ("jpeg", "png", "", "x" * 3000, "rgb8; compressedDepth png")))


def _joints(rng: Rng) -> Any:
    message = joint_state({name: _one(rng, _NUMBERS) for name in JOINTS})
    choice = rng.integers(0, 6)
    if choice == 0:
        message.name = [f"joint{k}" for k in range(3000)]
    elif choice == 1:
        message.name = [*JOINTS, JOINTS[0]]
    elif choice == 2:
        message.position = array.array("d", rng.normal(size=int(rng.integers(0, 2000))))
    elif choice == 3:
        message.name, message.position = [], []
    elif choice == 4:
        message.effort = array.array("d", [_one(rng, _NUMBERS)] * int(rng.integers(0, 5000)))
    return message


_MAKERS: dict[Any, Callable[[Rng], Any]] = {
    Image: _image,
    CompressedImage: _picture,
    JointState: _joints,
}


def next_message(rng: Rng, good: Any, now_ns: int) -> bytes:
    """The next thing to send in place of ``good``."""
    if rng.random() < 0.4:
        return bytes(serialize_message(absurd(rng, type(good))))
    if hasattr(good, "header"):
        good.header.stamp = stamps.time_message(now_ns)
    return _one(rng, DAMAGES)(rng, bytes(serialize_message(good)))
