"""The reference against LeRobot's network: episodes whose pool runs over, both camera layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.policies.lingbot_va.layout import to_tokens
from flashrt_core.policies.lingbot_va.pictures import resized
from flashrt_core.policies.lingbot_va.reference import Reference
from flashrt_core.policies.lingbot_va.text_encoder import TextEncoder, tensors
from test.parity import lingbot as parity
from test.parity.groot import Formulas

GOLDENS = Path(__file__).resolve().parents[2] / "data" / "lingbot_va_lerobot.npz"
# Of the largest value: two float32 sums of another order, over up to eight chunks that build on
# each other.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def goldens() -> Any:
    with np.load(GOLDENS) as file:
        return dict(file)


def frames(case: parity.Case, chunk: int) -> list[np.ndarray[Any, Any]]:
    """Pictures of a chunk as the encoder takes them."""
    return [
        np.stack([resized(picture, *case.config.picture(view)) for picture in video])
        for view, video in enumerate(parity.frames(case, chunk))
    ]


def noise(case: parity.Case, chunk: int) -> dict[str, np.ndarray[Any, Any]]:
    """Noise windows of a chunk."""
    latents, actions = parity.noise(case, chunk)
    return {
        "noise": np.ascontiguousarray(actions.reshape(len(actions), -1).T),
        "noise.video": to_tokens(torch.from_numpy(latents)).numpy(),
    }


def near(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    worst = np.abs(found - expected).max() / np.abs(expected).max()
    assert worst <= TOLERANCE, worst


@pytest.mark.parametrize("case", parity.CASES, ids=lambda case: case.name)
def test_episodes_are_lerobots(goldens: Any, case: parity.Case) -> None:
    reference = Reference(case.config, parity.source(case), case.views)
    reference.set_prompt(*parity.prompts(case))
    executed, evicted = None, False
    for chunk in range(case.chunks):
        found = reference.decide(frames(case, chunk), noise(case, chunk), executed)
        name = f"{case.name}.{chunk}"
        actions = goldens[f"{name}.actions"]
        near(found.actions.numpy(), actions)
        near(found.latents.numpy(), goldens[f"{name}.latents"])
        pool = reference.state.pool
        ids = [held if valid else -1 for held, valid in zip(pool.ids, pool.valid, strict=True)]
        assert ids == goldens[f"{name}.ids"].tolist()
        predicted = [p and v for p, v in zip(pool.predicted, pool.valid, strict=True)]
        assert predicted == goldens[f"{name}.predicted"].tolist()
        evicted |= 0 not in ids
        executed = parity.executed(case, chunk, actions)
    assert evicted or case.chunks < 7, "the golden episodes must give rows up"


def test_text_rows_are_umt5s(goldens: Any) -> None:
    config = parity.CASES[0].config
    encoder = TextEncoder(config, Formulas(tensors(config)))
    near(encoder.encode(parity.IDS).numpy(), goldens["text.rows"])
