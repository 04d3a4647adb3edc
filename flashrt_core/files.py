"""Files that users name and others wrote: paths as people type them, and JSON of any shape.

Whatever stands in them, nothing but the error that the caller asked for leaves these functions.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .errors import FlashRTError

#: What stands at the start of a file that git-lfs has not fetched yet.
LFS_POINTER = b"version https://git-lfs"
_PLACE = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]+)://|(file|ftp|gs|hf|https?|s3):/)(.*)", re.DOTALL)
LFS_REMEDY = "run git lfs pull where it was cloned"


def local_path(what: str, value: str | os.PathLike[str], error: type[FlashRTError]) -> Path:
    """A path as it was typed, with ``~`` expanded. That nothing is there is no error here.

    ``file://`` in front of a path is taken off; nothing is fetched from elsewhere.

    Args:
        what: the thing that ``value`` is, for the message.
        value: what was given.
        error: what to raise where no file can have this path.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise error(what, expected="a path", got=f"{value!r} ({type(value).__name__})")
    text = os.fspath(value)
    if not text:
        raise error(what, expected="a path", got="''")
    text = _local(what, text, error)
    try:
        path = Path(text).expanduser()
    except RuntimeError as problem:
        raise error(
            what,
            expected="a path",
            got=f"{text!r}, whose home folder is not known",
            remedy="write the path from / on",
        ) from problem
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # who reads it says so, and what should be there
    except (OSError, ValueError) as problem:  # ValueError: NUL, or what is no Unicode
        reason = getattr(problem, "strerror", None) or str(problem)
        raise error(
            what, expected="a path that can be read", got=f"{reason}: {text!r}"
        ) from problem
    return path


def _local(what: str, text: str, error: type[FlashRTError]) -> str:
    """``text`` without ``file://``; ``error`` on any other place, such as ``hf://`` (which is
    ``hf:/`` once it has been a Path).
    """
    found = _PLACE.match(text)
    if found is None or os.path.lexists(text):
        return text
    whole, path, rest = found.groups()
    if path == "file" or (whole and whole.lower() == "file" and rest.startswith("/")):
        return unquote(f"/{rest}" if path else rest)
    command = "hf download OWNER/NAME --local-dir FOLDER"
    raise error(
        what,
        expected="a path on this machine",
        got=repr(text),
        remedy=f"download it first ({command}, say) and give that folder",
    )


def read_json(path: Path, what: str, error: type[FlashRTError]) -> Any:
    """The content of a JSON file; ``error`` where it cannot be read or is none.

    Args:
        path: the file.
        what: the thing that it is, for the message.
        error: what to raise.
    """
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise error(what, expected="a readable file", got=reason) from problem
    if raw.startswith(LFS_POINTER):
        raise error(what, expected="JSON", got="a git-lfs pointer to it", remedy=LFS_REMEDY)
    try:
        return json.loads(raw)
    except RecursionError as problem:
        raise error(what, expected="JSON", got="lists or objects nested too deeply") from problem
    except ValueError as problem:
        raise error(what, expected="JSON", got=str(problem)) from problem
