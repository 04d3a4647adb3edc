"""Tiers of precision on the same starts: how often each does the task, and how far its actions are
from those of the baseline on the same observations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from .pilot import Pilot
from .rollout import REPLAN_ROWS, Outcome, Seen, run_episode
from .statistics import Mean, Paired, Rate, bootstrapped, compare, wilson
from .task import EVALUATION_SEED, Task


@dataclass(frozen=True)
class Starts:
    """Which episodes are run, and how.

    Attributes:
        episodes, first_seed: seeds ``first_seed`` to ``first_seed + episodes - 1``.
        replan_rows: rows that are executed of each chunk.
        error_episodes: first episodes whose decisions every tier makes again for its error.
    """

    episodes: int = 50
    first_seed: int = EVALUATION_SEED
    replan_rows: int = REPLAN_ROWS
    error_episodes: int = 20

    @property
    def seeds(self) -> range:
        """Of all episodes."""
        return range(self.first_seed, self.first_seed + self.episodes)


@dataclass(frozen=True)
class JointError:
    """How far a tier's actions are from the baseline's, robot units, over rows and decisions."""

    name: str
    rms: float
    mean: float
    largest: float


@dataclass(frozen=True)
class Tier:
    """What one way to decide made of the starts.

    Attributes:
        name, fingerprint: of the pilot.
        success: rate and interval.
        mean_score, mean_decide_ms: over episodes.
        outcomes: of every start, in the order of seeds.
        by_instruction: instruction -> successes and starts.
        paired, score: against the baseline, success and difference of the score; None for the
            baseline itself.
        joints: error against the baseline; empty for itself.
        compared: decisions that error is over.
    """

    name: str
    fingerprint: str
    success: Rate
    mean_score: float
    mean_decide_ms: float
    outcomes: tuple[Outcome, ...]
    by_instruction: dict[str, tuple[int, int]]
    paired: Paired | None = None
    score: Mean | None = None
    joints: tuple[JointError, ...] = ()
    compared: int = 0


def run_tier(
    pilot: Pilot,
    task: Task,
    starts: Starts,
    *,
    seen: list[Seen] | None = None,
    told: Callable[[Outcome], None] = lambda _: None,
    into: list[Outcome] | None = None,
) -> tuple[Outcome, ...]:
    """Run every start once.

    Args:
        pilot: decides; the noise of a decision depends on start and index alone.
        task, starts: what is run.
        seen: takes the decisions of the first ``starts.error_episodes``.
        told: called after each episode.
        into: takes the outcomes as they come, for who is interrupted.
    """
    found = [] if into is None else into
    for number, seed in enumerate(starts.seeds):
        keep = number < starts.error_episodes
        episode = task.start(seed)
        try:
            pilot.begin(episode.instruction)
            found.append(
                run_episode(
                    pilot,
                    task,
                    episode,
                    seed,
                    replan_rows=starts.replan_rows,
                    told=seen.append if keep and seen is not None else _forget,
                )
            )
        finally:
            episode.close()
        told(found[-1])
    return tuple(found)


def _forget(_: Seen) -> None:
    """Nobody wants to know of a decision."""


def summarise(
    name: str,
    fingerprint: str,
    outcomes: Sequence[Outcome],
    baseline: Sequence[Outcome] | None = None,
    joints: Sequence[JointError] = (),
    compared: int = 0,
) -> Tier:
    """The tier of outcomes, beside a baseline's on the same starts."""
    by: dict[str, tuple[int, int]] = {}
    for one in outcomes:
        successes, count = by.get(one.instruction, (0, 0))
        by[one.instruction] = (successes + one.success, count + 1)
    won = [one.success for one in outcomes]
    return Tier(
        name=name,
        fingerprint=fingerprint,
        success=wilson(sum(won), len(won)),
        mean_score=_mean([one.score for one in outcomes]),
        mean_decide_ms=_mean([one.decide_ms for one in outcomes]),
        outcomes=tuple(outcomes),
        by_instruction=dict(sorted(by.items())),
        paired=None if baseline is None else compare([one.success for one in baseline], won),
        score=None
        if baseline is None
        else bootstrapped([b.score - a.score for a, b in zip(baseline, outcomes, strict=True)]),
        joints=tuple(joints),
        compared=compared,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def joint_errors(
    pilot: Pilot, names: Sequence[str], seen: Sequence[Seen]
) -> tuple[JointError, ...]:
    """Decide again on what the baseline saw, with its noise, and compare each joint.

    Raises:
        InputError: there is nothing to decide on.
    """
    if not seen:
        raise InputError("observations of the baseline", expected="at least one", got="none")
    differences = []
    for each in seen:
        if each.previous is None:
            pilot.begin(each.instruction)
        for images in each.pictures:
            pilot.look(images)
        # What was executed is the baseline's chunk: errors do not add up over an episode.
        found = pilot.decide(each.observation, each.noise, each.previous)
        differences.append(np.abs(found.astype(np.float64) - each.actions))
    error = np.concatenate(differences)
    return tuple(
        JointError(
            name,
            rms=float(np.sqrt(np.mean(error[:, column] ** 2))),
            mean=float(error[:, column].mean()),
            largest=float(error[:, column].max()),
        )
        for column, name in enumerate(names)
    )
