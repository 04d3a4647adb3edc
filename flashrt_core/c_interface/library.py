"""The shared library ``libflashrt.so``: where it is, and whether it fits this package."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from ..errors import DeviceError
from . import records

NAME = "libflashrt.so"
_PACKAGE = Path(__file__).resolve().parents[1]


class NativeError(DeviceError):
    """A call of the library failed; ``status`` is its code."""

    def __init__(self, what: str, status: int, text: str) -> None:
        super().__init__(what, got=f"{text} (status {status})")
        self.status = status


def find_library() -> Path:
    """The installed library, or the one that a checkout has built; FLASHRT_LIBRARY names another.

    DeviceError when there is none.
    """
    if named := os.environ.get("FLASHRT_LIBRARY"):
        if not Path(named).is_file():
            raise DeviceError("FLASHRT_LIBRARY", expected="a file", got=named)
        return Path(named)
    for path in (_PACKAGE / "lib" / NAME, _PACKAGE.parent / "build" / NAME):
        if path.is_file():
            return path
    raise DeviceError(
        "C interface",
        expected=f"the library {NAME}",
        got="an installation without it",
        remedy="run python tools/build_abi.py in the checkout, or install where a C++ compiler is",
    )


def load_library(path: Path | None = None) -> ctypes.CDLL:
    """The library, checked against the records of this package.

    DeviceError where it is missing, cannot be loaded, or is of another version.
    """
    path = find_library() if path is None else path
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceError(
            "C interface", expected=f"a library that loads from {path}", got=error
        ) from error
    library.flashrt_last_error.restype = ctypes.c_char_p
    library.flashrt_strerror.restype = ctypes.c_char_p
    own = [ctypes.sizeof(record) for record in records.ALL]
    sizes = (ctypes.c_uint32 * len(own))()
    count = library.flashrt_handover_sizes(sizes, len(own))
    if library.flashrt_abi_version() != records.ABI_VERSION or [*sizes] != own or count != len(own):
        raise DeviceError(
            "C interface",
            expected=f"a library of version {records.ABI_VERSION} with the records of this package",
            got=f"version {library.flashrt_abi_version()} at {path}",
            remedy="build it again: python tools/build_abi.py",
        )
    return library


def call(library: ctypes.CDLL, name: str, *args: object) -> None:
    """A call that must succeed; NativeError with the library's own words otherwise."""
    status = getattr(library, name)(*args)
    if status != 0:
        raise NativeError(name, status, library.flashrt_last_error().decode(errors="replace"))
