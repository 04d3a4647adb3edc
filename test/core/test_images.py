"""Camera messages to RGB: every expected pixel below is worked out here, not by the module."""

from __future__ import annotations

import array
from dataclasses import dataclass

import numpy as np
import pytest

from flashrt_core import image_layout, images
from flashrt_core.errors import ImageError, OptionError


@dataclass
class Raw:
    height: int
    width: int
    encoding: str
    data: bytes
    step: int = 0
    is_bigendian: int = 0


@dataclass
class Encoded:
    format: str
    data: bytes


def padded(rows: np.ndarray, step: int) -> bytes:
    """Rows of bytes with junk between them, as V4L2 drivers and croppers leave it."""
    rows = rows.reshape(rows.shape[0], -1)
    out = np.full((rows.shape[0], step), 0xAB, np.uint8)
    out[:, : rows.shape[1]] = rows
    return out.tobytes()


def ramp(height: int, width: int, channels: int) -> np.ndarray:
    """[H, W, C] uint8 in which every byte differs from its neighbours."""
    count = height * width * channels
    return (np.arange(count) * 7 % 251).astype(np.uint8).reshape(height, width, channels)


PICKS = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
    "8UC1": (1, (0, 0, 0)),
}


@pytest.mark.parametrize("extra", [0, 1, 2, 3, 64])
@pytest.mark.parametrize("encoding", PICKS)
def test_packed_encodings_with_every_row_padding(encoding: str, extra: int) -> None:
    channels, picks = PICKS[encoding]
    pixels = ramp(5, 4, channels)
    step = 4 * channels + extra
    rgb = images.to_rgb(Raw(5, 4, encoding, padded(pixels, step), step))
    want = np.stack([pixels[:, :, c] for c in picks], axis=2)
    assert rgb.dtype == np.uint8 and rgb.flags.c_contiguous
    np.testing.assert_array_equal(rgb, want)


def test_step_zero_means_packed() -> None:
    pixels = ramp(3, 5, 3)
    np.testing.assert_array_equal(images.to_rgb(Raw(3, 5, "rgb8", pixels.tobytes())), pixels)


@pytest.mark.parametrize("big", [0, 1])
@pytest.mark.parametrize("step", [0, 8, 9, 11])
def test_mono16_scales_and_honours_byte_order_and_odd_steps(big: int, step: int) -> None:
    values = np.array([[0, 257, 32768, 65535], [128, 129, 385, 65406]], np.uint16)
    want = np.array([[0, 1, 128, 255], [0, 1, 1, 254]], np.uint8)  # value / 257, rounded
    raw = values.astype(">u2" if big else "<u2").view(np.uint8)
    data = padded(raw, step or 8)
    rgb = images.to_rgb(Raw(2, 4, "mono16", data, step, big))
    np.testing.assert_array_equal(rgb, np.repeat(want[:, :, None], 3, axis=2))


def test_accepts_the_buffers_that_ros_and_bag_readers_hand_out() -> None:
    pixels = ramp(2, 3, 3)
    for data in (
        array.array("B", pixels.tobytes()),
        pixels.reshape(-1),
        bytearray(pixels.tobytes()),
    ):
        np.testing.assert_array_equal(images.to_rgb(Raw(2, 3, "rgb8", data, 9)), pixels)


@pytest.mark.parametrize(
    ("degrees", "want"),
    [
        (0, [[1, 2, 3], [4, 5, 6]]),
        (90, [[4, 1], [5, 2], [6, 3]]),  # clockwise: the left column becomes the top row
        (180, [[6, 5, 4], [3, 2, 1]]),
        (270, [[3, 6], [2, 5], [1, 4]]),
    ],
)
def test_rotation_is_clockwise(degrees: int, want: list[list[int]]) -> None:
    raw = Raw(2, 3, "mono8", bytes([1, 2, 3, 4, 5, 6]))
    rgb = images.to_rgb(raw, rotation_deg=degrees)
    np.testing.assert_array_equal(rgb[:, :, 0], np.array(want))
    assert rgb.flags.c_contiguous


def test_rotation_of_another_angle_is_refused() -> None:
    with pytest.raises(OptionError, match="0, 90, 180 or 270, got 45"):
        images.to_rgb(Raw(1, 1, "mono8", b"\0"), rotation_deg=45)


BAD = [
    (Raw(2, 2, "16UC1", bytes(8)), r"expected colour, got 16UC1 \(16-bit depth in millimetres\)"),
    (Raw(2, 2, "32FC1", bytes(16)), r"got 32FC1 \(depth in metres\)"),
    (Raw(2, 2, "8UC3", bytes(12)), "channel order, got 8UC3; .*rgb8 or bgr8"),
    (Raw(2, 2, "8UC4", bytes(16)), "rgba8 or bgra8"),
    (Raw(2, 2, "rgb16", bytes(24)), "expected one of rgb8, .* got 'rgb16'"),
    (Raw(2, 2, "", bytes(12)), "got ''"),
    (Raw(2, 2, "rgb8", bytes(12), 5), "field 'step': expected at least 6 for 2 rgb8 pixels, got 5"),
    (Raw(2, 2, "rgb8", bytes(11), 6), r"expected 12 bytes \(step 6 x 2 rows, 2 x 2 rgb8\), got 11"),
    (Raw(2, 2, "rgb8", bytes(13), 6), "expected 12 bytes .* got 13"),
    (Raw(2, 2, "rgb8", b"", 6), "got 0"),
    (Raw(0, 2, "rgb8", b""), "expected at least 1 x 1, got 2 x 0"),
    (Raw(2, 0, "rgb8", b""), "got 0 x 2"),
    (Raw(2, 3, "yuv422", bytes(12)), "width in steps of 2, .* got 3 x 2"),
    (Raw(3, 2, "nv12", bytes(9)), "got 2 x 3"),
    (Raw(2, 2, "nv12", bytes(4)), "expected 6 bytes"),
    (Raw(2, 2, "rgb8", [0] * 12), "image data: expected a buffer of bytes without gaps, got list"),
    (Raw(2, 2, "rgb8", "012345678901"), "got str"),
    (Raw(2, 2, "rgb8", None), "got NoneType"),
    (Raw(2, 2, "rgb8", np.zeros(24, np.uint8)[::2]), "or with gaps between them"),
    (Raw(2, 2, "mono16", np.zeros(4, np.uint16)), "got ndarray of other items"),
    (Raw("2", 2, "rgb8", bytes(12)), "field 'height': expected a whole number, got '2'"),
    (Raw(2, None, "rgb8", bytes(12)), "field 'width': expected a whole number, got None"),
    (Raw(2, 2, "rgb8", bytes(12), 6.0), "field 'step': expected a whole number, got 6.0"),
    (Raw(2, 2, ["rgb8"], bytes(12)), "encoding: expected text, got .'rgb8'."),
]


@pytest.mark.parametrize(("raw", "message"), BAD, ids=lambda v: getattr(v, "encoding", None))
def test_contradictions_are_refused_in_one_line(raw: Raw, message: str) -> None:
    for refuse in (images.check_image, images.to_rgb):
        with pytest.raises(ImageError, match=message) as error:
            refuse(raw)
        assert "\n" not in str(error.value)


def test_a_required_encoding_refuses_others_and_orders_unnamed_channels() -> None:
    pixels = ramp(2, 2, 3)
    with pytest.raises(ImageError, match="expected rgb8, got bgr8"):
        images.to_rgb(Raw(2, 2, "bgr8", pixels.tobytes()), "rgb8")
    generic = Raw(2, 2, "8UC3", pixels.tobytes())
    np.testing.assert_array_equal(images.to_rgb(generic, "rgb8"), pixels)
    np.testing.assert_array_equal(images.to_rgb(generic, "bgr8"), pixels[:, :, ::-1])


class TestWithOpenCV:
    cv2 = pytest.importorskip("cv2")

    @pytest.mark.parametrize("extra", [0, 3])
    @pytest.mark.parametrize(
        ("encoding", "quad"),
        [("rggb", "RGGB"), ("bggr", "BGGR"), ("gbrg", "GBRG"), ("grbg", "GRBG")],
    )
    def test_bayer_patterns(self, encoding: str, quad: str, extra: int) -> None:
        colour = {"R": 200, "G": 90, "B": 30}
        tile = np.array([colour[c] for c in quad], np.uint8).reshape(2, 2)
        mosaic = np.tile(tile, (4, 4))
        raw = Raw(8, 8, f"bayer_{encoding}8", padded(mosaic, 8 + extra), 8 + extra)
        inside = images.to_rgb(raw)[2:-2, 2:-2]
        np.testing.assert_array_equal(inside, np.broadcast_to([200, 90, 30], inside.shape))

    @staticmethod
    def bt601(y: int, u: int, v: int) -> list[float]:
        """ITU-R BT.601 video range to RGB."""
        luma = 1.164 * (y - 16)
        red = luma + 1.596 * (v - 128)
        green = luma - 0.392 * (u - 128) - 0.813 * (v - 128)
        blue = luma + 2.017 * (u - 128)
        return [min(max(c, 0.0), 255.0) for c in (red, green, blue)]

    @pytest.mark.parametrize(("y", "u", "v"), [(235, 128, 128), (81, 90, 240), (120, 200, 60)])
    @pytest.mark.parametrize("extra", [0, 5])
    @pytest.mark.parametrize("encoding", ["yuv422", "uyvy", "yuv422_yuy2", "yuyv", "nv12", "nv21"])
    def test_yuv(self, encoding: str, extra: int, y: int, u: int, v: int) -> None:
        if encoding in ("nv12", "nv21"):
            pair = [u, v] if encoding == "nv12" else [v, u]
            rows = np.array([[y] * 4] * 4 + [pair * 2] * 2, np.uint8)
        else:
            macro = [u, y, v, y] if encoding in ("yuv422", "uyvy") else [y, u, y, v]
            rows = np.array([macro * 2] * 4, np.uint8)
        step = rows.shape[1] + extra
        rgb = images.to_rgb(Raw(4, 4, encoding, padded(rows, step), step))
        assert rgb.shape == (4, 4, 3)
        np.testing.assert_allclose(rgb.reshape(-1, 3), [self.bt601(y, u, v)] * 16, atol=1.5)

    def picture(self) -> np.ndarray:
        """[64, 96, 3] RGB: red left, blue right, smooth enough for JPEG."""
        rgb = np.zeros((64, 96, 3), np.uint8)
        rgb[:, :48] = (220, 40, 20)
        rgb[:, 48:] = (20, 60, 210)
        return rgb

    def encode(self, rgb: np.ndarray, kind: str) -> bytes:
        done, data = self.cv2.imencode(kind, rgb[:, :, ::-1])
        assert done
        return bytes(data.tobytes())

    @pytest.mark.parametrize("label", ["jpeg", "jpg", "", "rgb8; jpeg compressed bgr8"])
    def test_jpeg(self, label: str) -> None:
        rgb = images.decode_rgb(Encoded(label, self.encode(self.picture(), ".jpg")))
        assert rgb.shape == (64, 96, 3) and rgb.flags.c_contiguous
        np.testing.assert_allclose(rgb[8:56, 8:40].mean((0, 1)), (220, 40, 20), atol=4)
        np.testing.assert_allclose(rgb[8:56, 56:88].mean((0, 1)), (20, 60, 210), atol=4)

    def test_jpeg_that_was_encoded_from_unswapped_rgb(self) -> None:
        data = self.encode(self.picture()[:, :, ::-1], ".jpg")
        rgb = images.decode_rgb(Encoded("rgb8; jpeg compressed rgb8", data))
        np.testing.assert_allclose(rgb[8:56, 8:40].mean((0, 1)), (220, 40, 20), atol=4)

    def test_png_is_exact_and_turned(self) -> None:
        pixels = ramp(6, 5, 3)
        message = Encoded("bgr8; png compressed bgr8", self.encode(pixels, ".png"))
        np.testing.assert_array_equal(images.decode_rgb(message), pixels)
        turned = images.decode_rgb(message, rotation_deg=90)
        np.testing.assert_array_equal(turned, pixels[::-1].transpose(1, 0, 2))

    def test_bad_compressed_images(self) -> None:
        jpeg = self.encode(ramp(64, 96, 3), ".jpg")
        png = self.encode(ramp(64, 96, 3), ".png")
        broken = bytearray(png)
        broken[len(png) // 2 : len(png) // 2 + 64] = bytes(64)
        cases = [
            (Encoded("jpeg", b""), "begins like jpeg or png, got 0 bytes"),
            (Encoded("jpeg", b"hello world"), "got 11 bytes, format 'jpeg'"),
            (Encoded("jpeg", jpeg[:-900]), "a complete jpeg"),
            (Encoded("png", png[:-30]), "a complete png"),
            (Encoded("png", jpeg), "expected 'png', got jpeg data"),
            (Encoded("16UC1; compressedDepth png", png), "expected colour, got depth"),
            (Encoded("16UC1; png compressed ", png), "expected colour, got depth"),
            (Encoded("png", bytes(broken)), "do not decode"),
        ]
        cases += [
            (Encoded("jpeg", data), "a buffer of bytes without gaps")
            for data in ([*jpeg], "text", None, np.frombuffer(jpeg + jpeg, np.uint8)[::2])
        ]
        for message, text in cases:
            with pytest.raises(ImageError, match=text):
                images.decode_rgb(message)
        with pytest.raises(ImageError, match="expected png, got jpeg"):
            images.check_compressed(Encoded("jpeg", jpeg), "png")
        assert images.check_compressed(Encoded("jpeg", jpeg + bytes(64))) == "jpeg"


def test_without_opencv_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_layout, "_import_opencv", lambda: None)
    for refuse in (
        lambda: images.check_image(Raw(2, 2, "bayer_rggb8", bytes(4))),
        lambda: images.check_compressed(Encoded("jpeg", b"\xff\xd8\xff\xe0\xff\xd9")),
    ):
        with pytest.raises(ImageError, match=r"needs OpenCV.*opencv-python-headless"):
            refuse()
    pixels = ramp(2, 2, 3)
    np.testing.assert_array_equal(images.to_rgb(Raw(2, 2, "rgb8", pixels.tobytes())), pixels)
