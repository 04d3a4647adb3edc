"""An interrupt at a chosen step, as a signal's handler or Ctrl-C would bring it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import flashrt_core

PACKAGE = str(Path(flashrt_core.__file__).parent)


class Cut:
    """Interrupts the package at its ``number``-th step: a call, a line or a return."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.done = False

    def __enter__(self) -> Cut:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: Any, *_: Any) -> bool:
        sys.settrace(self._before)
        self.done = kind is None
        return kind is KeyboardInterrupt

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event != "exception":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self._trace
