"""Fields of JSON files, each of the type that its reader expects or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from ..checkpoint import FILE_NAME
from ..errors import WeightsError
from ..files import read_json

_REQUIRED = object()


@dataclass(frozen=True)
class Kind:
    """A type of field: in words, and whether a value is of it."""

    words: str
    fits: Callable[[Any], bool]


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and isfinite(value)
    except OverflowError:
        return False


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(fits(item) for item in value)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind("a whole number above 0", lambda value: type(value) is int and 0 < value < 1 << 31)
COUNTS = Kind("a list of whole numbers above 0", _list_of(COUNT.fits))
PLACES = Kind(
    "a list of whole numbers from 0",
    _list_of(lambda value: type(value) is int and 0 <= value < 1 << 31),
)
TEXT = Kind("a text", lambda value: isinstance(value, str))
TEXTS = Kind("a list of texts", _list_of(TEXT.fits))
OBJECT = Kind("a JSON object", lambda value: isinstance(value, dict))
OBJECTS = Kind("a list of JSON objects", _list_of(OBJECT.fits))
NUMBERS = Kind("a list of finite numbers", _list_of(_is_finite))


def field_of(
    owner: Mapping[str, Any],
    key: str,
    kind: Kind,
    where: Path | str,
    default: Any = _REQUIRED,
    *,
    optional: bool = False,
) -> Any:
    """``owner[key]``, of the kind.

    Args:
        owner: a JSON object.
        key: of the field.
        kind: what it must be.
        where: the file, and the place in it, for messages.
        default: where the key is missing; without it the field is required.
        optional: null is as good as missing.

    Raises:
        WeightsError: it is of another type, or required and missing.
    """
    value = owner.get(key, default)
    if value is default or (value is None and optional):
        if default is not _REQUIRED:
            return default
        value = None
    if not kind.fits(value):
        got = shown(value) if key in owner else "no such key"
        raise WeightsError(f"{key} in {str(where)!r}", expected=kind.words, got=got)
    return value


def shown(value: object) -> str:
    """A value for a message, however deep it is."""
    try:
        return repr(value)
    except RecursionError:
        return f"a deep {type(value).__name__}"


def read_object(
    path: Path, *, required: bool = True, remedy: str | None = "copy the whole folder"
) -> dict[str, Any]:
    """The object that a JSON file holds; {} where it may be missing and is.

    Raises:
        WeightsError: it is required and missing, unreadable, or no JSON object.
    """
    if not path.exists():
        if not required:
            return {}
        raise WeightsError(
            f"checkpoint {str(path.parent)!r}" if remedy else "option 'norm_stats'",
            expected=f"{path.name} beside {FILE_NAME}" if remedy else "a readable file",
            got="none",
            remedy=remedy,
        )
    content = read_json(path, str(path), WeightsError)
    if not isinstance(content, dict):
        raise WeightsError(str(path), expected="a JSON object", got=type(content).__name__)
    return content
