"""The shapes that are measured, and how times are summed up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import OptionError

#: Camera slots, in the order in which they are filled.
SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
_CASE = re.compile("x".join(["0*([1-9][0-9]{0,8})"] * 3), re.ASCII | re.IGNORECASE)


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
        match = _CASE.fullmatch(text)
        if match is None:
            raise OptionError(
                "case",
                expected="views x tokens x horizon, like 2x48x10, each at least 1",
                got=repr(text),
            )
        views, tokens, horizon = map(int, match.groups())
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
    """Cases separated by commas, each once; none of an empty text. OptionError otherwise."""
    if not text.strip():
        return ()
    return tuple(dict.fromkeys(Case.parse(part.strip()) for part in text.split(",")))


def percentiles(times: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """p50, p95 and p99."""
    values = np.percentile(np.asarray(times, dtype=np.float64), (50, 95, 99))
    return {
        name: round(float(value), 4)
        for name, value in zip(("p50", "p95", "p99"), values, strict=True)
    }
