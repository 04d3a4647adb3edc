"""The shapes that are measured, and how times are summed up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import OptionError
from ..load import LoadOptions, configuration, plans_of
from ..policies.base import Policy
from ..policies.measures import Shapes

_CASE = re.compile("x".join(["0*([1-9][0-9]{0,8})"] * 3), re.ASCII | re.IGNORECASE)
_VIEWS = 2  # of a preset's own case: as many as a plan has where nothing is said


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
        return cls(views, tokens, horizon)


def parse_cases(text: str, steps: int = 10) -> tuple[Case, ...]:
    """Cases separated by commas, each once; none of an empty text. OptionError otherwise."""
    if not text.strip():
        return ()
    cases = (replace(Case.parse(part.strip()), steps=steps) for part in text.split(","))
    return tuple(dict.fromkeys(cases))


def steps_of(plan: LoadOptions) -> int:
    """Steps of a plan: what was asked for, the checkpoint's, or the preset's."""
    _, config = configuration(plans_of(plan)[0])
    return int(config.steps)


def default_cases(plan: LoadOptions, named: Shapes) -> tuple[Case, ...]:
    """What is measured of a plan when no case is asked for.

    Args:
        plan: with the steps of all cases.
        named: those that the policy names for its real sizes; other presets have their own.
    """
    _, config = configuration(plans_of(plan)[0])
    if plan.preset != "base":
        named = ((_VIEWS, config.prompt_buckets[0], config.horizon),)
    return tuple(
        Case(views, tokens, horizon or config.horizon, config.steps)
        for views, tokens, horizon in named
    )


def check_views(cases: Sequence[Case], policy: Policy) -> None:
    """OptionError on a case with more views than the policy knows."""
    for case in cases:
        if case.views > len(policy.slots):
            raise OptionError("case", expected=f"at most {len(policy.slots)} views", got=str(case))


def percentiles(times: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """p50, p95 and p99."""
    values = np.percentile(np.asarray(times, dtype=np.float64), (50, 95, 99))
    return {
        name: round(float(value), 4)
        for name, value in zip(("p50", "p95", "p99"), values, strict=True)
    }
