"""States saved and taken up again: the policy's in a capsule, the world's in its simulator.

Both experiments run on the engine in step mode, where equal bits are what is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..drawing import Noise
from ..errors import OptionError
from ..policies.base import Observation
from ..session import Session
from .pilot import EnginePilot
from .rollout import REPLAN_ROWS, Outcome, Seen, run_episode
from .statistics import Mean, Paired, Rate, bootstrapped, compare, wilson
from .task import Task, TaskError

Array = np.ndarray[Any, Any]
_CAPSULE = "evaluation"


class _Branch:
    """A forked session: its first decision acts on the context that it inherited, or, where
    decisions build on each other, on what was seen since the last one.
    """

    def __init__(self, parent: EnginePilot, session: Session) -> None:
        self.name, self.fingerprint = parent.name, parent.fingerprint
        self.noise_shape, self.stride = parent.noise_shape, parent.stride
        self._session = session
        self._inherited = not parent.stride

    def begin(self, instruction: str) -> None:
        """The prompt is inherited, too."""

    def look(self, images: Mapping[str, Any]) -> None:
        """Keep it in the session."""
        self._session.record(images)

    def decide(
        self, observation: Observation, noise: Noise | None, executed: Array | None = None
    ) -> Array:
        """The first time the action stage alone, where there is a context."""
        if self._inherited:
            self._inherited = False
            return self._session.act(noise=noise).actions
        return self._session.decide(observation, noise=noise, executed=executed).actions

    def close(self) -> None:
        """Forget the session."""
        self._session.engine.drop_session(self._session.name)


@dataclass(frozen=True)
class Forks:
    """Several futures of one state, from each start.

    Attributes:
        name: of who decides.
        forks: futures of a state.
        fork_at: index of the decision at which it forks.
        forked: starts that did; at the others the episode was over before.
        branches: outcomes, [start][branch]; branch 0 is the single rollout.
        single, best: success of that, and of the branch with the highest score.
        paired: single against best.
        single_score, best_score: means.
        score: difference of the best branch's to the single rollout's.
        improved: starts at which the best branch scored more than the single rollout.
    """

    name: str
    forks: int
    fork_at: int
    forked: int
    branches: tuple[tuple[Outcome, ...], ...]
    single: Rate
    best: Rate
    paired: Paired
    single_score: float
    best_score: float
    score: Mean
    improved: int


def fork_rollouts(
    pilot: EnginePilot,
    task: Task,
    seeds: Sequence[int],
    *,
    forks: int = 2,
    fork_at: int = 0,
    replan_rows: int = REPLAN_ROWS,
    told: Callable[[], None] = lambda: None,
    into: list[tuple[Outcome, ...]] | None = None,
) -> Forks:
    """Roll out ``forks`` branches of one state at each start, each with noise of its own.

    At decision ``fork_at`` the context is made once; the policy's state is saved in a capsule, of
    which each branch is a fork, and the world's by its simulator. An episode that is over before
    counts as it ended, in every branch.

    Args:
        pilot: the engine, with room for one session more than its main one.
        task, seeds: the starts.
        told: called after each start.
        into: takes the outcomes of each start as they come, for who is interrupted.
    """
    check_forks(forks)
    found = [] if into is None else into
    for seed in seeds:
        found.append(_from_one_start(pilot, task, seed, forks, fork_at, replan_rows))
        told()
    return summarise_forks(pilot.name, found, forks, fork_at)


def check_forks(forks: int) -> None:
    """OptionError where a state would have no second future."""
    if forks < 2:
        raise OptionError("option '--forks'", expected="at least 2", got=forks)


def summarise_forks(
    name: str, found: Sequence[tuple[Outcome, ...]], forks: int, fork_at: int
) -> Forks:
    """What the outcomes of branches, [start][branch], come to."""
    single = [each[0] for each in found]
    best = [max(each, key=lambda branch: branch.score) for each in found]
    return Forks(
        name=name,
        forks=forks,
        fork_at=fork_at,
        # Where nothing forked, one outcome stands for all branches.
        forked=sum(each[1] is not each[0] for each in found),
        branches=tuple(found),
        single=_rate(single),
        best=_rate(best),
        paired=compare([one.success for one in single], [one.success for one in best]),
        single_score=float(np.mean([one.score for one in single])),
        best_score=float(np.mean([one.score for one in best])),
        score=bootstrapped([two.score - one.score for one, two in zip(single, best, strict=True)]),
        improved=sum(two.score > one.score for one, two in zip(single, best, strict=True)),
    )


def _rate(outcomes: Sequence[Outcome]) -> Rate:
    return wilson(sum(one.success for one in outcomes), len(outcomes))


def _from_one_start(
    pilot: EnginePilot, task: Task, seed: int, forks: int, fork_at: int, replan_rows: int
) -> tuple[Outcome, ...]:
    session, episode = pilot.session, task.start(seed)
    try:
        pilot.begin(episode.instruction)
        before = run_episode(pilot, task, episode, seed, replan_rows=replan_rows, until=fork_at)
        if episode.done:
            return (before,) * forks
        capsule = None
        if not pilot.stride:
            session.observe(episode.observation())
            for stage in session.contract.decision_stages[:-1]:
                session.run(stage.name)
            capsule = session.snapshot(_CAPSULE).name
        world = episode.save()
        return tuple(
            _branch(pilot, task, episode, world, capsule, seed, branch, fork_at, replan_rows)
            for branch in range(forks)
        )
    finally:
        episode.close()


def _branch(
    pilot: EnginePilot,
    task: Task,
    episode: Any,
    world: Array,
    capsule: str | None,
    seed: int,
    branch: int,
    first: int,
    replan_rows: int,
) -> Outcome:
    episode.restore(world)
    # Where decisions build on each other, what was seen since the last one is forked, too.
    source = pilot.session.name if capsule is None else None
    session = pilot.session.engine.fork(f"branch {branch}", capsule=capsule, source=source)
    fork = _Branch(pilot, session)
    try:
        return run_episode(
            fork, task, episode, seed, replan_rows=replan_rows, branch=branch, first=first
        )
    finally:
        fork.close()


@dataclass(frozen=True)
class Resumption:
    """The rest of an episode, uninterrupted and after another one was run in between.

    Attributes:
        seed, other: starts of the episode and of the one in between.
        saved_at: index of the decision before which everything was saved.
        compared: decisions after it.
        equal_actions: how many of those have the same bytes.
        equal_world: whether the simulator ended in the same bytes.
        outcome: of the uninterrupted episode.
        name: of who decides.
    """

    seed: int
    other: int
    saved_at: int
    compared: int
    equal_actions: int
    equal_world: bool
    outcome: Outcome
    name: str = ""

    @property
    def bit_identical(self) -> bool:
        """Whether there was a rest, and all of it is the same."""
        return self.equal_world and 0 < self.compared == self.equal_actions


def resume_episode(
    pilot: EnginePilot,
    task: Task,
    seed: int,
    other: int,
    *,
    replan_rows: int = REPLAN_ROWS,
) -> Resumption:
    """Save in mid-episode, run another episode in the same session, restore, and go on.

    The noise is the session's own, by its count of decisions: a restore has to bring that back,
    too. Before it is restored, the world is moved on, so that it has something to bring back.

    Raises:
        TaskError: the episode ends at its first decision.
    """
    session = pilot.session

    def run(start: int, **options: Any) -> tuple[list[bytes], Any, Outcome]:
        episode = task.start(start)
        pilot.begin(episode.instruction)
        return _record(pilot, task, episode, start, replan_rows, **options)

    def restart() -> None:
        session.resume(replace(session.host_state(), decisions=0))

    restart()
    whole, first, result = run(seed)
    expected = first.save()
    first.close()
    save_at = len(whole) // 2
    if not save_at:
        expected = "two decisions or more, to save between them"
        what, remedy = f"episode {seed} of task '{task.name}'", "begin with another --first-seed"
        raise TaskError(what, expected=expected, got=len(whole), remedy=remedy)
    restart()
    _, episode, _ = run(seed, until=save_at)
    try:
        session.snapshot(_CAPSULE, midway=True)
        world, pictures = episode.save(), tuple(pilot.pictures)
        run(other)[1].close()
        episode.advance(np.zeros(len(task.joint_names)), 10 * task.dt_s)
        session.restore(_CAPSULE)
        for images in pictures:
            pilot.look(images)
        episode.restore(world)
        rest, _, _ = _record(pilot, task, episode, seed, replan_rows, first=save_at)
        same = sum(one == two for one, two in zip(whole[save_at:], rest, strict=False))
        return Resumption(
            seed=seed,
            other=other,
            saved_at=save_at,
            compared=max(len(whole) - save_at, len(rest)),
            equal_actions=same,
            equal_world=expected.tobytes() == episode.save().tobytes(),
            outcome=result,
            name=pilot.name,
        )
    finally:
        episode.close()


def _record(
    pilot: EnginePilot, task: Task, episode: Any, seed: int, replan_rows: int, **options: Any
) -> tuple[list[bytes], Any, Outcome]:
    """The actions of each decision as bytes, the episode, and how it ended."""
    actions: list[bytes] = []

    def told(seen: Seen) -> None:
        actions.append(seen.actions.tobytes())

    found = run_episode(
        pilot, task, episode, seed, replan_rows=replan_rows, own_noise=True, told=told, **options
    )
    return actions, episode, found
