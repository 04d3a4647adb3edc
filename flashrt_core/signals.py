"""Signals that ask a process to end: before there is anything to undo, and from then on.

A command goes through two states. While it imports (torch alone takes a second) a signal ends the
process on the spot: :func:`leave_at_once`. From the command's first line on it raises
:class:`Ended`, so that everything is left in order: :class:`Unwinding`.

This module comes before every other import of a command, so it takes the standard library alone.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 0.02
_IMPORT_S = 15.0  # so long an import is waited for
_IMPORTING = "<frozen importlib._bootstrap"  # file of the frames that every import goes through


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


class _AtOnce:
    """Handler that writes the one line and leaves without a look back.

    Attributes:
        told: the line is not needed any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.told = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if not self.told:
            with suppress(OSError):
                os.write(2, f"{self._name}: {Ended(number)}\n".encode())
        os._exit(128 + number)


def leave_at_once(name: str, numbers: Iterable[signal.Signals] = NUMBERS) -> None:
    """Have signals end the process with one line and 128 + their number, wherever it is.

    For as long as there is nothing to clean up. An exception would be no way out of an import: some
    turn it into another one, or go on without it. Signals that are ignored stay so.

    Args:
        name: of the program, for the line.
        numbers: which signals.
    """
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a background job
            signal.signal(number, _AtOnce(name))
    atexit.register(_too_late)  # the first one registered is called last


def leave_in_silence() -> None:
    """The end was told: :func:`leave_at_once` need not tell another signal."""
    for handler in map(signal.getsignal, NUMBERS):
        if isinstance(handler, _AtOnce):
            handler.told = True


def _too_late() -> None:
    """While Python takes itself down its handlers are gone, and what was done keeps its status."""
    for number in NUMBERS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)


class Unwinding:
    """Context in which SIGINT, SIGTERM and SIGHUP, where they are not ignored, raise Ended.

    It is raised in the main thread, wherever that is, with two exceptions. While a module is being
    imported it waits, as half of a module is of no use to anybody and some turn what they catch
    into another error. And where it got lost, in a destructor or in C code that drops errors, the
    signal is sent again.

    Attributes:
        number: of the signal that came, None before.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._raised: weakref.ref[Ended] | None = None
        self._waits_since: float | None = None
        self._over = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                handler = signal.getsignal(number)
                if handler is not signal.SIG_IGN:
                    self._before[number] = handler
                    signal.signal(number, self._leave)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def end(self, error: BaseException | None = None) -> Ended | None:
        """How a signal ended what ran in this context; None where none came.

        Args:
            error: that left the context; what was raised may be found behind it.
        """
        if self.number is None:
            return None
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            if isinstance(error, Ended):
                return error
            seen.add(id(error))
            error = error.__cause__ or error.__context__
        return Ended(self.number)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        if self._over:  # on the way out: this is for whoever was asked before
            signal.signal(number, self._before[signal.Signals(number)])
            signal.raise_signal(number)
            return
        self.number = number
        if _imports(frame):
            self._waits_since = self._waits_since or time.monotonic()
            if time.monotonic() - self._waits_since < _IMPORT_S:
                self._again(number)
                return
        self._waits_since = None
        raise self._ended(number)  # which no frame may name: it has to go when nobody handles it

    def _ended(self, number: int) -> Ended:
        end = Ended(number)
        self._raised = weakref.ref(end, lambda _: self._again(number))
        return end

    def _again(self, number: int) -> None:
        """Send it a moment later, unless the context was left by then."""

        def send() -> None:
            main = threading.main_thread().ident
            if main is not None and not self._over:
                signal.pthread_kill(main, number)

        if not self._over:
            timer = threading.Timer(_AGAIN_S, send)
            timer.daemon = True
            timer.start()

    def _unraisable(self, found: Any) -> None:
        if not isinstance(found.exc_value, Ended):
            self._hook(found)


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame belongs to an import that is not done."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False
