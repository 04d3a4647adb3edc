"""Episodes in step mode: what is executed when, pairs, branches, and states taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from flashrt_core.errors import FlashRTError, OptionError
from flashrt_core.evaluation.branches import fork_rollouts, resume_episode
from flashrt_core.evaluation.pilot import EnginePilot, ReferencePilot, paired_noise
from flashrt_core.evaluation.rollout import Seen, run_episode, targets
from flashrt_core.evaluation.task import Episode, Task, TaskError, find_task
from flashrt_core.evaluation.tiers import Starts, joint_errors, run_tier, summarise
from flashrt_core.session import NOISE, noise_for

from .tasks import FOLDER, Draughtsman, plan, point_arm

STARTS = Starts(episodes=4, error_episodes=2)


@pytest.fixture(scope="module")
def pilot() -> Iterator[EnginePilot]:
    engine = EnginePilot(plan(), sessions=2)
    yield engine
    engine.close()


def test_rows_are_executed_on_straight_lines_from_row_zero_on() -> None:
    rows = np.array([[0.0, 4.0], [1.0, 2.0], [3.0, 2.0]], np.float32)
    found, seconds = targets(rows, 0.1, 2)
    assert seconds == pytest.approx(0.02)
    expected = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.4, 1.8, 2.2, 2.6]
    assert found.dtype == np.float64 and found[:, 0].tolist() == pytest.approx(expected)
    assert found[5, 1] == 2.0
    held, _ = targets(rows, 0.1, 3)  # behind the last row there is nothing to go to
    assert held[10:, 0].tolist() == [3.0] * 5
    short, seconds = targets(rows, 0.05, 1)
    assert len(short) == 3 and seconds == pytest.approx(0.05 / 3)


def test_an_episode_is_decided_again_every_few_rows() -> None:
    task = point_arm().task
    for rows, seconds in ((5, 0.5), (2, 0.2)):
        pilot, episode = Draughtsman(), task.start(5)
        pilot.begin(episode.instruction)
        found = run_episode(pilot, task, episode, 5, replan_rows=rows)
        stamps = [observation.stamp_ns * 1e-9 for observation, _ in pilot.seen]
        assert stamps == pytest.approx([seconds * i for i in range(len(stamps))])
        assert found.decisions == len(stamps) and found.instruction == episode.instruction
    assert isinstance(episode, Episode) and isinstance(task, Task)
    with pytest.raises(OptionError, match="replan-rows.*at most 10, .*got 11"):
        pilot.seen.clear()
        run_episode(pilot, task, task.start(5), 5, replan_rows=11)


def test_noise_depends_on_start_index_and_branch_alone() -> None:
    draws = {
        paired_noise(seed, index, (2, 2), branch).tobytes()
        for seed in (0, 1)
        for index in (0, 1)
        for branch in (0, 1)
    }
    assert len(draws) == 8
    task, found = point_arm().task, []
    for _ in range(2):
        pilot = Draughtsman()
        run_tier(pilot, task, STARTS)
        found.append([noise.tobytes() for _, noise in pilot.seen])
    assert found[0] == found[1]
    assert found[0][0] == noise_for(STARTS.first_seed, 0, (10, 2)).tobytes()


def test_an_episode_without_end_is_refused() -> None:
    task = point_arm().task
    episode = task.start(0)
    episode.restore(np.array([0.0, 0.0, -(1 << 40), 0.0]))
    with pytest.raises(TaskError, match="an end within"):
        run_episode(Draughtsman(), task, episode, 0, replan_rows=1, first=10_001)


def test_who_can_do_it_does_it_and_who_shakes_does_not() -> None:
    task = point_arm().task
    steady, shaky = (run_tier(Draughtsman(by), task, STARTS) for by in (0.0, 2.0))
    good = summarise("steady", "", steady)
    assert good.success.rate == 1.0 and good.paired is None
    assert sum(total for _, total in good.by_instruction.values()) == STARTS.episodes
    bad = summarise("shaky", "", shaky, steady)
    assert bad.paired is not None and bad.score is not None
    assert bad.score.mean == pytest.approx(bad.mean_score - good.mean_score)
    assert bad.score.low <= bad.score.mean <= bad.score.high < 0.0
    assert bad.paired.only_first == STARTS.episodes - bad.success.successes > 0
    assert bad.paired.only_second == 0


def test_the_engine_decides_as_the_reference_does(pilot: EnginePilot) -> None:
    found, seen = point_arm(), list[Seen]()
    reference = ReferencePilot(plan())
    assert reference.noise_shape == pilot.noise_shape == pilot.session.contract.input(NOISE).shape
    outcomes = run_tier(reference, found.task, STARTS, seen=seen)
    assert len(seen) == sum(one.decisions for one in outcomes[: STARTS.error_episodes])
    errors = joint_errors(pilot, found.task.joint_names, seen)
    assert [one.name for one in errors] == list(found.task.joint_names)
    for one in errors:
        assert 0.0 < one.mean <= one.rms <= one.largest < 2e-5
    bf16 = EnginePilot(replace(plan(), precision="bf16"))
    try:
        rough = joint_errors(bf16, found.task.joint_names, seen)
    finally:
        bf16.close()
    assert all(1e-4 < one.rms < 0.1 for one in rough)
    again = run_tier(pilot, found.task, STARTS)
    assert [(one.success, one.decisions) for one in again] == [
        (one.success, one.decisions) for one in outcomes
    ]
    with pytest.raises(OptionError, match="noise of the reference"):
        reference.decide(seen[0].observation, None)


def test_branches_share_their_past_and_differ_by_noise(pilot: EnginePilot) -> None:
    task, seeds = point_arm().task, range(30, 34)
    forks = fork_rollouts(pilot, task, seeds, forks=3, fork_at=2)
    plain = run_tier(pilot, task, replace(STARTS, first_seed=30))
    # The first branch is the rollout that nothing interrupted, though it acted on a capsule.
    first = [replace(branches[0], decide_ms=0.0) for branches in forks.branches]
    assert first == [replace(one, decide_ms=0.0) for one in plain]
    assert forks.single == summarise("", "", plain).success
    for branches, single in zip(forks.branches, plain, strict=True):
        assert len(branches) == 3
        if single.decisions > 2:
            assert len({branch.score for branch in branches}) > 1
    best = [max(branch.score for branch in branches) for branches in forks.branches]
    assert forks.best_score == pytest.approx(np.mean(best)) and forks.best_score > np.mean(
        [one.score for one in plain]
    )
    assert (
        forks.improved
        == sum(max(one.score for one in each[1:]) > each[0].score for each in forks.branches)
        > 0
    )
    assert pilot.session.engine.sessions.keys() == {"main"}
    with pytest.raises(OptionError, match="--forks.*at least 2"):
        fork_rollouts(pilot, task, seeds, forks=1)


def test_an_interrupted_episode_goes_on_to_the_bit(
    pilot: EnginePilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = point_arm().task
    found = resume_episode(pilot, task, 50, 51)
    assert found.bit_identical and found.compared > 1 and found.saved_at > 0
    # A restore that brings back less is found out.
    monkeypatch.setattr(type(pilot.session), "restore", lambda *_: None)
    spoilt = resume_episode(pilot, task, 50, 51)
    assert not spoilt.bit_identical and spoilt.equal_actions == 0


def test_a_task_is_found_by_path_and_refused_in_one_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = find_task(f"{FOLDER}/")
    assert found.folder == FOLDER and found.task.name == "point_arm"
    for place, expected in (
        ("no_such_task", "shipped one"),
        (str(tmp_path), "package folder"),
        ("", "expected a path"),
    ):
        with pytest.raises(OptionError, match=expected) as error:
            find_task(place)
        assert "\n" not in str(error.value)
    for name, text, expected in (
        ("lacks_task", "", "no TASK"),
        ("lacks_import", "import surely_not_installed", "ModuleNotFoundError.*surely_not"),
        ("half_task", "class T: name = 'x'\nTASK = T()", "no dt_s"),
        ("json", "", "a folder name that no other package has"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        with pytest.raises(FlashRTError, match=expected):
            find_task(str(tmp_path / name))
