"""Noise of decisions, a pure function of seed and index; and what a window's value must be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from .capsule.state import NO_STAMPS
from .contract import Contract, InputSpec, Update
from .devices.base import NUMPY_DTYPES
from .errors import InputError
from .limits import COUNTS, STAMPS
from .policies.base import Observation, as_array
from .specs import ShapeKey
from .text import check_text
from .whole_numbers import whole_number

Array = np.ndarray[Any, Any]
#: Of a decision: that of the input ``noise``, or of several inputs by name.
Noise = Array | Mapping[str, Array]

#: The input that a generative policy's noise goes to. Further ones have it and a point in front.
NOISE = "noise"
#: What a session's seed may be.
SEEDS = range(1 << 64)


def checked_seed(seed: object) -> int:
    """A session's seed; InputError on what is none."""
    return whole_number("seed", seed, InputError, SEEDS)


def checked_stamp(stamp_ns: object) -> int:
    """The stamp of an observation; InputError on what no capsule has room for."""
    return whole_number("stamp_ns", stamp_ns, InputError, STAMPS)


def checked_stamps(stamps_ns: object, newest_ns: int) -> Mapping[str, int]:
    """Those of its parts, in a mapping that nobody can change; InputError as for the stamp, on
    names that are none, and on a part that is newer than the newest.
    """
    if not isinstance(stamps_ns, Mapping):
        got = type(stamps_ns).__name__
        raise InputError("stamps_ns", expected="a mapping of names to stamps", got=got)
    if not stamps_ns:
        return NO_STAMPS
    found = {}
    for name, stamp_ns in stamps_ns.items():
        check_text("name of a stamp", name, error=InputError)
        found[name] = stamp = whole_number(f"stamp of {name!r}", stamp_ns, InputError, STAMPS)
        if stamp > newest_ns:
            raise InputError(
                f"stamp of {name!r}", expected=f"at most stamp_ns, {newest_ns}", got=stamp
            )
    return MappingProxyType(found)


def stamps_of(observation: object) -> dict[str, Any]:
    """The stamps of an observation as a host state has them; InputError on what is none."""
    if not isinstance(observation, Observation):
        raise InputError("observation", expected="an Observation", got=type(observation).__name__)
    stamp_ns = checked_stamp(observation.stamp_ns)
    return {"seen_ns": stamp_ns, "seen_stamps_ns": checked_stamps(observation.stamps_ns, stamp_ns)}


def noise_for(seed: int, index: int, shape: tuple[int, ...], stream: int = 0) -> Array:
    """Standard normal float32 noise of decision ``index``: a pure function of its arguments.

    ``stream``: number of the input among those that take noise.
    """
    bits = np.random.Philox(key=seed, counter=[0, 0, stream, index])
    return np.random.Generator(bits).standard_normal(shape, dtype=np.float32)


#: Keeps what was drawn ahead of its decision, for the sessions of a process.
drawn = lru_cache(maxsize=64)(noise_for)


class NoiseInputs:
    """All inputs of a contract that take noise, :data:`NOISE` first."""

    def __init__(self, contract: Contract) -> None:
        further = (spec for spec in contract.inputs if spec.name.startswith(f"{NOISE}."))
        self._specs = (contract.input(NOISE), *further)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each, in order."""
        return {spec.name: spec.shape for spec in self._specs}

    def drawn(self, seed: int, index: int) -> Mapping[str, Array]:
        """The noise of a decision by input; once drawn it is kept for a while."""
        return {
            spec.name: drawn(seed, index, spec.shape, stream)
            for stream, spec in enumerate(self._specs)
        }

    def values(
        self, noise: Noise | None, seed: int, index: int
    ) -> Iterator[tuple[InputSpec, Array]]:
        """Every input and its value, checked; what ``noise`` does not have is drawn.

        InputError on an unknown name or a wrong array, and behind the last decision that a session
        may make.
        """
        if index + 1 not in COUNTS:
            raise InputError(
                f"decision {index}",
                expected=f"at most {COUNTS[-1]} decisions of a session",
                got="one more",
                remedy="create another session",
            )
        if noise is None:
            given: Mapping[str, Array] = {}
        else:
            given = noise if isinstance(noise, Mapping) else {NOISE: noise}
        names = [spec.name for spec in self._specs]
        if unknown := set(given) - set(names):
            raise InputError("noise", expected=f"arrays of {names}", got=sorted(unknown, key=str))
        if len(given) < len(names):
            given = {**self.drawn(seed, index), **given}
        checked = [(spec, checked_value(spec, given[spec.name])) for spec in self._specs]
        return iter(checked)


def by_transform(
    contract: Contract, names: Iterable[str]
) -> tuple[dict[str, InputSpec], dict[str, list[str]]]:
    """Inputs that are written and no more, and the names of staged ones by their transform."""
    swapped: dict[str, InputSpec] = {}
    staged: dict[str, list[str]] = {}
    for name in names:
        spec = contract.input(name)
        if spec.update is Update.STAGED:
            staged.setdefault(str(spec.transform), []).append(name)
        else:
            swapped[name] = spec
    return swapped, staged


def checked_values(
    contract: Contract,
    values: Mapping[str, Array],
    known: Mapping[str, Array],
    shape: ShapeKey | None = None,
) -> dict[str, Array]:
    """Values of inputs as :func:`checked_value` wants them, whole numbers within the bounds of
    ``shape``; those that are ``known`` were right.
    """
    checked = {}
    for name, value in values.items():
        spec = contract.input(name)
        if value is not known.get(name):
            value = checked_value(spec, value)
            check_bounds(spec, value, contract.bound(shape, spec.buffer))
        checked[name] = value
    return checked


def check_bounds(spec: InputSpec, value: Array, allowed: range | None) -> None:
    """InputError on a number that is not ``allowed``: stages take it for a count or a place."""
    if allowed is None:
        return
    for each in (int(value.min()), int(value.max())):
        if each not in allowed:
            raise InputError(
                f"input {spec.name!r}", expected=f"{allowed[0]}..{allowed[-1]}", got=each
            )


def checked_value(spec: InputSpec, value: Array) -> Array:
    """``value`` as an array; InputError on a wrong shape or dtype, or a value not finite."""
    value = as_array(f"input {spec.name!r}", value)
    expected = NUMPY_DTYPES[spec.dtype]
    fits = value.shape == spec.shape or (
        spec.shorter and value.ndim == 1 and 0 < value.size <= spec.shape[0]
    )
    if not fits or value.dtype != expected:
        most = "at most " if spec.shorter else ""
        raise InputError(
            f"input {spec.name!r}",
            expected=f"{most}{list(spec.shape)} {expected}",
            got=f"{list(value.shape)} {value.dtype}",
        )
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"input {spec.name!r}", expected="finite values", got="NaN or infinity")
    return value
