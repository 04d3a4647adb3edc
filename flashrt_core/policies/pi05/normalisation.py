"""Robot units to the network's range and back, with the statistics that ship with a checkpoint.

Source: openpi, quantile normalisation (1e-6 under the fraction, no clipping) and the layout of its
``norm_stats.json``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import OptionError

_EPS = 1e-6
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Quantiles:
    """1 % and 99 % quantiles of each dimension; they map to -1 and 1. float64, [dims] each."""

    q01: Array
    q99: Array

    def normalise(self, values: Array) -> Array:
        """Robot units [..., dims] -> float64, about [-1, 1]; not clipped."""
        return (values - self.q01) / (self.q99 - self.q01 + _EPS) * 2.0 - 1.0

    def restore(self, values: Array) -> Array:
        """The inverse, float64."""
        return (values + 1.0) / 2.0 * (self.q99 - self.q01 + _EPS) + self.q01


def read_norm_stats(path: Path, part: str, dims: int) -> Quantiles:
    """Quantiles of the first ``dims`` dimensions of ``part``.

    Args:
        path: an openpi ``norm_stats.json``.
        part: "state" or "actions".
        dims: dimensions that the robot has.

    Raises:
        OptionError: the file is missing, is not of that layout, or knows fewer dimensions.
    """
    where = f"norm_stats {str(path)!r}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(where, expected="a readable file", got=error.strerror) from error
    except ValueError as error:  # malformed JSON or text
        raise OptionError(where, expected="JSON", got=str(error)) from error
    found = {}
    for name in ("q01", "q99"):
        try:
            values = np.asarray(content["norm_stats"][part][name], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(
                where, expected=f"a list of numbers at norm_stats.{part}.{name}", got=repr(error)
            ) from error
        if values.ndim != 1 or values.size < dims or not np.isfinite(values[:dims]).all():
            raise OptionError(
                f"{where}, {part}.{name}",
                expected=f"at least {dims} finite numbers, one a dimension of the robot",
                got=list(values.shape) if values.ndim != 1 or values.size < dims else "NaN or inf",
            )
        found[name] = values[:dims]
    return Quantiles(found["q01"], found["q99"])
