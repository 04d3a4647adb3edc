"""What the checkpoint folders of the tests say, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_core.load import LoadOptions
from flashrt_core.policies.base import Observation
from flashrt_core.policies.groot_n17 import POLICY

Folder = Callable[..., Path]
TINY = POLICY.config("tiny")
TOKENIZER = Path(__file__).parents[3] / "flashrt_core/policies/groot_n17/tiny_tokenizer.json"
ROBOT = "single_arm"
MODALITY: dict[str, Any] = {
    "state": {"modality_keys": ["arm", "gripper"]},
    "action": {
        "modality_keys": ["gripper", "arm"],
        "delta_indices": [0, 1, 2, 3, 4],
        "action_configs": [
            {"rep": "ABSOLUTE", "type": "NON_EEF"},
            {"rep": "RELATIVE", "type": "NON_EEF", "state_key": "arm"},
        ],
    },
    "video": {"modality_keys": ["front", "wrist"], "delta_indices": [0]},
}


def spans(low: list[Any], high: list[Any]) -> dict[str, list[Any]]:
    return {"min": low, "max": high, "q01": low, "q99": high, "mean": low, "std": high}


STATISTICS: dict[str, Any] = {
    "state": {"arm": spans([-1.0, -2.0], [1.0, 2.0]), "gripper": spans([0.0], [1.0])},
    "action": {"arm": spans([-9.0, -9.0], [9.0, 9.0]), "gripper": spans([0.0], [1.0])},
    "relative_action": {"arm": spans([-0.1, -0.2], [0.1, 0.2])},
}


def arm(low: list[Any], high: list[Any]) -> dict[str, Any]:
    """The statistics with another range of the arm's state."""
    return {**STATISTICS, "state": {**STATISTICS["state"], "arm": spans(low, high)}}


def options(folder: Path, **given: Any) -> LoadOptions:
    return LoadOptions(
        policy="groot_n17", checkpoint=folder, prompt="pick it up", threads=1, **given
    )


def observation(side: int = 80, state: tuple[float, ...] = (0.5, -3.0, 1.0)) -> Observation:
    draw = np.random.default_rng(1)
    images = {
        view: draw.integers(0, 256, (side, side, 3), dtype=np.uint8) for view in POLICY.slots[:2]
    }
    return Observation(images, np.array(state))
