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

from flashrt_core.images import ENCODINGS, Frame, to_rgb
from flashrt_ros.image_view import view_image
from flashrt_ros.parameters import CameraConfig
from flashrt_ros.sensors import CameraInput
from flashrt_ros.stamps import SECOND
from test.kernels.cameras import draw_image

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


def big(found: Any) -> bytes:
    """A message in big-endian CDR; its frame and encoding are of three and four characters."""
    header, numbers = found.header, struct.pack(">III", found.height, found.width, 5)
    data = b"\0\0\0\0" + struct.pack(">iII", header.stamp.sec, header.stamp.nanosec, 4)
    data += header.frame_id.encode() + b"\0" + numbers + found.encoding.encode() + b"\0"
    data += bytes([found.is_bigendian]) + b"\0\0"
    return data + struct.pack(">II", found.step, len(found.data)) + bytes(found.data)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("padding", [0, 5])
def test_every_encoding_comes_as_the_middleware_reads_it(encoding: str, padding: int) -> None:
    drawn = draw_image(6, 8, encoding, padding=padding, big=encoding == "mono16")
    source = Image(
        height=6, width=8, encoding=encoding, step=drawn.step, is_bigendian=drawn.is_bigendian
    )
    source.data = array.array("B", drawn.data.tobytes())
    source.header.stamp.sec, source.header.frame_id = 5, "eye"
    messages = [serialize_message(source)]
    if len(encoding) == 4:
        messages.append(big(source))
    for data in messages:
        wanted = to_rgb(deserialize_message(data, Image), "", 90)
        for raw in (False, True):
            item = CameraInput(CameraConfig("eye", "e", "s", "", "raw", 90, 0.1), raw=raw)
            view = view_image(data)
            assert view is not None and item.offer(view, 5 * SECOND) is None
            sample = item.select(5 * SECOND)
            assert sample is not None
            found = item.convert(sample)
            found = found.rgb() if isinstance(found, Frame) else found
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"height": 2**32 - 1}, "size"),
        ({"width": 2**32 - 1}, "size"),
        ({"height": 2**31, "width": 2**31, "step": 0}, "size"),
        ({"step": 2**32 - 1}, "size"),
        ({"step": 8}, "size"),
        ({"height": 0}, "size"),
        ({"height": 3}, "size"),
        ({"encoding": "rgb9"}, "encoding"),
        ({"encoding": ""}, "encoding"),
        ({"encoding": "16UC1"}, "encoding"),
    ],
)
def test_absurd_fields_are_refused_on_arrival(changes: dict[str, Any], reason: str) -> None:
    source = message("abc", "rgb8", 18)
    source.step = 9
    for name, value in changes.items():
        setattr(source, name, value)
    for data in (
        (serialize_message(source), big(source))
        if len(source.encoding) == 4
        else (serialize_message(source),)
    ):
        view = view_image(data)
        assert view is not None and fields(view) == fields(deserialize_message(data, Image))
        for raw in (False, True):
            item = CameraInput(CameraConfig("eye", "e", "s", "", "raw", 0, 0.1), raw=raw)
            refusal = item.offer(view, 1)
            assert refusal is not None and refusal.reason == reason and "\n" not in refusal.text
            assert item.counters.refused == {reason: 1} and item.select(1) is None


def test_pixels_are_those_of_the_message() -> None:
    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    source = Image(height=5, width=4, encoding="bgr8", step=12)
    source.data = array.array("B", pixels.tobytes())
    view = view_image(serialize_message(source))
    assert view is not None
    np.testing.assert_array_equal(to_rgb(view), pixels[:, :, ::-1])
