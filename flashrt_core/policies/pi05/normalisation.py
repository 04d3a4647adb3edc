"""Robot units to the network's range and back, with the statistics that ship with a checkpoint.

Two implementations, two arithmetics (docs/numerics.md): openpi adds 1e-6 to every denominator and
computes in float64; LeRobot guards only denominators that are 0 and computes in float32. Nothing is
clipped in either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...errors import OptionError

Array = np.ndarray[Any, Any]
Mode = Literal["range", "mean_std"]
_ADDED_EPS = 1e-6

#: Names that the two statistics of a mode have in a file.
FIELDS: Mapping[str, tuple[str, str]] = {
    "quantiles": ("q01", "q99"),
    "min_max": ("min", "max"),
    "quantile10": ("q10", "q90"),
    "mean_std": ("mean", "std"),
}


@dataclass(frozen=True)
class Statistics:
    """Two numbers a dimension, and the arithmetic they are used with.

    Attributes:
        mode: "range": ``first`` maps to -1 and ``second`` to 1; "mean_std": they are mean and
            standard deviation.
        first, second: [dims] float64.
        guarded: False: 1e-6 on every denominator, in float64. True: ``eps`` only where needed, in
            float32.
        eps: of the guarded arithmetic.
        source: where they come from, for messages.
    """

    mode: Mode
    first: Array
    second: Array
    guarded: bool = False
    eps: float = 1e-8
    source: str = ""

    @property
    def dims(self) -> int:
        """Dimensions that the statistics cover."""
        return int(self.first.shape[0])

    def take(self, dims: int) -> Statistics:
        """The statistics of the first ``dims`` dimensions."""
        return replace(self, first=self.first[:dims], second=self.second[:dims])

    def normalise(self, values: Array) -> Array:
        """Robot units [..., dims] -> about [-1, 1], or about unit variance."""
        x, first, second = self._operands(values)
        if self.mode == "mean_std":
            return (x - first) / (second + self._added())
        if self.guarded:
            return self._type(2.0) * (x - first) / self._span(first, second) - self._type(1.0)
        return (x - first) / (second - first + _ADDED_EPS) * 2.0 - 1.0

    def restore(self, values: Array) -> Array:
        """Network's range [..., dims] -> robot units. LeRobot's mean/std has no epsilon here."""
        x, first, second = self._operands(values)
        if self.mode == "mean_std":
            return x * (second if self.guarded else second + _ADDED_EPS) + first
        if self.guarded:
            span = self._span(first, second)
            return (x + self._type(1.0)) * span / self._type(2.0) + first
        return (x + 1.0) / 2.0 * (second - first + _ADDED_EPS) + first

    @property
    def _type(self) -> type[np.floating[Any]]:
        return np.float32 if self.guarded else np.float64

    def _operands(self, values: Array) -> tuple[Array, Array, Array]:
        if not self.guarded:
            return values, self.first, self.second  # mixed with float64, as openpi does
        kind = np.float32
        return values.astype(kind), self.first.astype(kind), self.second.astype(kind)

    def _added(self) -> np.floating[Any]:
        return self._type(self.eps if self.guarded else _ADDED_EPS)

    def _span(self, first: Array, second: Array) -> Array:
        span = second - first
        return np.where(span == 0, self._type(self.eps), span)


def read_norm_stats(path: Path, part: str, *, guarded: bool = False) -> Statistics:
    """Quantiles of ``part``, as wide as the file has them.

    Args:
        path: an openpi ``norm_stats.json``.
        part: "state" or "actions".
        guarded: use them with LeRobot's arithmetic.

    Raises:
        OptionError: the file is missing, or is not of that layout.
    """
    where = f"norm_stats {str(path)!r}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(where, expected="a readable file", got=error.strerror) from error
    except ValueError as error:  # malformed JSON or text
        raise OptionError(where, expected="JSON", got=str(error)) from error
    found = {}
    for name in FIELDS["quantiles"]:
        try:
            values = np.asarray(content["norm_stats"][part][name], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(
                where, expected=f"a list of numbers at norm_stats.{part}.{name}", got=content
            ) from error
        found[name] = values
    dims = max(values.size for values in found.values())
    for name, values in found.items():
        _check(f"{where}, {part}.{name}", values, dims)
    return Statistics("range", found["q01"], found["q99"], guarded, source=where)


def from_arrays(
    where: str, mode: str, arrays: Mapping[str, Array], *, guarded: bool, eps: float
) -> Statistics:
    """Statistics of one feature from named arrays.

    Args:
        where: what they are of, for messages.
        mode: a key of :data:`FIELDS`.
        arrays: at least the two names of the mode, [dims] each.
        guarded, eps: see :class:`Statistics`.

    Raises:
        OptionError: an array is missing, not finite, or of another size than its partner.
    """
    first, second = FIELDS[mode]
    missing = [name for name in (first, second) if name not in arrays]
    if missing:
        raise OptionError(where, expected=f"{first} and {second}", got=f"no {missing[0]}")
    low = np.asarray(arrays[first], np.float64)
    high = np.asarray(arrays[second], np.float64)
    dims = max(low.size, high.size)
    _check(f"{where}, {first}", low, dims)
    _check(f"{where}, {second}", high, dims)
    kind: Mode = "mean_std" if mode == "mean_std" else "range"
    return Statistics(kind, low, high, guarded, eps, where)


def _check(where: str, values: Array, dims: int) -> None:
    if values.shape != (dims,) or not np.isfinite(values).all():
        raise OptionError(
            where,
            expected=f"{dims} finite numbers",
            got=list(values.shape) if values.shape != (dims,) else "NaN or infinity",
        )
