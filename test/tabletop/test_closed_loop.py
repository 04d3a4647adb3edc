"""The policy that ships does the task that it ships with."""

from __future__ import annotations

from pathlib import Path

import pytest
import tabletop

from flashrt_core.evaluation.command import EvalOptions, plan_for, run_eval
from flashrt_core.evaluation.task import find_task
from flashrt_core.evaluation.tiers import Starts
from flashrt_core.load import LoadOptions

FOLDER = Path(tabletop.__file__).parent
pytestmark = [
    pytest.mark.usefixtures("opengl"),
    pytest.mark.skipif(not (FOLDER / "policy").is_dir(), reason="no policy ships"),
]


def test_it_succeeds_at_unseen_starts_and_goes_on_after_an_interruption() -> None:
    found = find_task(str(FOLDER))
    plan = plan_for(found, LoadOptions())
    assert (plan.preset, plan.checkpoint) == ("small", FOLDER / "policy")
    # Starts of a range that the recorded evaluation does not use.
    starts = Starts(episodes=5, first_seed=250_000, error_episodes=0)
    result = run_eval(EvalOptions(found, plan, starts, reference="", resume=True))
    assert result.tiers[0].success.successes >= 4, result.tiers[0].outcomes
    assert result.resumption is not None and result.resumption.bit_identical
