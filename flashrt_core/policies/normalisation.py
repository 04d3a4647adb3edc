"""Robot units to the network's range and back, with the statistics that ship with a checkpoint.

Two implementations, two arithmetics (docs/numerics.md): openpi adds 1e-6 to every denominator and
computes in float64; LeRobot guards only denominators that are 0 and computes in float32. Nothing is
clipped in either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import FlashRTError, OptionError, shorten
from ..files import read_json
from ..fingerprint import sha256_of

Array = np.ndarray[Any, Any]
Mode = Literal["range", "mean_std"]
_ADDED_EPS = 1e-6
#: No robot's unit comes near it, and float32 still holds what is made of it.
LARGEST = 1e30

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

    @property
    def identity(self) -> str:
        """The arithmetic in words and a digest of the numbers; equal for equal effect."""
        numbers = sha256_of([self.first.tolist(), self.second.tolist()])
        arithmetic = f"guarded by {self.eps:g}" if self.guarded else f"{_ADDED_EPS:g} added"
        return f"{self.dims} numbers, {self.mode}, {arithmetic}, {numbers[:16]}"

    def take(self, dims: int) -> Statistics:
        """The statistics of the first ``dims`` dimensions."""
        return self.pick(range(dims))

    def pick(self, dims: Sequence[int]) -> Statistics:
        """The statistics of these dimensions, in this order."""
        places = list(dims)
        return replace(self, first=self.first[places], second=self.second[places])

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

    def invert(self, values: Array) -> Array:
        """Robot units [..., dims] -> what :meth:`restore` makes them of, float64.

        Not :meth:`normalise` where LeRobot's mean/std has its epsilon; not finite where a deviation
        is 0, as :meth:`restore` then gives the mean, whatever the network says.
        """
        _, first, second = self._operands(values)
        first, second = first.astype(np.float64), second.astype(np.float64)
        if self.mode == "mean_std":
            spread = second if self.guarded else second + _ADDED_EPS
        elif self.guarded:
            spread = self._span(first, second) / 2.0
        else:
            spread = (second - first + _ADDED_EPS) / 2.0
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (values.astype(np.float64) - first) / spread
        return found if self.mode == "mean_std" else found - 1.0

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
        OptionError: the file is missing, is not of that layout, or holds numbers that are no
            statistics.
    """
    where = f"norm_stats {str(path)!r}"
    content = read_json(path, where, OptionError)
    first, second = FIELDS["quantiles"]
    low, high = (_numbers(where, content, part, name) for name in (first, second))
    found = Statistics("range", low, high, guarded, source=where)
    _check(found, f"{where}, {part}.{first}", f"{where}, {part}.{second}")
    return found


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
        OptionError: an array is missing, not finite, of another size than its partner, or no
            statistics; or ``eps`` is none.
    """
    first, second = FIELDS[mode]
    missing = [name for name in (first, second) if name not in arrays]
    if missing:
        raise OptionError(where, expected=f"{first} and {second}", got=f"no {missing[0]}")
    if not 0 <= eps < LARGEST:
        raise OptionError(f"{where}, eps", expected="a finite number, 0 or more", got=eps)
    found = []
    for name in (first, second):
        values = np.asarray(arrays[name])
        if values.dtype.kind not in "fiu":
            raise OptionError(f"{where}, {name}", expected="numbers", got=str(values.dtype))
        found.append(values.astype(np.float64))
    kind: Mode = "mean_std" if mode == "mean_std" else "range"
    statistics = Statistics(kind, found[0], found[1], guarded, eps, where)
    _check(statistics, f"{where}, {first}", f"{where}, {second}")
    return statistics


def _numbers(where: str, content: Any, part: str, name: str) -> Array:
    """The list at norm_stats.<part>.<name>; a message names the key where the layout ends."""
    value, at = content, ""
    got = None
    for key in ("norm_stats", part, name):
        if not isinstance(value, dict):
            got = f"{_kind(value)} at {at or 'the top'}"
            break
        if key not in value:
            got = f"no {key!r} {f'in {at}' if at else 'at the top'}, only {shorten(list(value))}"
            break
        value, at = value[key], f"{at}.{key}".lstrip(".")
    if got is None and not (isinstance(value, list) and value):
        got = "an empty list" if isinstance(value, list) else _kind(value)
    if got is not None:
        raise OptionError(
            where,
            expected=f"a list of numbers at norm_stats.{part}.{name}",
            got=got,
            remedy="use a norm_stats.json with quantiles, as openpi's compute_norm_stats.py writes",
        )
    return np.array([_number(f"{where}, {part}.{name}[{k}]", item) for k, item in enumerate(value)])


def _number(where: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise OptionError(where, expected="a finite number", got=f"{value!r}, {_kind(value)}")
    try:
        return float(value)
    except OverflowError as error:
        raise OptionError(
            where, expected="a finite number", got=f"one of {value.bit_length()} bits"
        ) from error


def _kind(value: Any) -> str:
    """What JSON calls a value."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _check(found: Statistics, first: str, second: str) -> None:
    """Refuse numbers that no data can have; ``first`` and ``second`` name the two, for messages."""
    dims = max(found.first.size, found.second.size)
    for where, values in ((first, found.first), (second, found.second)):
        if values.shape != (dims,):
            raise OptionError(where, expected=f"{dims} finite numbers", got=list(values.shape))
        check_size(where, values)
    deviations = found.mode == "mean_std"
    low = np.zeros(dims) if deviations else found.first
    kind = np.float32 if found.guarded else np.float64
    # A span of 0 is a joint that never moved: fine where the arithmetic adds something to it.
    divided = bool(found.guarded and np.float32(found.eps) == 0)
    check_order(
        second,
        low.astype(kind),
        found.second.astype(kind),
        "" if deviations else first.rpartition(" ")[2],
        apart=divided,
    )


def check_size(where: str, values: Array, error: type[FlashRTError] = OptionError) -> None:
    """Refuse what is not finite, or so large that float32 would not hold what is made of it.

    Args:
        where: what the numbers are, for messages.
        values: float64 of any shape.
        error: what is raised.
    """
    bad = np.argwhere(~(np.abs(values) < LARGEST))
    if len(bad):
        at = tuple(bad[0].tolist())
        raise error(
            f"{where}{_place(at)}",
            expected=f"a finite number below {LARGEST:g}",
            got=values[at],
        )


def check_order(
    where: str,
    low: Array,
    high: Array,
    partner: str = "",
    error: type[FlashRTError] = OptionError,
    *,
    apart: bool = False,
) -> None:
    """Refuse a range that ends below its beginning, or at it.

    Args:
        where: what ``high`` is, for messages.
        low, high: of one shape, and checked by :func:`check_size`.
        partner: what ``low`` is; empty where that is 0.
        error: what is raised.
        apart: a range that is a point is refused too.
    """
    span = high - low
    bad = np.argwhere((span < 0) | (apart & (span == 0)))
    if len(bad):
        at = tuple(bad[0].tolist())
        told = f", which is {partner}{_place(at)}" if partner else ""
        raise error(
            f"{where}{_place(at)}",
            expected=f"a number {'above' if apart else 'not below'} {low[at]:g}{told}",
            got=f"{high[at]:g}",
            remedy="compute the statistics again",
        )


def _place(at: tuple[int, ...]) -> str:
    return "".join(f"[{index}]" for index in at)
