"""Statistics of a robot: without them, or with numbers that no data has, nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flashrt_core.cli.main import app, run
from flashrt_core.errors import InputError, OptionError, WeightsError
from flashrt_core.load import configuration, load, processor_of
from flashrt_core.policies.groot_n17.lerobot import _ranges

from .folders import MODALITY, ROBOT, STATISTICS, Folder, observation, options


def test_statistics_without_the_robot_are_refused(official: Folder, tmp_path: Path) -> None:
    folder = official()
    foreign = tmp_path / "norm_stats.json"
    foreign.write_text(json.dumps({"norm_stats": {"actions": {"q01": [0.0], "q99": [1.0]}}}))
    with pytest.raises(OptionError) as raised:
        configuration(options(folder, norm_stats=foreign))
    assert str(raised.value) == (
        f"option 'norm_stats', '{foreign}': expected those of a robot that the checkpoint knows, "
        "one of ['single_arm'], got no statistics for single_arm, but ['norm_stats']; give the "
        "statistics.json that its training wrote, or leave it out for the checkpoint's own"
    )
    (folder / "statistics.json").write_text(json.dumps({"other_arm": STATISTICS}))
    with pytest.raises(WeightsError, match=r"no statistics for single_arm, but \['other_arm'\]; "):
        configuration(options(folder))


def test_the_robot_in_use_must_have_statistics(official: Folder) -> None:
    folder = official(
        processor={"modality_configs": {ROBOT: MODALITY, "other_arm": MODALITY}},
        embodiment_id={"other_arm": 3},
    )
    with pytest.raises(
        OptionError, match=r"got 3 \(other_arm\), with no statistics for other_arm;"
    ):
        load(options(folder, extra={"embodiment": 3}))
    arm = {**MODALITY, "video": {"modality_keys": ["a", "b", "c"], "delta_indices": [0]}}
    folder = official(
        processor={"modality_configs": {ROBOT: MODALITY, "other_arm": arm}},
        embodiment_id={"other_arm": 3},
        statistics={"other_arm": STATISTICS},
    )
    given = {"state_dim": 3, "action_dim": 3, "extra": {"embodiment": 3}}
    with pytest.raises(
        OptionError, match="view_0, view_1, view_2, as the .* trained with: a, b, c"
    ):
        processor_of(options(folder, **given))
    views = ("view_0", "view_1", "view_2")
    assert processor_of(options(folder, views=views, **given)).state_dim == 3
    with pytest.raises(OptionError, match="'state_dim': expected 3, as .* trained, got 2"):
        processor_of(options(folder, views=views, **{**given, "state_dim": 2}))
    (folder / "embodiment_id.json").unlink()
    with pytest.raises(
        WeightsError, match=r"expected embodiment_id.json, .*got no such file; copy"
    ):
        configuration(options(folder))


def test_a_data_sets_range_that_ends_below_its_beginning() -> None:
    stats = {"action.min": np.array([2.0, 0.0]), "action.max": np.array([1.0, 1e38])}
    with pytest.raises(WeightsError, match=r"action.max\[1\]: expected a finite number below 1e"):
        _ranges(stats, "action", True, None, Path("unpack"))
    stats["action.max"][1] = 5.0
    with pytest.raises(WeightsError, match=r"action.max\[0\]: expected .* not below 2, .*min"):
        _ranges(stats, "action", True, None, Path("unpack"))


def test_a_state_that_float32_does_not_hold(official: Folder) -> None:
    processor = processor_of(options(official()))
    with pytest.raises(
        InputError, match=r"state\[1\]: expected a number below 1e\+30, got -1e\+300"
    ):
        processor.encode(observation(state=(0.5, -1e300, 1.0)), "pick it up")


def test_made_up_pictures_are_squares_where_the_folder_needs_them(
    official: Folder, tmp_path: Path
) -> None:
    plan = ["groot_n17", "--checkpoint", str(official()), "--preset", "tiny", "--threads", "1"]
    few = ["--steps", "1", "--prompt-buckets", "64"]
    assert run(lambda: app(["qualify", *plan, *few, "--decisions", "1"])) == 0
    scales = ["--made-up", "1", "--output", str(tmp_path / "scales.json")]
    assert run(lambda: app(["calibrate", *plan, *few, *scales])) == 0
