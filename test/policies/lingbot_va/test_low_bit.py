"""Plans with 4-bit action steps: what is kept in which format, and what it costs in fidelity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flashrt_core.calibration.run import calibrate
from flashrt_core.contract import ShapeKey
from flashrt_core.errors import OptionError
from flashrt_core.fidelity.qualification import gates_for, qualify
from flashrt_core.kernels.four_bits import four_bit_values
from flashrt_core.load import LoadOptions, calibration_of, load, precision_of, qualifier
from flashrt_core.observations import made_up_observations
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


OPTIONS = LoadOptions(policy="lingbot_va", steps=2, extra={"action_steps": 2}, threads=1)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8", "fp8_int4"])
def test_plans_against_the_reference(precision: str, tmp_path: Path) -> None:
    """Each plan's first decisions of episodes; scales of fp8 products from other observations."""
    options = replace(OPTIONS, precision=precision)
    if precision.startswith("fp8"):
        scales = tmp_path / "scales.json"
        options = replace(options, calibration=scales)
        calibrate(
            options,
            lambda p: made_up_observations(p.views, p.state_dim, 2, seed=1),
            origin="made up",
        ).write(scales)
    session = load(options)
    tier = precision_of(options).tier
    gates = gates_for(tier, min_cosine=0.9, mean_cosine=0.95, max_error=9.0, max_stage_error=0.5)
    report = qualify(
        session,
        qualifier(options),
        gates if tier in ("fp8", "int4") else gates_for(tier),
        made_up_observations(session.processor.views, 7, 2, seed=2),
        noises=2,
        calibration=calibration_of(options, session),
    )
    assert report.passed, report.gates
    assert list(report.stages) == ["commit: first frame", "video: latents", "decision: actions"]
    errors = [each.relative for each in report.stages.values()]
    if precision == "fp8":
        # The first frame is no product of a site; the video is made of some.
        assert errors[0] < 0.02 < errors[1] < 0.4
    session.engine.close()


def test_a_calibration_says_which_columns_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of four bits are made with what products read in a run, where that was observed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options, file = replace(OPTIONS, precision="int4"), tmp_path / "columns.json"
    found = calibrate(
        options, lambda p: made_up_observations(p.views, p.state_dim, 1, seed=1), origin="made up"
    )
    found.write(file)
    steps = [name for name in POLICY.sites if name.startswith("step.")]
    assert set(found.inputs) == set(steps)
    plain, aware = load(options), load(replace(options, calibration=file))
    assert plain.fingerprint.parts["calibration"] != found.digest
    assert aware.fingerprint.parts["calibration"] == found.digest
    for name in steps:
        weight, scale = POLICY.sites[name].weight, POLICY.sites[name].weight_scale
        wide = plain.engine.buffers[POLICY.sites[name].shared]
        errors = [
            sum(
                float((four_bit_values(*packed) - w.float()).square().mul(counts).sum())
                for *packed, w, counts in zip(
                    each.engine.buffers[weight],
                    each.engine.buffers[scale],
                    wide,
                    found.inputs[name],
                    strict=True,
                )
            )
            for each in (plain, aware)
        ]
        # To what bf16 has kept of the numbers.
        assert errors[1] < errors[0] * (1.0 if name.endswith(("out", "fc2")) else 1.001), name
    for session in (plain, aware):
        session.engine.close()


def test_the_work_of_a_decision() -> None:
    """At the released sizes, with a full history and 512 rows of a prompt: 2 a multiplication."""
    config = POLICY.config("base")
    shape = ShapeKey(2, 512, config.horizon, config.steps)
    work = {
        stage: sum(2 * each.rows * each.columns * each.depth for each in products) / 1e12
        for stage, products in POLICY.measures.products(config, shape).items()
    }
    encoder = 1.83  # measured of the official one, on sizes alone
    passes = 2.47 + 0.309
    assert work["commit"] == pytest.approx(encoder + passes, rel=0.02)
    assert work["video"] == pytest.approx(21 * 2.47, rel=0.01)
    assert work["action"] == pytest.approx(50 * 0.1545 + 0.309, rel=0.01)
