"""Observations of a recording, as ``flashrt calibrate --bag`` reads them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_core.cli.main import run
from flashrt_core.errors import InputError, OptionError
from flashrt_core.scales import read_calibration
from flashrt_ros.cli import app
from flashrt_ros.replay.observations import bag_observations

pytestmark = pytest.mark.ros


def test_observations_at_the_node_s_rate(recording: Path, parameter_path: Path) -> None:
    found = list(bag_observations(recording, parameter_path))
    assert 8 <= len(found) <= 11  # a second at 10 Hz
    prompts = {prompt for prompt, _ in found}
    assert prompts == {"move the block to the ring"}
    for _, observation in found:
        assert set(observation.images) == {"base_0_rgb", "left_wrist_0_rgb"}
        assert all(
            isinstance(image, np.ndarray) and image.shape == (64, 96, 3) and image.dtype == np.uint8
            for image in observation.images.values()
        )
        assert observation.state is not None and observation.state.shape == (7,)
    for (_, before), (_, after) in pairwise(found):
        assert after.stamp_ns > before.stamp_ns
        assert (after.images["base_0_rgb"] != before.images["base_0_rgb"]).any()


def test_a_limit_is_spread_over_the_recording(recording: Path, parameter_path: Path) -> None:
    found = list(bag_observations(recording, parameter_path, 3))
    assert len(found) == 3
    assert found[-1][1].stamp_ns - found[0][1].stamp_ns > 400_000_000


def test_a_file_without_a_prompt(recording: Path, parameter_path: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text(parameter_path.read_text().replace("prompt: move the block to the ring", ""))
    with pytest.raises(OptionError, match="parameter 'prompt': expected an instruction"):
        next(bag_observations(recording, bare))


def test_nothing_usable(recording: Path, parameter_path: Path, tmp_path: Path) -> None:
    strict = tmp_path / "strict.yaml"
    text = parameter_path.read_text().replace("encoding: rgb8", "encoding: mono8")
    strict.write_text(text)
    with pytest.raises(InputError, match="a moment at which every input is usable, got .*mono8"):
        list(bag_observations(recording, strict))


def test_calibrating_on_a_bag(
    record: Callable[..., Path],
    parameter_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "scales.json"
    arguments = ["calibrate", "pi05", "--bag", str(record(seconds=0.5))]
    arguments += ["--limit", "2", "--steps", "2", "--threads", "1", "--output", str(output)]
    assert run(lambda: app(arguments)) == 2
    assert "option '--params': expected a parameter file" in capsys.readouterr().err
    assert run(lambda: app([*arguments, "--params", str(parameter_path)])) == 0
    found = read_calibration(output)
    assert len(set(found.observations)) == 2
    assert found.recorder["observations"] == "bag: recording"
