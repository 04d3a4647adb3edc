"""One episode in step mode: decide, execute some rows, decide again. Time stands meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from ..drawing import Noise
from ..errors import OptionError
from ..policies.base import Observation
from .pilot import Pilot, paired_noise
from .task import Episode, Task, TaskError

Array = np.ndarray[Any, Any]
#: Targets change at most so often, between the rows on straight lines, seconds.
SUBSTEP_S = 0.02
REPLAN_ROWS = 5
_MOST_DECISIONS = 10_000  # of an episode that never ends


@dataclass(frozen=True)
class Outcome:
    """What became of a start.

    Attributes:
        seed, instruction: the start.
        success, score: see :class:`~flashrt_core.evaluation.task.Episode`.
        time_s: simulated.
        decisions: that were made.
        decide_ms: wall time of one, mean.
    """

    seed: int
    instruction: str
    success: bool
    score: float
    time_s: float
    decisions: int
    decide_ms: float


@dataclass(frozen=True, eq=False)
class Seen:
    """A decision, to be made again by others: what it was made from, and its actions.

    The noise is None where the pilot drew its own. ``pictures`` were seen since the decision before
    it, ``previous`` are the actions of that; None in an episode's first one, and where decisions
    stand alone.
    """

    instruction: str
    observation: Observation
    noise: Noise | None
    actions: Array
    pictures: tuple[Mapping[str, Any], ...] = ()
    previous: Array | None = None


def targets(rows: Array, dt_s: float, count: int) -> tuple[Array, float]:
    """Targets of the sub-steps while the first ``count`` rows are executed, from row 0 on.

    A sub-step holds what is due at its beginning, on the straight line between two rows; behind the
    last row there is nothing to go to, and it is held.

    Args:
        rows: [H, action_dim], row i due at ``i * dt_s``.
        dt_s: seconds between rows.
        count: rows to execute, at most H.

    Returns:
        [n, action_dim] float64, and the seconds of a sub-step: ``SUBSTEP_S``, or the longest
        shorter one that divides ``dt_s``.
    """
    parts = max(1, ceil(dt_s / SUBSTEP_S - 1e-9))
    wide = np.asarray(rows, np.float64)
    after = np.concatenate((wide[1:], wide[-1:]))[:count]
    part = (np.arange(parts) / parts)[None, :, None]
    between = wide[:count, None] + part * (after - wide[:count])[:, None]
    return between.reshape(-1, wide.shape[1]), dt_s / parts


def execute(
    episode: Episode,
    rows: Array,
    dt_s: float,
    count: int,
    look: Callable[[int], None] = lambda _: None,
) -> None:
    """Simulate ``count`` rows of a chunk, or less where the episode ends before.

    ``look`` is called behind each row but the last with how many were executed; not where the
    episode is over.
    """
    between, seconds = targets(rows, dt_s, count)
    parts = len(between) // count
    for index, target in enumerate(between):
        if episode.done:
            return
        episode.advance(target, seconds)
        if (index + 1) % parts == 0 and index + 1 < len(between) and not episode.done:
            look((index + 1) // parts)


def run_episode(
    pilot: Pilot,
    task: Task,
    episode: Episode,
    seed: int,
    *,
    replan_rows: int = REPLAN_ROWS,
    branch: int = 0,
    first: int = 0,
    own_noise: bool = False,
    until: int | None = None,
    told: Callable[[Seen], None] = lambda _: None,
) -> Outcome:
    """Let ``pilot``, which knows the instruction, decide until the episode is over.

    Args:
        pilot: decides.
        task, episode, seed: what runs, and from where.
        replan_rows: rows that are executed of each chunk; a pilot that looks back has all executed.
        branch: whose noise is drawn for this start.
        first: index of the first decision here.
        own_noise: leave the noise to the pilot's own seed; ``told`` then sees none.
        until: index of the decision to stop before; None: the end.
        told: of every decision.

    Raises:
        TaskError: the episode does not end.
        OptionError: a chunk is shorter than ``replan_rows``.
    """
    index, spent = first, 0.0
    pictures: list[Mapping[str, Any]] = []
    previous: Array | None = None

    def look(rows: int) -> None:
        if pilot.stride and rows % pilot.stride == 0:
            pictures.append(episode.observation().images)
            pilot.look(pictures[-1])

    while not episode.done and (until is None or index < until):
        if index > _MOST_DECISIONS:
            raise _no_end(task, episode, seed)
        observation = episode.observation()
        noise = None if own_noise else paired_noise(seed, index, pilot.noise_shape, branch)
        start = perf_counter()
        actions = pilot.decide(observation, noise)
        spent += perf_counter() - start
        rows = len(actions) if pilot.stride else replan_rows
        if len(actions) < rows:
            raise too_many_rows(len(actions), rows)
        past = (tuple(pictures), previous) if pilot.stride else ()
        told(Seen(episode.instruction, observation, noise, actions, *past))
        pictures.clear()
        previous = actions
        execute(episode, actions, task.dt_s, rows, look)
        index += 1
    return outcome(episode, seed, index, spent / max(1, index - first))


def _no_end(task: Task, episode: Episode, seed: int) -> TaskError:
    return TaskError(
        f"episode {seed} of task '{task.name}'",
        expected=f"an end within {_MOST_DECISIONS} decisions",
        got=f"{episode.time_s:g} s of simulated time",
        remedy="let `done` be true when its time is over",
    )


def too_many_rows(horizon: int, replan_rows: int) -> OptionError:
    """The error of chunks that are shorter than what is to be executed of each."""
    default = ", the default" if replan_rows == REPLAN_ROWS else ""
    return OptionError(
        "option '--replan-rows'",
        expected=f"at most {horizon}, as many rows as a chunk has",
        got=f"{replan_rows}{default}",
        remedy=f"give --replan-rows {horizon} or fewer",
    )


def outcome(episode: Episode, seed: int, decisions: int, decide_s: float) -> Outcome:
    """How an episode stands."""
    return Outcome(
        seed=seed,
        instruction=episode.instruction,
        success=bool(episode.success),
        score=float(episode.score),
        time_s=round(float(episode.time_s), 6),
        decisions=decisions,
        decide_ms=round(1e3 * decide_s, 3),
    )
