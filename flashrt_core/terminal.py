"""What every command shares: the console it prints on, and how an error or a signal ends it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console

from .errors import FlashRTError

USER_ERROR = 2  # exit status of everything that the user can put right; 1 is a failed check
_NO_LIMIT = 10_000  # columns
_AGAIN_S = 0.02


def terminal_or_file() -> Console:
    """Console on stdout; where that is no terminal, lines are as long as their content."""
    # rich would take 80 columns for a file or a pipe, and cut names to fit.
    return Console() if sys.stdout.isatty() else Console(width=_NO_LIMIT)


class Ended(SystemExit):
    """Raised where a signal asks the command to end, so that everything is left in order.

    Whoever knows what was kept says it with ``add_note``; the line that is printed ends in that.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        name = signal.Signals(self.number).name
        how = "interrupted" if self.number == signal.SIGINT else f"ended by {name}"
        return "; ".join([how, *getattr(self, "__notes__", ())])


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Leave by :class:`Ended` on SIGINT, SIGTERM and SIGHUP, where they are not ignored.

    A signal that comes while Python runs something whose exceptions it only prints (a destructor,
    what is registered at a fork) is sent again a moment later.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise Ended(number)

    def swallowed(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Ended):
            main = threading.main_thread().ident
            again = (main, unraisable.exc_value.number)
            threading.Timer(_AGAIN_S, signal.pthread_kill, again).start()
        else:
            hook(unraisable)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN:  # nohup, or a background job
                before[number] = handler
                signal.signal(number, leave)
    hook, sys.unraisablehook = sys.unraisablehook, swallowed
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command(application: Callable[[], Any], name: str = "flashrt") -> int:
    """Run a command line; the exit status, 128 + its number where a signal ended it.

    An error of this package and an interruption are one line on stderr, never a traceback; any
    other error is a defect and keeps its traceback.

    Args:
        application: returns the exit status, or raises SystemExit with it.
        name: of the program, for that line.
    """
    try:
        with unwinding_on_signals():
            status = application()
    except FlashRTError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return USER_ERROR
    except Ended as end:
        print(f"{name}: {end}", file=sys.stderr)
        return 128 + end.number
    except SystemExit as leave:
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return status if isinstance(status, int) else 0
