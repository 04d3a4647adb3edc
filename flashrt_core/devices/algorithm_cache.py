"""The file that keeps what was chosen by timing: algorithms of products, and other choices.

It only saves time. Where it cannot be kept, as on a read-only or full disk, one warning says so and
what was chosen holds for this process.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import DeviceError

_LOG = logging.getLogger(__name__)
_told: set[Path] = set()  # files that a warning was about


def cache_path(gpu: str, version: int) -> Path | None:
    """Where the choices of this GPU and library version are kept; None: there is no home folder."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(root) if root else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "flashrt" / f"cublaslt-{version}-{gpu.replace(' ', '_')}.json"


def read_cache(path: Path | None) -> dict[str, Any]:
    """What is kept; nothing where there is no file, DeviceError where it is broken."""
    if path is None:
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        _tell(path, "read", error)
        return {}
    except (TypeError, ValueError) as error:
        raise DeviceError(
            f"cache of algorithms {path}", expected="JSON", got=str(error), remedy="delete the file"
        ) from error


def write_cache(path: Path | None, values: dict[str, Any]) -> None:
    """Replaces the file in one step, or leaves it as it is."""
    if path is None:
        return
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        part = Path(name)
        with os.fdopen(handle, "w") as file:
            json.dump(values, file, indent=1)
        part.replace(path)
    except OSError as error:
        _tell(path, "written", error)
        if part is not None:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _tell(path: Path, done: str, error: OSError) -> None:
    if path not in _told:
        _told.add(path)
        _LOG.warning(
            "'%s' cannot be %s (%s), so each start times algorithms anew; set XDG_CACHE_HOME to a"
            " folder of yours",
            path, done, error.strerror or error,
        )  # fmt: skip
