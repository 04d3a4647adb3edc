"""Camera messages to RGB arrays: what arrives, honestly checked, becomes [H, W, 3] uint8 RGB.

Works on anything shaped like sensor_msgs/Image or sensor_msgs/CompressedImage; imports no ROS.
Checking the header fields is separate from converting, so that a subscription callback stays
cheap. OpenCV, imported on first need, serves compressed, Bayer and YUV images only.

Refused by name, because a guess would feed a policy silently wrong colours: 16UC1 and 32FC1
(depth by REP 118), 8UC3 and 8UC4 without a stated channel order, and everything unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from flashrt_core.errors import ImageError, OptionError
from flashrt_core.image_layout import (
    DEPTH,
    ENCODINGS,
    TABLE,
    ImageLayout,
    bytes_of,
    layout_of,
    opencv,
    resolve_encoding,
)
from flashrt_core.kernels.picture import Kind, Picture

__all__ = [
    "CODECS",
    "ENCODINGS",
    "ROTATIONS_DEG",
    "EncodedImage",
    "Frame",
    "ImageLayout",
    "RawImage",
    "check_compressed",
    "check_image",
    "decode_rgb",
    "frame_of",
    "opencv",
    "packed",
    "resolve_encoding",
    "rotate",
    "to_rgb",
]

ROTATIONS_DEG = (0, 90, 180, 270)
CODECS = ("jpeg", "png")
_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_TAIL = {"jpeg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}


class RawImage(Protocol):
    """The fields of sensor_msgs/Image; ``data`` is any buffer of bytes."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any


class EncodedImage(Protocol):
    """The fields of sensor_msgs/CompressedImage; ``data`` is any buffer of bytes."""

    format: str
    data: Any


def check_image(message: RawImage, required: str = "") -> ImageLayout:
    """Check the header fields of a raw image against each other and against the data.

    Args:
        message: fields of sensor_msgs/Image. ``step`` 0 means packed rows.
        required: the encoding that must arrive; "" takes any supported one. It also states the
            channel order of 8UC3 and 8UC4.

    Raises:
        ImageError: encoding unknown or not the required one, no pixels, ``step`` shorter than a
            row, data of another length than ``step`` x rows, or OpenCV needed and not installed.
    """
    name = resolve_encoding(message.encoding, required)
    layout = layout_of(
        name, message.height, message.width, message.step, bool(message.is_bigendian)
    )
    found = bytes_of(message.data).size
    if found != layout.nbytes:
        raise ImageError("image data", expected=layout, got=found)
    return layout


@dataclass(frozen=True)
class Frame:
    """A raw image that was checked and not converted yet.

    Attributes:
        layout: where its pixels lie.
        data: any buffer of bytes, at least as many as the layout has; not copied.
        rotation_deg: clockwise turn of the picture, one of 0, 90, 180, 270.

    Raises:
        ImageError: at construction, when these do not fit together.
    """

    layout: ImageLayout
    data: Any
    rotation_deg: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.layout, ImageLayout):
            raise ImageError("image layout", expected="an ImageLayout", got=repr(self.layout))
        own = self.layout
        layout = layout_of(own.encoding, own.height, own.width, own.step, own.big_endian)
        if layout != own:
            raise ImageError("image layout", expected=layout, got=own)
        if self.rotation_deg not in ROTATIONS_DEG:
            raise ImageError("rotation_deg", expected="0, 90, 180 or 270", got=self.rotation_deg)
        self.raw()

    def raw(self) -> np.ndarray:
        """Its bytes, [layout.nbytes] uint8; ImageError when there are fewer by now."""
        data = bytes_of(self.data)
        if data.size < self.layout.nbytes:
            raise ImageError("image data", expected=f"at least {self.layout}", got=data.size)
        return data[: self.layout.nbytes]

    @classmethod
    def of_rgb(cls, rgb: np.ndarray) -> Frame:
        """The frame of [H, W, 3] uint8 RGB."""
        height, width = rgb.shape[:2]
        return cls(ImageLayout.of("rgb8", height, width), np.ascontiguousarray(rgb).reshape(-1))

    def rgb(self) -> np.ndarray:
        """[H, W, 3] uint8 RGB, contiguous; see :func:`to_rgb`."""
        layout = self.layout
        encoding = TABLE[layout.encoding]
        if encoding.cv is not None:
            cv2 = opencv(f"a {layout.encoding} image")
            shape = (layout.rows, layout.width) + ((2,) if encoding.channels == 2 else ())
            samples = np.ascontiguousarray(_pixels(self.raw(), layout, shape, "u1"))
            rgb = cv2.cvtColor(samples, getattr(cv2, encoding.cv))
        else:
            kind = "u1" if encoding.sample_bytes == 1 else (">u2" if layout.big_endian else "<u2")
            shape = (layout.height, layout.width, encoding.channels)
            samples = _pixels(self.raw(), layout, shape, kind)
            if encoding.sample_bytes == 2:
                samples = ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)
            rgb = samples if layout.encoding == "rgb8" else _pick(samples, encoding.picks)
        return rotate(rgb, self.rotation_deg)

    def picture(self) -> Picture:
        """How a device is to read the bytes; its place on a square is not set."""
        return _picture(self.layout, self.rotation_deg)


@lru_cache(maxsize=64)  # cameras send the same layout again and again
def _picture(layout: ImageLayout, rotation_deg: int) -> Picture:
    encoding = TABLE[layout.encoding]
    parts = encoding.picks
    if encoding.kind is Kind.WIDE:
        parts = (0, 1, 0) if layout.big_endian else (1, 0, 0)
    return Picture(
        encoding.kind,
        layout.height,
        layout.width,
        layout.step,
        encoding.channels * encoding.sample_bytes,
        *parts,
        turns=rotation_deg // 90,
    )


def frame_of(message: RawImage, required: str = "", rotation_deg: int = 0) -> Frame:
    """Check a raw image and keep it as it is. Arguments and errors as :func:`to_rgb`."""
    if rotation_deg not in ROTATIONS_DEG:
        raise OptionError("rotation_deg", expected="0, 90, 180 or 270", got=rotation_deg)
    return Frame(check_image(message, required), message.data, rotation_deg)


def to_rgb(message: RawImage, required: str = "", rotation_deg: int = 0) -> np.ndarray:
    """Convert a raw image to RGB.

    mono8 and 8UC1 are repeated into three channels; mono16 likewise, scaled linearly from its
    full range 0..65535 to 0..255 and rounded. YUV is ITU-R BT.601, video range.

    Args:
        message: fields of sensor_msgs/Image.
        required: as in :func:`check_image`.
        rotation_deg: clockwise turn of the picture, one of 0, 90, 180, 270.

    Returns:
        [H, W, 3] uint8 RGB, contiguous. May share memory with ``message.data``.

    Raises:
        ImageError: see :func:`check_image`.
        OptionError: another rotation.
    """
    return frame_of(message, required, rotation_deg).rgb()


def check_compressed(message: EncodedImage, required: str = "") -> str:
    """Check a compressed image without decoding it; return its codec, "jpeg" or "png".

    Raises:
        ImageError: empty, cut short, of an unknown codec, not the one that ``format`` or
            ``required`` names, a depth image, or OpenCV is not installed.
    """
    data = bytes_of(message.data).data
    label = message.format
    if "compressedDepth" in label or label.split(";")[0].strip() in DEPTH:
        raise ImageError("compressed image", expected="colour", got=f"depth ('{label}')")
    codec = next((c for c, magic in _MAGIC.items() if data[: len(magic)] == magic), None)
    if codec is None:
        raise ImageError(
            "compressed image",
            expected="data that begins like jpeg or png",
            got=f"{len(data)} bytes, format '{label}'",
        )
    # compressed_image_transport writes "rgb8; jpeg compressed bgr8", drivers "jpeg" or "jpg".
    words = label.lower().replace("jpg", "jpeg")
    named = [c for c in CODECS if c in words]
    if (named and codec not in named) or (required and codec != required):
        raise ImageError("compressed image", expected=required or f"'{label}'", got=f"{codec} data")
    # Cameras pad the end of a JPEG buffer with zeros.
    tail = bytes(data[-4096:]).rstrip(b"\x00") if codec == "jpeg" else bytes(data[-16:])
    if not tail.endswith(_TAIL[codec]):
        raise ImageError(
            "compressed image", expected=f"a complete {codec}", got=f"{len(data)} bytes cut short"
        )
    opencv(f"a {codec} image")
    return codec


def decode_rgb(message: EncodedImage, required: str = "", rotation_deg: int = 0) -> np.ndarray:
    """Decode a compressed image.

    The orientation tag of a JPEG is not applied: ``rotation_deg`` alone turns the picture.

    Args:
        message: fields of sensor_msgs/CompressedImage.
        required: codec that must arrive; "" takes either.
        rotation_deg: clockwise turn of the picture, one of 0, 90, 180, 270.

    Returns:
        [H, W, 3] uint8 RGB, contiguous; grey pictures are repeated, 16-bit ones scaled down.

    Raises:
        ImageError: see :func:`check_compressed`, or the decoder gave up.
        OptionError: another rotation.
    """
    codec = check_compressed(message, required)
    cv2 = opencv(f"a {codec} image")
    data = bytes_of(message.data)
    try:
        picture = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ImageError(f"{codec} image", got=f"a decoder failure ({error.err})") from error
    if picture is None:
        raise ImageError(
            f"{codec} image", expected="decodable data", got=f"{data.size} bytes that do not decode"
        )
    # "... compressed rgb8" says that the encoder was given RGB where it takes BGR: the file holds
    # swapped channels, and the decoder's "BGR" is RGB already.
    if not message.format.rstrip().endswith("compressed rgb8"):
        picture = _pick(picture, (2, 1, 0))
    return rotate(picture, rotation_deg)


def rotate(image: np.ndarray, rotation_deg: int) -> np.ndarray:
    """Turn [H, W, 3] clockwise by 0, 90, 180 or 270 degrees; returns it contiguous."""
    if rotation_deg not in ROTATIONS_DEG:
        raise OptionError("rotation_deg", expected="0, 90, 180 or 270", got=rotation_deg)
    return packed(np.rot90(image, -rotation_deg // 90))


def packed(array: np.ndarray) -> np.ndarray:
    """The array, or a copy where its strides are not those of a fresh one.

    NumPy calls an array contiguous whatever the stride of an axis with one entry is; of a turned
    picture that can be negative, which torch refuses.
    """
    array = np.ascontiguousarray(array)
    return array if min(array.strides, default=0) >= 0 else array.copy(order="C")


def _pick(samples: np.ndarray, channels: tuple[int, int, int]) -> np.ndarray:
    """[H, W, C] to [H, W, 3]; channel by channel is several times faster than one index."""
    rgb = np.empty((*samples.shape[:2], 3), np.uint8)
    for to, channel in enumerate(channels):
        rgb[:, :, to] = samples[:, :, channel]
    return rgb


def _pixels(raw: np.ndarray, layout: ImageLayout, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """View the samples of a buffer as ``shape`` without a copy, whatever the row padding is."""
    inner = np.dtype(kind).itemsize
    strides: tuple[int, ...] = (layout.step, layout.row_bytes // layout.width)
    if len(shape) == 3:
        strides += (inner,)
    return np.ndarray(shape, np.dtype(kind), buffer=raw, strides=strides)
