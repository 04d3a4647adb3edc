"""The policy that ships with the task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tabletop
from tabletop.robot import JOINTS, PIXELS, VIEWS
from tabletop.training_log import FIGURE, NAME

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation

FOLDER = Path(tabletop.__file__).parent / "policy"
REST = np.array([0.0, 0.5, 0.2, -0.7, 0.0, 0.0, 0.0], np.float32)


def test_it_decides_from_where_the_arm_is() -> None:
    options = LoadOptions(checkpoint=FOLDER, preset="small", threads=1, prompt="push the red block")
    session = load(options)
    try:
        grey = {view: np.full((PIXELS, PIXELS, 3), 190, np.uint8) for view in VIEWS}
        decision = session.decide(Observation(grey, REST))
    finally:
        session.engine.close()
    assert decision.actions.shape == (10, len(JOINTS))
    # On any picture the first target is near where the arm is, and the chunk is a slow way.
    assert np.abs(decision.actions[0] - REST).max() < 0.1
    assert np.abs(np.diff(decision.actions, axis=0)).max() < 0.1


def test_it_says_how_it_was_made() -> None:
    log = json.loads((FOLDER / NAME).read_text())
    assert [run["seed"] for run in log["runs"]] == [0] * len(log["runs"])
    assert all(run["command"].startswith("python -m tabletop.train ") for run in log["runs"])
    assert log["held_out"][-1]["loss"] < 0.05
    assert (FOLDER / FIGURE).exists()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10e6
