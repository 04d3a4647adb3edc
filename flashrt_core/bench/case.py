"""The shapes that are measured, and how times are summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import OptionError

#: Camera slots, in the order in which they are filled.
SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


@dataclass(frozen=True, order=True)
class Case:
    """The shape of a decision."""

    views: int
    prompt_tokens: int
    horizon: int
    steps: int = 10

    def __str__(self) -> str:
        return f"{self.views}x{self.prompt_tokens}x{self.horizon}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """``views x prompt tokens x horizon``, such as ``2x48x10``; OptionError otherwise."""
        parts = text.lower().split("x")
        if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise OptionError("case", expected="views x tokens x horizon, like 2x48x10", got=text)
        views, tokens, horizon = map(int, parts)
        if views > len(SLOTS):
            raise OptionError("case", expected=f"at most {len(SLOTS)} views", got=text)
        return cls(views, tokens, horizon)


CASES = tuple(
    Case(views, tokens, horizon)
    for views in (1, 2, 3)
    for tokens in (48, 200)
    for horizon in (10, 50)
)


def parse_cases(text: str) -> tuple[Case, ...]:
    """Cases separated by commas; OptionError as :meth:`Case.parse`."""
    return tuple(Case.parse(part.strip()) for part in text.split(",") if part.strip())


def percentiles(times: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """p50, p95 and p99."""
    values = np.percentile(np.asarray(times, dtype=np.float64), (50, 95, 99))
    return {
        name: round(float(value), 4)
        for name, value in zip(("p50", "p95", "p99"), values, strict=True)
    }
