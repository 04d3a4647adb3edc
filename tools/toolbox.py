"""What the tools share: errors in one line with exit status 2, numbers, files, what is missing.

A tool that needs a GPU or foreign packages says so before it works.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from flashrt_core.errors import FlashRTError  # noqa: E402
from flashrt_core.outputs import check_output, write_text  # noqa: E402
from flashrt_core.terminal import run_command  # noqa: E402

LEROBOT = ("lerobot", "transformers")
_DIGITS = 18  # of a 64-bit number


class ToolError(FlashRTError):
    """Something that the user of a tool can put right."""


class Parser(argparse.ArgumentParser):
    """Arguments of a tool; what is wrong with them is a ToolError, and no option is abbreviated.

    Args:
        doc: docstring of the tool; its first line is the description.
    """

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=(doc or "").splitlines()[0], allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """ToolError."""
        raise ToolError(message, remedy="--help tells what there is")

    def add_output(self) -> None:
        """-o/--output, the file for the JSON; tried while arguments are read."""
        self.add_argument("-o", "--output", type=writable, help="file for the JSON")

    def add_shape(self, decisions: int) -> None:
        """--views, --tokens, --horizon and --decisions of a comparison, in what policies take."""
        for name, value, most in (
            ("views", 2, 3),
            ("tokens", 48, 4096),
            ("horizon", 10, 256),
            ("decisions", decisions, 1000),
        ):
            self.add_argument(
                f"--{name}", type=whole(1, most), default=value, help=f"1..{most}; {value}"
            )


def whole(least: int, most: int) -> Callable[[str], int]:
    """An argument type: a whole number in least..most."""

    def read(text: str) -> int:
        digits = text.strip().removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS:
            value = int(text)
            if least <= value <= most:
                return value
        told = text if len(text) <= 40 else f"{text[:40]}..."
        raise argparse.ArgumentTypeError(
            f"expected a whole number in {least}..{most}, got {told!r}"
        )

    return read


def seconds(text: str) -> float:
    """An argument type: a finite time longer than none."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 86_400.0:
        raise argparse.ArgumentTypeError(
            f"expected seconds, more than 0 and at most 86400, got {text!r}"
        )
    return value


def writable(text: str) -> Path:
    """An argument type: a file that can be written; ``OptionError`` otherwise."""
    return check_output("--output", Path(text))


def write_report(report: dict[str, Any], path: Path | None) -> None:
    """Write a result as JSON, whole or not at all; nothing without a path."""
    if path is not None:
        write_text(json.dumps(report, indent=1) + "\n", path)


def require_packages(names: Sequence[str], remedy: str) -> None:
    """ToolError unless all can be found."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise ToolError(
            "packages", expected=", ".join(names), got=f"no {', '.join(missing)}", remedy=remedy
        )


@contextmanager
def needing(what: str, remedy: str) -> Iterator[None]:
    """Turns an import that fails into a ToolError."""
    try:
        yield
    except ImportError as error:
        raise ToolError(what, expected="its packages", got=error, remedy=remedy) from error


def require_gpu(instead: str) -> None:
    """DeviceError unless the ``cuda`` device opens; its remedy ends in ``instead``."""
    # Only here: the other tools do without torch.
    from flashrt_core.bench.machine import gpu_only
    from flashrt_core.devices import open_device

    with gpu_only(instead):
        open_device("cuda").close()


def run(main: Callable[[], int | None], name: str) -> NoReturn:
    """Ends the program with the status of ``main``; errors as ``flashrt`` tells them."""
    sys.exit(run_command(main, name))
