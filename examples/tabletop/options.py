"""Options of the example's commands: each value checked by itself, errors in one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flashrt_core.errors import OptionError
from flashrt_core.files import local_path

_DIGITS = 20  # of a number of 64 bits, with its sign


class Parser(argparse.ArgumentParser):
    """Arguments of a command; no option is abbreviated.

    Args:
        module: of this package.
        doc: what it does.
    """

    def __init__(self, module: str, doc: str | None) -> None:
        super().__init__(prog=f"python -m tabletop.{module}", description=doc, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """OptionError."""
        raise OptionError(message, remedy="--help tells what there is")

    def whole(self, name: str, least: int, most: int, **more: Any) -> None:
        """An option that takes a whole number in least..most."""

        def read(text: str) -> int:
            digits = text.strip().removeprefix("-")
            if digits.isascii() and digits.isdigit() and len(digits) < _DIGITS:
                value = int(text)
                if least <= value <= most:
                    return value
            raise OptionError(
                f"option '{name}'", expected=f"a whole number in {least}..{most}", got=repr(text)
            )

        self.add_argument(name, type=read, metavar="N", **more)

    def number(self, name: str, words: str, fits: Callable[[float], bool], **more: Any) -> None:
        """An option that takes a number; ``words`` say which ones ``fits`` is true of."""

        def read(text: str) -> float:
            try:
                value = float(text)
            except ValueError:
                value = float("nan")
            if not fits(value):
                raise OptionError(f"option '{name}'", expected=f"a number {words}", got=repr(text))
            return value

        self.add_argument(name, type=read, metavar="X", **more)

    def path(self, name: str, **more: Any) -> None:
        """An option that must be given and takes a path; whether it is of use is not asked."""

        def read(text: str) -> Path:
            return local_path(f"option '{name}'", text, OptionError)

        self.add_argument(name, type=read, required=True, metavar="PATH", **more)
