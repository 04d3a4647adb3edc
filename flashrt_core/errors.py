"""The exception family. Every message is one line: what, expected, got, remedy.

``code`` is a stable number: the ROS services answer with it as ``error_code``, the C interface
with its negative. Codes are never reused.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Self

# Users' values end up in messages, and messages in logs and service answers: a prompt of a megabyte
# must not. `what` and `expected` are mostly the package's own words, and may list more.
_OWN_LIMIT, _VALUE_LIMIT = 400, 200
_REMEDY_LIMIT = 2000  # of a command with paths, which is of no use when it is cut


def shorten(value: object, limit: int = _VALUE_LIMIT) -> str:
    """``value`` as one line of about ``limit`` characters at most.

    Of a long list the first items stay, with the number of those left out; of a long text its
    beginning and end.
    """
    text = " ".join(str(value).split())
    if len(text) <= limit:
        return text
    if isinstance(value, list | tuple):
        items, room = [shorten(repr(item), limit // 3) for item in value[: limit // 2]], limit
        kept = 0
        while kept < len(items) and (room := room - len(items[kept]) - 2) >= 0:
            kept += 1
        if kept < len(value):
            return f"[{', '.join([*items[:kept], f'... {len(value) - kept} more'])}]"
    tail = limit // 5
    return f"{text[: limit - tail - 5]} ... {text[-tail:]}"


class FlashRTError(Exception):
    """Base of every error that this package raises on purpose.

    Args:
        what: the thing that is wrong, named (``input 'image.base_0_rgb'``).
        expected: what it should have been, if that can be said.
        got: what it was.
        remedy: what the reader can do about it.
    """

    code: ClassVar[int] = 99

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        got: object = None,
        remedy: str | None = None,
    ) -> None:
        self.what = shorten(what, _OWN_LIMIT)
        self.expected = expected
        self.got = got
        self.remedy = remedy
        super().__init__(self._line())

    def reworded(self, what: str | None = None, remedy: str | None = None) -> Self:
        """The same error in the words of a host: another name of the thing, another remedy."""
        error = copy.copy(self)
        error.what, error.remedy = what or self.what, remedy or self.remedy
        error.args = (error._line(),)
        return error

    def _line(self) -> str:
        details = []
        if self.expected is not None:
            details.append(f"expected {shorten(self.expected, _OWN_LIMIT)}")
        if self.got is not None:
            details.append(f"got {shorten(self.got)}")
        line = self.what
        if details:
            line += ": " + ", ".join(details)
        if self.remedy:
            line += f"; {shorten(self.remedy, _REMEDY_LIMIT)}"
        return " ".join(line.split())


class ContractError(FlashRTError):
    """A contract that contradicts itself, or a use that contradicts the contract."""

    code = 10


class InputError(FlashRTError):
    """A value offered to an input that the input cannot take."""

    code = 11


class StaleStateError(FlashRTError):
    """A stage would act on retained values made from older inputs, or on none."""

    code = 12


class ShapeKeyError(FlashRTError):
    """A shape was asked for that was not captured."""

    code = 13


class DeviceError(FlashRTError):
    """The device is missing, too old, out of memory or failed."""

    code = 20


class CaptureError(FlashRTError):
    """A stage could not be captured, or was captured in the wrong state."""

    code = 21


class NumericsError(FlashRTError):
    """A stage produced values that are not finite."""

    code = 22


class WeightsError(FlashRTError):
    """Weights are missing, malformed or of another model."""

    code = 30


class CapsuleError(FlashRTError):
    """A capsule is unknown, or belongs to another plan."""

    code = 40


class CapsuleStoreFullError(CapsuleError):
    """No free capsule slot; nothing is evicted unasked."""

    code = 41


class SessionError(FlashRTError):
    """A session name is unknown or taken."""

    code = 50


class SessionLimitError(SessionError):
    """The engine holds as many sessions as it was configured for."""

    code = 51


class OptionError(FlashRTError):
    """A parameter or option is unknown, of the wrong type, or out of range.

    Of an option of ``load`` the first word is ``option`` (or ``override``) and the second its name
    in quotes; hosts with other names for it (ROS parameters) translate that.
    """

    code = 60


class ImageError(InputError):
    """An image whose encoding, size fields or bytes do not fit together."""

    code = 70
