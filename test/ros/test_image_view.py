"""Images read in place: the same fields as the middleware's own reading, on every legal message."""

from __future__ import annotations

import array
import struct
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image

from flashrt_core.images import to_rgb
from flashrt_ros.image_view import view_image

pytestmark = [pytest.mark.ros, pytest.mark.jazzy]


def message(frame: str = "camera", encoding: str = "rgb8", size: int = 12) -> Any:
    found = Image(height=2, width=3, encoding=encoding, is_bigendian=1, step=7)
    found.data = array.array("B", bytes(k % 251 for k in range(size)))
    found.header.frame_id = frame
    found.header.stamp.sec, found.header.stamp.nanosec = 1_700_000_000, 999_999_999
    return found


def fields(found: Any) -> tuple[Any, ...]:
    stamp = found.header.stamp
    numbers = (stamp.sec, stamp.nanosec, found.height, found.width, found.is_bigendian, found.step)
    return (*numbers, found.encoding, bytes(found.data))


@pytest.mark.parametrize("frame", ["", "a", "ab", "abc", "abcd", "камера"])
@pytest.mark.parametrize("encoding", ["", "rgb8", "mono8", "bayer_rggb8"])
@pytest.mark.parametrize("size", [0, 1, 6, 4096])
def test_same_fields_as_the_middleware(frame: str, encoding: str, size: int) -> None:
    data = serialize_message(message(frame, encoding, size))
    view = view_image(data)
    assert view is not None
    assert (
        fields(view)
        == fields(deserialize_message(data, Image))
        == fields(message(frame, encoding, size))
    )


def test_big_endian() -> None:
    data = b"\x00\x00\x00\x00" + struct.pack(">iII", -5, 7, 3) + b"ab\0\0"
    data += struct.pack(">III", 1, 2, 6) + b"mono8\0" + b"\x00\x00" + struct.pack(">II", 2, 2)
    view = view_image(data + b"\x08\x09")
    assert view is not None
    assert fields(view) == (-5, 7, 1, 2, 0, 2, "mono8", b"\x08\x09")
    assert fields(view) == fields(deserialize_message(data + b"\x08\x09", Image))


def test_what_is_cut_or_too_long_is_left_to_the_middleware() -> None:
    data = serialize_message(message("abc", "rgb8", 32))
    assert view_image(data) is not None
    for length in range(len(data)):
        assert view_image(data[:length]) is None, length
    assert view_image(data + bytes(4)) is None
    assert view_image(b"\x00\x07" + data[2:]) is None, "another encapsulation"
    assert view_image(data[:12] + b"\xff" * 4 + data[16:]) is None, "a string of 4 GB"


def test_pixels_are_those_of_the_message() -> None:
    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    source = Image(height=5, width=4, encoding="bgr8", step=12)
    source.data = array.array("B", pixels.tobytes())
    view = view_image(serialize_message(source))
    assert view is not None
    np.testing.assert_array_equal(to_rgb(view), pixels[:, :, ::-1])
