"""Encodings of raw images, and where the pixels of one lie in its bytes.

Sizes and offsets only; :mod:`flashrt_core.images` makes pictures of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from flashrt_core.errors import ImageError
from flashrt_core.kernels.picture import Kind
from flashrt_core.whole_numbers import whole_number

_OPENCV_REMEDY = "install opencv-python-headless (pip) or python3-opencv (apt)"
DEPTH = {"16UC1": "16-bit depth in millimetres", "32FC1": "depth in metres"}  # REP 118


@dataclass(frozen=True)
class Encoding:
    """Bytes of one pixel, and how to get RGB from them.

    ``picks`` are the channels to take as R, G, B, or where the parts of another ``kind`` lie;
    ``cv`` is an OpenCV conversion; ``planes`` counts the rows of bytes per picture row in halves
    (3 for 4:2:0); width and height must be multiples of ``even``.
    """

    channels: int
    sample_bytes: int = 1
    picks: tuple[int, int, int] = (0, 1, 2)
    cv: str | None = None
    planes: int = 2
    even: tuple[int, int] = (1, 1)
    kind: Kind = Kind.PACKED


def _bayer(cv: str, row: int, column: int) -> Encoding:
    return Encoding(1, 1, (0, row, column), cv, even=(2, 2), kind=Kind.BAYER)


_UYVY = Encoding(2, 1, (1, 0, 2), "COLOR_YUV2RGB_UYVY", even=(2, 1), kind=Kind.YUV422)
_YUY2 = Encoding(2, 1, (0, 1, 3), "COLOR_YUV2RGB_YUY2", even=(2, 1), kind=Kind.YUV422)
#: By the names of sensor_msgs/image_encodings.
TABLE = {
    "rgb8": Encoding(3, picks=(0, 1, 2)),
    "bgr8": Encoding(3, picks=(2, 1, 0)),
    "rgba8": Encoding(4, picks=(0, 1, 2)),
    "bgra8": Encoding(4, picks=(2, 1, 0)),
    "mono8": Encoding(1, picks=(0, 0, 0)),
    "8UC1": Encoding(1, picks=(0, 0, 0)),
    "mono16": Encoding(1, sample_bytes=2, picks=(0, 0, 0), kind=Kind.WIDE),
    "bayer_rggb8": _bayer("COLOR_BayerRGGB2RGB", 0, 0),
    "bayer_bggr8": _bayer("COLOR_BayerBGGR2RGB", 1, 1),
    "bayer_gbrg8": _bayer("COLOR_BayerGBRG2RGB", 1, 0),
    "bayer_grbg8": _bayer("COLOR_BayerGRBG2RGB", 0, 1),
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUY2,
    "yuyv": _YUY2,
    "nv12": Encoding(1, 1, (0, 0, 1), "COLOR_YUV2RGB_NV12", 3, (2, 2), Kind.YUV420),
    "nv21": Encoding(1, 1, (0, 1, 0), "COLOR_YUV2RGB_NV21", 3, (2, 2), Kind.YUV420),
}
# Their channel order is not in the message; the camera's `encoding` parameter has to state it.
_UNORDERED = {"8UC3": ("rgb8", "bgr8"), "8UC4": ("rgba8", "bgra8")}
ENCODINGS = tuple(TABLE)


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where the pixels of a checked message lie: sizes in pixels and bytes."""

    encoding: str
    height: int
    width: int
    rows: int  # rows of bytes in the data; more than `height` for 4:2:0
    row_bytes: int  # bytes of a row that carry pixels
    step: int  # bytes from one row to the next
    big_endian: bool

    @classmethod
    def of(
        cls, encoding: str, height: int, width: int, step: int = 0, big_endian: bool = False
    ) -> ImageLayout:
        """The layout that the fields of a message give; ``step`` 0 means packed rows.

        Raises:
            ImageError: no such encoding, fields that are no whole numbers, no pixels, a size that
                the encoding cannot have, or ``step`` shorter than a row.
        """
        if not isinstance(encoding, str) or encoding not in TABLE:
            raise ImageError(
                "image encoding", expected=f"one of {', '.join(ENCODINGS)}", got=repr(encoding)
            )
        kind = TABLE[encoding]
        height, width, step = (
            whole_number(f"image field {name!r}", value, ImageError)
            for name, value in (("height", height), ("width", width), ("step", step))
        )
        if height < 1 or width < 1:
            raise ImageError("image size", expected="at least 1 x 1", got=f"{width} x {height}")
        if width % kind.even[0] or height % kind.even[1]:
            raise ImageError(
                f"size of a {encoding} image",
                expected=f"width in steps of {kind.even[0]}, height of {kind.even[1]}",
                got=f"{width} x {height}",
            )
        row_bytes = width * kind.channels * kind.sample_bytes
        step = step or row_bytes
        if step < row_bytes:
            raise ImageError(
                "image field 'step'",
                expected=f"at least {row_bytes} for {width} {encoding} pixels",
                got=step,
            )
        rows = height * kind.planes // 2
        return cls(encoding, height, width, rows, row_bytes, step, bool(big_endian))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, with their padding."""
        return self.step * self.rows

    def __str__(self) -> str:
        size = f"{self.width} x {self.height} {self.encoding}"
        return f"{self.nbytes} bytes (step {self.step} x {self.rows} rows, {size})"


def layout_of(encoding: str, height: int, width: int, step: int, big_endian: bool) -> ImageLayout:
    """:meth:`ImageLayout.of`, and quick where that was asked before: cameras repeat themselves."""
    try:
        return _layout_of(encoding, height, width, step, big_endian)
    except TypeError:  # no hash: one of them is nothing that a field can be
        return ImageLayout.of(encoding, height, width, step, big_endian)


@lru_cache(maxsize=64, typed=True)
def _layout_of(encoding: str, height: int, width: int, step: int, big_endian: bool) -> ImageLayout:
    return ImageLayout.of(encoding, height, width, step, big_endian)


def bytes_of(data: Any, what: str = "image data") -> np.ndarray:
    """The bytes of a buffer, as [n] uint8 without a copy; ImageError where it is none."""
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError):
        got = type(data).__name__
    else:
        if view.c_contiguous and view.itemsize == 1:
            return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        got = f"{type(data).__name__} of other items, or with gaps between them"
    raise ImageError(what, expected="a buffer of bytes without gaps", got=got)


def resolve_encoding(encoding: str, required: str = "") -> str:
    """The supported encoding by which to read an image that says ``encoding``.

    Raises:
        ImageError: unknown, not the required one, depth, without a channel order, or OpenCV needed
            and not installed.
    """
    if not isinstance(encoding, str):
        raise ImageError("image encoding", expected="text", got=repr(encoding))
    if encoding in _UNORDERED:
        if required in _UNORDERED[encoding]:
            return required
        raise ImageError(
            "image encoding",
            expected="one that names its channel order",
            got=encoding,
            remedy=f"state it in the camera's encoding: {' or '.join(_UNORDERED[encoding])}",
        )
    if encoding in DEPTH:
        raise ImageError("image encoding", expected="colour", got=f"{encoding} ({DEPTH[encoding]})")
    if encoding not in TABLE:
        raise ImageError(
            "image encoding", expected=f"one of {', '.join(ENCODINGS)}", got=f"'{encoding}'"
        )
    if required and encoding != required:
        raise ImageError("image encoding", expected=required, got=encoding)
    if TABLE[encoding].cv is not None:
        opencv(f"a {encoding} image")
    return encoding


@cache
def _import_opencv() -> ModuleType | None:
    try:
        import cv2
    except ImportError:
        return None
    module: ModuleType = cv2
    return module


def opencv(purpose: str) -> Any:
    """Return the cv2 module; ImageError names ``purpose`` and the packages where it is missing."""
    module = _import_opencv()
    if module is None:
        raise ImageError(f"{purpose} needs OpenCV, which is not installed", remedy=_OPENCV_REMEDY)
    return module
