"""From a robot's observation to its actions, against the official code's own processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation

from . import case as parity
from .folders import write_lerobot, write_openpi
from .test_checkpoints import options
from .test_decisions import golden


def robot_actions(chosen: LoadOptions, *, small: bool) -> np.ndarray[Any, Any]:
    state, _ = parity.statistics_inputs()
    session = load(chosen)
    try:
        session.set_prompt(parity.PIPELINE_PROMPT)
        seen = Observation(parity.pipeline_images(small), state[0])
        return session.decide(seen, noise=parity.noise(parity.PIPELINE)).actions
    finally:
        session.engine.close()


def relative_to_range(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Largest difference in units of a joint's trained range, over the joints that move."""
    known = parity.statistics("action")
    span = np.array(known["q99"]) - np.array(known["q01"])
    moving = span > 1e-3
    return float((np.abs(found - expected)[:, moving] / span[moving]).max())


@pytest.mark.parametrize("kind", ["plain", "relative"])
def test_the_whole_way_equals_lerobot(tmp_path: Path, kind: str) -> None:
    """PI05Policy with its own pre- and postprocessor, from float images to robot units."""
    folder = write_lerobot(tmp_path / "lerobot", relative=kind == "relative")
    found = robot_actions(options(folder, prompt_buckets=(200,)), small=True)
    assert relative_to_range(found, golden("lerobot")[f"pipeline.{kind}"]) < 5e-6


@pytest.mark.parametrize("kind", ["plain", "relative", "resized", "state_not_read"])
def test_the_whole_way_equals_openpi(tmp_path: Path, kind: str) -> None:
    """openpi's transforms around its network, from uint8 images to robot units."""
    folder = write_openpi(tmp_path / "openpi")
    extra = dict(parity.SIZES)
    if kind == "state_not_read":
        extra["state_in_prompt"] = False
    mask = tuple("gripper" not in name for name in parity.ACTION_NAMES)
    chosen = options(
        folder,
        prompt_buckets=(200,),
        numerics="openpi,rope_frequencies=exact",  # their network was built with float32
        extra=extra,
        delta_actions=mask if kind == "relative" else None,
    )
    found = robot_actions(chosen, small=kind != "resized")
    assert relative_to_range(found, golden("openpi")[f"pipeline.{kind}"]) < 5e-6


def test_a_resized_image_is_lerobots_to_the_grey_level(tmp_path: Path) -> None:
    """LeRobot keeps fractions of a grey level, the image window does not (docs/numerics.md)."""
    folder = write_lerobot(tmp_path / "lerobot")
    expected = golden("lerobot")["pipeline.resized"]
    found = robot_actions(options(folder, prompt_buckets=(200,)), small=False)
    assert relative_to_range(found, expected) < 2e-3
    other = options(folder, prompt_buckets=(200,), numerics="lerobot,image_resize=pillow")
    assert relative_to_range(robot_actions(other, small=False), expected) > 1e-2
