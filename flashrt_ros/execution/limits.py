"""Limits on what leaves the node, joint by joint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Limited:
    """A command within the limits.

    Attributes:
        values: [action_dim] float64.
        beyond_range, beyond_step: [action_dim] bool, where a limit was violated.
    """

    values: np.ndarray
    beyond_range: np.ndarray
    beyond_step: np.ndarray

    @property
    def violated(self) -> bool:
        """Whether any limit was."""
        return bool(self.beyond_range.any() or self.beyond_step.any())


class Limits:
    """Range of each action, and the most that it may change in one control period.

    Args:
        action_dim: number of actions.
        lower, upper: smallest and largest value of each; empty: none.
        max_step: largest change of each in a control period; empty: none.
    """

    def __init__(
        self,
        action_dim: int,
        lower: Sequence[float] = (),
        upper: Sequence[float] = (),
        max_step: Sequence[float] = (),
    ) -> None:
        self._lower = np.array(lower or [-np.inf] * action_dim)
        self._upper = np.array(upper or [np.inf] * action_dim)
        self._step = np.array(max_step or [np.inf] * action_dim)

    def apply(
        self, wanted: np.ndarray, reference: np.ndarray | None, periods: float = 1.0
    ) -> Limited:
        """``wanted`` within the limits.

        First into the range, then no further from the reference than the step allows: a reference
        outside the range is left step by step.

        Args:
            wanted: [action_dim] float64, finite.
            reference: [action_dim] float64, what was commanded before; NaN or None: unknown, and
                any step is allowed.
            periods: control periods between the two.
        """
        inside = np.clip(wanted, self._lower, self._upper)
        beyond_range = inside != wanted
        if reference is None:
            return Limited(inside, beyond_range, np.zeros(len(inside), bool))
        known = np.where(np.isnan(reference), inside, reference)
        most = self._step * periods
        # A step of just the limit, rounded, is none too large.
        beyond_step = np.abs(inside - known) > most * (1.0 + 1e-9)
        values = inside.copy()
        stride = np.sign(inside - known)[beyond_step] * most[beyond_step]
        values[beyond_step] = known[beyond_step] + stride
        return Limited(values, beyond_range, beyond_step)
