"""The file that keeps what was chosen by timing: algorithms of products, and other choices."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ..errors import DeviceError


def cache_path(gpu: str, version: int) -> Path:
    """Where the chosen algorithms of this GPU and library version are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "flashrt" / f"cublaslt-{version}-{gpu.replace(' ', '_')}.json"


def read_cache(path: Path | None) -> dict[str, Any]:
    """What is kept; nothing where there is no file, DeviceError where it is broken."""
    if path is None or not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, OSError) as error:
        raise DeviceError(
            f"cache of algorithms {path}", expected="JSON", got=str(error), remedy="delete the file"
        ) from error


def write_cache(path: Path | None, values: dict[str, Any]) -> None:
    """Replaces the file in one step."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump(values, file, indent=1)
    Path(name).replace(path)
