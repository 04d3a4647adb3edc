"""How the ``flashrt`` command refuses its command line: one line, as every error of this package.

The parser would print a usage line, a hint and a box around the message.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from ..errors import OptionError

# Name and version of the parser below typer change; this one has always been its exceptions' base.
_UsageError: Any = typer.BadParameter.__mro__[1]
_HELP = "NoArgsIsHelpError"
_EXPECTED = re.compile(r"input should be (?P<expected>.*?)(?:, unable to .*)?", re.IGNORECASE)


class OneLineGroup(TyperGroup):
    """The command group whose usage errors leave it as :class:`OptionError`."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Parse and run.

        Raises:
            OptionError: an unknown option or command, a missing argument, a value out of range.
            SystemExit: with the command's exit status, in standalone mode.
        """
        try:
            status = super().main(*args, **kwargs | {"standalone_mode": False})
        except _UsageError as error:
            if type(error).__name__ == _HELP:  # called with nothing: that is no mistake to name
                error.show()
                sys.exit(error.exit_code)
            raise _refusal(error) from error
        if standalone_mode:
            sys.exit(status)
        return status


def _refusal(error: Any) -> OptionError:
    context = getattr(error, "ctx", None)
    command = f"{context.command_path} --help" if context is not None else "--help"
    remedy = f"{command} tells what there is"
    text = str(error.format_message()).strip().rstrip(".")
    name, mark, reason = text.removeprefix("Invalid value for ").partition(": ")
    if text.startswith("Invalid value for ") and mark:
        kind = getattr(getattr(error, "param", None), "param_type_name", "option")
        return _of_value(f"{kind} {name}", reason, error.__cause__, remedy)
    return OptionError(text[:1].lower() + text[1:], remedy=remedy)


def _of_value(what: str, reason: str, cause: Any, remedy: str) -> OptionError:
    found = _EXPECTED.fullmatch(reason)
    if found is None:  # of typer before it took pydantic: "0 is not in the range x>=1"
        return OptionError(f"{what}: {reason}", remedy=remedy)
    given = [each.get("input") for each in cause.errors()] if hasattr(cause, "errors") else []
    got = repr(given[0]) if given else None
    expected = found["expected"].replace("greater than or equal to", ">=")
    expected = expected.replace("less than or equal to", "<=")
    return OptionError(what, expected=expected, got=got, remedy=remedy)
