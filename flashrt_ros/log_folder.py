"""Where ROS writes its log files: it makes no context where it cannot, so that is seen to first."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from flashrt_core.errors import OptionError
from flashrt_core.outputs import folder_problem

_VARIABLE = "ROS_LOG_DIR"


def ensure_log_folder(
    environment: MutableMapping[str, str] = os.environ, *, name: str = "flashrt"
) -> None:
    """Before any rclpy context: point ROS at a folder for its logs that can be written.

    That is the folder that ROS takes by itself, wherever it can be written. Where it cannot, as in
    a container whose home is read-only, one below the folder for temporary files takes its place,
    which a line on stderr says once: children inherit the choice.

    Args:
        environment: of this process.
        name: of the program, for that line.

    Raises:
        OptionError: ROS_LOG_DIR names a folder that cannot be written, or there is no other.
    """
    own = environment.get(_VARIABLE, "")
    usual = _usual(environment)
    problem = "no home folder is known" if usual is None else folder_problem(usual)
    if problem is None:
        return
    other = Path(tempfile.gettempdir()) / f"flashrt-{os.geteuid()}-ros-log"
    if own or (nothing_else := folder_problem(other, private=True)):
        raise OptionError(
            f"environment variable '{_VARIABLE}'",
            expected="a folder that can be written, for the logs of ROS",
            got=f"'{usual}': {problem}"
            if own
            else f"none, '{usual}': {problem}, and '{other}': {nothing_else}",
            remedy=f"set {_VARIABLE} to a folder of yours",
        )
    environment[_VARIABLE] = str(other)
    print(
        f"{name}: the logs of ROS go to '{other}', as '{usual or '~/.ros/log'}' cannot be written"
        f" ({problem}); set {_VARIABLE} for another folder",
        file=sys.stderr,
        flush=True,
    )


def _usual(environment: MutableMapping[str, str]) -> Path | None:
    """The folder that rcl takes; None where it finds no home."""
    home = environment.get("HOME")
    if folder := environment.get(_VARIABLE):
        return Path(home + folder[1:] if home and folder.startswith("~") else folder)
    if folder := environment.get("ROS_HOME"):
        return Path(home + folder[1:] if home and folder.startswith("~") else folder) / "log"
    return Path(home) / ".ros" / "log" if home else None
