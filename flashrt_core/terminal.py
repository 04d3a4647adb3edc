"""What every command shares: the console it prints on, and how an error or a signal ends it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from .errors import FlashRTError
from .signals import Ended, Unwinding, leave_in_silence

USER_ERROR = 2  # exit status of everything that the user can put right; 1 is a failed check
_NO_LIMIT = 10_000  # columns

__all__ = ["USER_ERROR", "Ended", "run_command", "terminal_or_file"]


def terminal_or_file() -> Console:
    """Console on stdout; where that is no terminal, lines are as long as their content."""
    # rich would take 80 columns for a file or a pipe, and cut names to fit.
    return Console() if sys.stdout.isatty() else Console(width=_NO_LIMIT)


def run_command(application: Callable[[], Any], name: str = "flashrt") -> int:
    """Run a command line; the exit status, 128 + its number where a signal ended it.

    An error of this package and an interruption are one line on stderr, never a traceback; any
    other error is a defect and keeps its traceback. After a signal every error counts as the
    interruption: whatever was cut short may have made another one of it.

    Args:
        application: returns the exit status, or raises SystemExit with it.
        name: of the program, for that line.
    """
    unwinding = Unwinding()
    status: Any = None
    try:
        with unwinding:
            status = application()
    except BaseException as error:
        if (end := unwinding.end(error)) is not None:
            return _interrupted(name, end)
        if isinstance(error, FlashRTError):
            print(f"{name}: error: {error}", file=sys.stderr)
            return USER_ERROR
        if isinstance(error, SystemExit):
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    if (end := unwinding.end()) is not None:
        return _interrupted(name, end)
    return status if isinstance(status, int) else 0


def _interrupted(name: str, end: Ended) -> int:
    print(f"{name}: {end}", file=sys.stderr)
    leave_in_silence()
    return 128 + end.number
