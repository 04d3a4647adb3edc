"""One declared parameter: its type, its limits, and the words of a value that has neither."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flashrt_core.errors import OptionError

#: A list of each type, as a parameter file has it.
_LISTS = {
    "int": "a list of whole numbers, such as [16, 48]",
    "float": "a list of numbers, such as [0.5, 1.0]",
    "string": "a list of texts, such as [front, wrist], those of digits in quotes",
}


@dataclass(frozen=True)
class Param:
    """One declared parameter. ``kind`` is bool, int, float, string, int[], float[] or string[]."""

    name: str
    kind: str
    default: Any
    doc: str
    unit: str = ""
    bounds: tuple[float, float] | None = None
    choices: tuple[Any, ...] = ()
    # Read only from configure to cleanup; between, change it and configure again.
    read_only: bool = True

    def check(self, value: Any) -> Any:
        """Return ``value`` in the declared type; OptionError names the parameter and both types.

        A whole number is taken for a float, and an unset array (YAML ``[]``) is empty.
        """
        item = self.kind.removesuffix("[]")
        if self.kind.endswith("[]"):
            values = [] if value is None else value
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise self._error(value)
            cast = [self._cast(item, v, value) for v in values]
            for element in cast:
                self._check_range(element)
            return tuple(cast)
        single = self._cast(item, value, value)
        self._check_range(single)
        return single

    def limits(self) -> str:
        """Bounds or choices in words, "" where every value of the type is allowed."""
        if self.choices:
            return " | ".join(str(c) for c in self.choices)
        if self.bounds:
            return f"{_number(self.bounds[0])} to {_number(self.bounds[1])}"
        return ""

    def _cast(self, item: str, value: Any, whole: Any) -> Any:
        if item == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        types = {"bool": bool, "int": int, "string": str}
        wanted = types.get(item)
        if wanted is None or not isinstance(value, wanted):
            raise self._error(whole)
        if wanted is int and isinstance(value, bool):
            raise self._error(whole)
        return value

    def _check_range(self, value: Any) -> None:
        if self.choices and value not in self.choices:
            raise OptionError(f"parameter '{self.name}'", expected=self.limits(), got=_show(value))
        if isinstance(value, float) and not math.isfinite(value):
            raise OptionError(f"parameter '{self.name}'", expected="a finite number", got=value)
        if self.bounds and not self.bounds[0] <= value <= self.bounds[1]:
            unit = f" {self.unit}" if self.unit else ""
            raise OptionError(
                f"parameter '{self.name}'",
                expected=f"{self.limits()}{unit}",
                got=_number(value),
            )

    def _error(self, value: Any) -> OptionError:
        if self.kind.endswith("[]"):
            remedy = f"write {_LISTS[self.kind.removesuffix('[]')]}"
        elif self.kind == "string":
            remedy = "quote it in YAML"
        else:
            like = "true or false" if self.kind == "bool" else f"it like {in_yaml(self.default)}"
            remedy = f"write {like}, without quotes"
        return OptionError(
            f"parameter '{self.name}'", expected=self.kind, got=_show(value), remedy=remedy
        )


def _number(value: float) -> str:
    """With every digit that it has, and none behind the point of a whole one."""
    whole = isinstance(value, float) and abs(value) < 1e16 and value.is_integer()
    return str(int(value) if whole else value)


def in_yaml(value: Any) -> str:
    """``value`` as a parameter file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(in_yaml(v) for v in value) + "]"
    if isinstance(value, str):
        return value or '""'
    return str(value)


def _show(value: Any) -> str:
    kinds = {bool: "bool", int: "int", float: "float", str: "string", type(None): "unset"}
    if isinstance(value, str):
        return f"'{value}' (string)"
    if type(value) in kinds:
        return f"{in_yaml(value)} ({kinds[type(value)]})"
    return f"{in_yaml(tuple(value))} (array)" if isinstance(value, Iterable) else repr(value)
