"""Real-time chunking: a decision that continues the chunk before it.

While a decision is made, the robot goes on with the last chunk. The rows of the new one that will
be past by then are kept as they are, and those behind are guided towards the last chunk, less and
less the later they are. ``exponential`` weights are those of Black, Galliker and Levine 2025,
"Real-Time Execution of Action Chunking Flow Policies"; how they act on the sampler is in
docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import e
from typing import Any, Protocol

import numpy as np

from .contract import Contract
from .errors import InputError
from .whole_numbers import whole_number

Array = np.ndarray[Any, Any]

# Inputs that a plan with real-time chunking has.
PREVIOUS, GUIDANCE = "previous_actions", "guidance"
EXPONENTIAL, LINEAR, ONES, ZEROS = "exponential", "linear", "ones", "zeros"
# How the weight falls behind the kept rows; c is on the straight line from 1 to 0.
_DECAYS: Mapping[str, Callable[[Array], Array]] = {
    EXPONENTIAL: lambda c: c * np.expm1(c) / (e - 1.0),
    LINEAR: lambda c: c,
    ONES: np.ones_like,
    ZEROS: np.zeros_like,
}
DECAYS = tuple(_DECAYS)


@dataclass(frozen=True, eq=False)
class Previous:
    """What a decision continues.

    Attributes:
        rows: [n, action_dim] float, robot units: what the chunk before says at rows 0, 1, ... of
            the new one, as far as it reaches. At most the horizon.
        frozen: the first so many are kept as they are; but for numbers that are no actions of the
            network (beyond 10 in its own units), which it neither keeps nor follows.
        decay: of the weight of the others, a name of DECAYS: ``exponential`` and ``linear`` fall
            from the kept rows to the last; ``ones`` guides all of them fully, ``zeros`` none.
    """

    rows: Array
    frozen: int = 0
    decay: str = EXPONENTIAL


def weights(rows: int, frozen: int, decay: str) -> Array:
    """[rows] float64: 1 for the first ``frozen``, then falling towards 0 behind the last."""
    ahead = (rows - np.arange(frozen, rows)) / (rows - frozen + 1)
    return np.concatenate([np.ones(frozen), _DECAYS[decay](ahead)])


class Encoder(Protocol):
    """What of a policy's processor is needed here."""

    action_dim: int

    def encode_actions(self, actions: Array, state: Array | None) -> Array:
        """[n, action_dim] in robot units -> [n, padded] float32, NaN where there is no number."""


class Guide:
    """Makes the windows that guide a decision.

    Args:
        contract: says whether the plan has them.
        encoder: makes the network's numbers of robot units.
    """

    def __init__(self, contract: Contract, encoder: Encoder) -> None:
        found = [spec.shape for spec in contract.inputs if spec.name == PREVIOUS]
        self._shape = found[0] if found else None
        self._encoder = encoder

    def checked(self, previous: Previous | None) -> Previous | None:
        """``previous`` with rows in float64.

        InputError where the plan cannot continue a chunk, or for rows, a count or a decay that are
        none.
        """
        if previous is None:
            return None
        if not isinstance(previous, Previous):
            raise InputError("previous", expected="a Previous", got=type(previous).__name__)
        if self._shape is None:
            raise InputError(
                "previous",
                expected="none: the plan has no real-time chunking",
                got="rows to continue",
                remedy="load with real_time_chunking=True",
            )
        most, dim = self._shape[0], self._encoder.action_dim
        try:
            rows = np.asarray(previous.rows)
            if rows.dtype.kind not in "fiu":
                raise TypeError(f"{rows.dtype} values")
            rows = rows.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError("previous rows", expected="numbers", got=str(error)) from error
        if rows.ndim != 2 or not 0 < len(rows) <= most or rows.shape[1] != dim:
            raise InputError("previous rows", expected=f"[1..{most}, {dim}]", got=list(rows.shape))
        if not np.isfinite(rows).all():
            raise InputError("previous rows", expected="finite values", got="NaN or infinity")
        frozen = whole_number("previous rows to keep", previous.frozen, InputError)
        if not 0 <= frozen <= len(rows):
            raise InputError("previous rows to keep", expected=f"0..{len(rows)}", got=frozen)
        if previous.decay not in DECAYS:
            raise InputError("decay", expected=f"one of {list(DECAYS)}", got=repr(previous.decay))
        return Previous(rows, frozen, previous.decay)

    def windows(self, previous: Previous | None, state: Array | None) -> dict[str, Array]:
        """The window values of a decision; none where the plan has no such windows.

        Args:
            previous: checked; None: every weight is 0.
            state: of the observation, for actions that are relative to it.
        """
        if self._shape is None:
            return {}
        if previous is None:
            return {PREVIOUS: _zeros(self._shape), GUIDANCE: _zeros(self._shape)}
        rows = self._encoder.encode_actions(previous.rows, state)
        known = np.isfinite(rows)
        weight = weights(len(rows), previous.frozen, previous.decay)
        values, guidance = np.zeros(self._shape, np.float32), np.zeros(self._shape, np.float32)
        values[: len(rows)] = np.where(known, rows, 0.0)
        guidance[: len(rows)] = np.where(known, weight[:, None], 0.0)
        return {PREVIOUS: values, GUIDANCE: guidance}


@lru_cache(maxsize=4)
def _zeros(shape: tuple[int, ...]) -> Array:
    zeros = np.zeros(shape, np.float32)
    zeros.setflags(write=False)
    return zeros
