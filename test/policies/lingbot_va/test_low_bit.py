"""Plans with 4-bit action steps: what is kept in which format, and what it costs in fidelity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashrt_core.errors import OptionError
from flashrt_core.policies.lingbot_va import POLICY
from flashrt_core.precision import Format
from test.parity import lingbot as parity

from .harness import Pipeline
from .test_reference import frames, noise

CASE = parity.CASES[0]


def episode(precision: str, chunks: int = 4) -> list[torch.Tensor]:
    """Actions of the steps' own columns, and the video behind them, on the same inputs."""
    pipeline = Pipeline(CASE.config, CASE.views, precision, parity.source(CASE))
    pipeline.set_prompt(*parity.prompts(CASE))
    executed, found = None, []
    for chunk in range(chunks):
        made = pipeline.decide(frames(CASE, chunk), noise(CASE, chunk), executed)
        found += [made[:, list(CASE.config.channels)], pipeline.buffers["net_video"].clone()]
        executed = np.zeros_like(made.numpy())  # the same for every plan
    return found


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


@pytest.fixture(scope="module")
def exact() -> list[torch.Tensor]:
    return episode("fp32")


def test_bf16_is_near(exact: list[torch.Tensor]) -> None:
    assert min(map(cosine, episode("bf16"), exact)) > 0.999


def test_four_bits_touch_the_actions_alone(exact: list[torch.Tensor]) -> None:
    wide, narrow = episode("bf16"), episode("int4")
    actions = [cosine(a, b) for a, b in zip(narrow[0::2], exact[0::2], strict=True)]
    # Rows of 64 random weights: trained ones of 3072 lose far less.
    assert 0.9 < min(actions) < 0.9999, actions
    # The history is written with whole weights, so what is predicted next is what it was.
    for a, b in zip(narrow[1::2], wide[1::2], strict=True):
        assert torch.equal(a, b)


def test_only_steps_have_weights_of_their_own() -> None:
    config = CASE.config
    plain, narrow = (
        {
            spec.name: spec
            for spec in POLICY.contract(
                config, POLICY.shapes(config, 2), POLICY.slots[:2], name
            ).buffers
        }
        for name in ("bf16", "int4")
    )
    own = set(narrow) - set(plain)
    parts = ("qkv", "out", "text_q", "text_out", "fc1", "fc2")
    assert own == {f"step.{part}_weight{end}" for part in parts for end in ("", "_scale")}
    L, rows, columns = plain["net.qkv_weight"].shape
    assert narrow["step.qkv_weight"].shape == (L, rows, columns // 2)
    assert narrow["step.qkv_weight_scale"].shape == (L, rows, columns // 64)
    for part in parts:
        assert 3 * narrow[f"step.{part}_weight"].nbytes < plain[f"net.{part}_weight"].nbytes


def test_what_a_plan_may_give() -> None:
    assert POLICY.precision("int4").tier == "int4"
    assert POLICY.precision("int4").sites["step.fc1"] is Format.W4A16
    with pytest.raises(OptionError, match="one of"):
        POLICY.precision("int2")
