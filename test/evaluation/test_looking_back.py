"""A policy that looks back, in simulation: whole chunks, pictures on the way, and its reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from flashrt_core.evaluation.branches import fork_rollouts, resume_episode
from flashrt_core.evaluation.command import EvalOptions, run_eval
from flashrt_core.evaluation.options import plan_for
from flashrt_core.evaluation.pilot import EnginePilot
from flashrt_core.evaluation.rollout import Seen, run_episode
from flashrt_core.evaluation.task import FoundTask
from flashrt_core.evaluation.tiers import Starts
from flashrt_core.load import LoadOptions
from flashrt_core.policies.base import Observation

from .tasks import point_arm

SEEN = {"base_0_rgb": "view_0"}


class Renamed:
    """The task of these tests with its camera under the policy's name for it."""

    def __init__(self, task: object) -> None:
        self._task = task
        self.views = {"view_0": "front"}

    def __getattr__(self, name: str) -> object:
        return getattr(self._task, name)

    def start(self, seed: int) -> Renamed:
        return Renamed(self._task.start(seed))  # type: ignore[attr-defined]

    def observation(self) -> Observation:
        seen = self._task.observation()  # type: ignore[attr-defined]
        return replace(seen, images={SEEN[name]: image for name, image in seen.images.items()})


def found() -> FoundTask:
    task = point_arm()
    return replace(task, task=Renamed(task.task))


def plan(**changes: object) -> LoadOptions:
    options = LoadOptions(threads=1, steps=1, extra={"action_steps": 1}, precision="fp32")
    made = plan_for(found(), options, "lingbot_va", "random:0", "tiny")
    return replace(made, **changes)


@pytest.fixture(scope="module")
def pilot() -> Iterator[EnginePilot]:
    engine = EnginePilot(plan(), sessions=2)
    yield engine
    engine.close()


def test_every_chunk_is_executed_and_looked_at(pilot: EnginePilot) -> None:
    task, seen = found().task, list[Seen]()
    episode = task.start(3)
    pilot.begin(episode.instruction)
    result = run_episode(pilot, task, episode, 3, replan_rows=5, told=seen.append)
    assert [len(each.actions) for each in seen][:3] == [4, 8, 8]
    assert [len(each.pictures) for each in seen][:3] == [0, 3, 7]
    assert result.decisions == len(seen) == pilot.session.turn
    assert seen[0].previous is None and np.array_equal(seen[1].previous, seen[0].actions)  # type: ignore[arg-type]


def test_tiers_and_the_reference_agree() -> None:
    options = EvalOptions(found(), plan(precision="fp32,bf16"), Starts(2, 3, error_episodes=2))
    result = run_eval(options)
    reference, fp32, bf16 = result.tiers
    assert reference.name == "reference" and len(reference.outcomes) == 2
    assert fp32.compared == sum(one.decisions for one in reference.outcomes) > 4
    assert max(joint.largest for joint in fp32.joints) < 1e-3
    assert 1e-4 < max(joint.rms for joint in bf16.joints) < 0.5


def test_states_are_forked_and_resumed(pilot: EnginePilot) -> None:
    task = found().task
    forks = fork_rollouts(pilot, task, [3], forks=2, fork_at=1)
    assert forks.forked == 1 and forks.branches[0][0] != forks.branches[0][1]
    again = fork_rollouts(pilot, task, [3], forks=2, fork_at=1)
    assert [one.score for one in again.branches[0]] == [one.score for one in forks.branches[0]]
    assert resume_episode(pilot, task, 3, 4).bit_identical
