"""matplotlib for files alone: no display, and no notes of its own where a home is read-only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from .outputs import folder_problem

__all__ = ["Axes", "ensure_folder", "pyplot"]

_VARIABLE = "MPLCONFIGDIR"
_OWN = (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache"))


def ensure_folder(environment: MutableMapping[str, str] = os.environ) -> None:
    """Before matplotlib is imported: a folder for its configuration and list of fonts.

    Where its own can be written, or somebody named one, that stays. Else it would make one anew
    for every process, find all fonts again, and say so on stderr; so it gets one that stays below
    the folder for temporary files.
    """
    if environment.get(_VARIABLE) or all(_usable(environment, *own) for own in _OWN):
        return
    other = Path(tempfile.gettempdir()) / f"flashrt-{os.geteuid()}-matplotlib"
    if folder_problem(other, private=True) is None:
        environment[_VARIABLE] = str(other)


def _usable(environment: MutableMapping[str, str], variable: str, name: str) -> bool:
    try:
        root = environment.get(variable) or Path.home() / name
    except RuntimeError:  # no home
        return False
    return folder_problem(Path(root) / "matplotlib") is None


ensure_folder()

import matplotlib  # noqa: E402

matplotlib.use("Agg")  # no display on a robot or in CI

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
