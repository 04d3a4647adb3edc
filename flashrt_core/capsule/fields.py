"""JSON that others wrote, field by field: each asked for with its type, none left over."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any


class MalformedError(Exception):
    """What is wrong with a document, in words that fit behind ``a malformed one:``."""


class Fields:
    """A JSON object.

    Args:
        value: what should be one.
        where: its name, for messages.

    Every method raises MalformedError where a field is missing or of another type or size.
    """

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise MalformedError(f"{where} is no object")
        self.where = where
        self._values: dict[str, Any] = value
        self._asked: set[str] = set()
        for name in value:
            _unicode(name, where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, name: str) -> str:
        """A text."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        _unicode(value, f"{name!r} of {self.where}")
        return value

    def choice(self, name: str, known: Collection[str]) -> str:
        """One of some texts."""
        value = self.text(name)
        if value not in known:
            raise self._wrong(name, f"one of {', '.join(map(repr, known))}")
        return value

    def whole(self, name: str, least: int, end: int) -> int:
        """A whole number of at least ``least`` and below ``end``."""
        value = self._get(name)
        if not _is_whole(value, least, end):
            raise self._wrong(name, f"a whole number from {least}, below {end}")
        return int(value)

    def sizes(self, name: str) -> tuple[int, ...]:
        """A short list of sizes."""
        value = self._get(name)
        if (
            not isinstance(value, list)
            or len(value) > 8
            or not all(_is_whole(size, 0, 1 << 31) for size in value)
        ):
            raise self._wrong(name, "a list of up to 8 sizes")
        return tuple(value)

    def fields(self, name: str) -> Fields:
        """An object."""
        return Fields(self._get(name), f"{name!r} of {self.where}")

    def items(self, name: str) -> list[Fields]:
        """A list of objects."""
        value = self._get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return [Fields(item, f"{name}[{place}]") for place, item in enumerate(value)]

    def end(self) -> None:
        """Refuse fields that nobody asked for."""
        if unknown := sorted(set(self._values) - self._asked):
            raise MalformedError(f"{self.where} has unknown fields {unknown}")

    def _get(self, name: str) -> Any:
        self._asked.add(name)
        if name not in self._values:
            raise MalformedError(f"{self.where} has no {name!r}")
        return self._values[name]

    def _wrong(self, name: str, expected: str) -> MalformedError:
        return MalformedError(f"{name!r} of {self.where} is not {expected}")


def _is_whole(value: Any, least: int, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < end


def _unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedError(f"{where} is no Unicode") from error
