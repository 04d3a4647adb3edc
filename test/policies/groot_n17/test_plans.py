"""Sizes that are refused, plans of every precision, and the text encoding that ships."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashrt_core.calibration.run import calibrate
from flashrt_core.errors import OptionError
from flashrt_core.fidelity.qualification import gates_for, qualify
from flashrt_core.load import LoadOptions, calibration_of, load, precision_of, qualifier
from flashrt_core.observations import made_up_observations
from flashrt_core.policies.groot_n17 import POLICY
from flashrt_core.policies.groot_n17.config import TINY_VOCAB
from flashrt_core.policies.groot_n17.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = LoadOptions(policy="groot_n17", prompt_buckets=(24,), steps=2, threads=1)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"image_size": 50}, "'image_size' .*: expected a multiple of patch x merge, 32, got 50"),
        ({"vision_heads": 3}, "'vision_width'"),
        ({"vision_features": (1, 0)}, "ascending layers of the tower"),
        ({"vision_features": (5,)}, "layers below the depth 3"),
        ({"vision_features": ()}, "ascending layers of the tower"),
        ({"text_depth": 1}, "'vision_features' .*: expected at most 1"),
        ({"text_kv_heads": 3}, "a divisor of 4 heads, got 3"),
        ({"text_sections": (4, 2)}, "three counts of frequencies"),
        ({"text_sections": (4, 4, 4)}, "8 frequencies, half a head"),
        ({"adapter_heads": 7}, "'adapter_heads'"),
        ({"head_width": 97}, "'head_width'"),
        ({"head_depth": 2}, "3 or more, so that every kind of block is there"),
        ({"head_time": 7}, "'head_time' .*: expected an even number"),
        ({"horizon": 65}, "at most 64 positions"),
        ({"embodiment": 4}, "'embodiment' .*: expected below 4, got 4"),
        ({"prompt_buckets": (5,)}, "more than the chat's 5 marks"),
        ({"numerics": "openpi"}, "a profile of .*'lerobot'"),
        ({"numerics": 5}, "a profile or Numerics, got 5"),
        ({"rope_theta": -1}, "a number in"),
        ({"camera_bytes": 10}, "override 'camera_bytes' of policy 'groot_n17': .*no such"),
        ({"real_time_chunking": 1}, "true or false"),
        ({"lead": -1}, "a whole number in 0..64, got -1"),
    ],
)
def test_sizes_that_do_not_fit(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        POLICY.config("tiny", **overrides)
    assert "\n" not in str(raised.value)


def test_precisions_pass_their_gates(tmp_path: Path) -> None:
    """fp32, bf16 and a calibrated fp8 plan, each against the float32 reference."""
    scales = tmp_path / "scales.json"
    plan = replace(OPTIONS, precision="fp8", calibration=str(scales), steps=4)
    calibrate(
        plan, lambda p: made_up_observations(p.views, p.state_dim, 3), origin="made up"
    ).write(scales)
    errors = {}
    for name in ("fp32", "bf16", "fp8"):
        options = replace(plan, precision=name, prompt="go")
        session = load(options)
        processor = session.processor
        samples = made_up_observations(processor.views, processor.state_dim, 2, seed=5)
        gates = gates_for(precision_of(options).tier)
        report = qualify(
            session,
            qualifier(options),
            gates,
            samples,
            calibration=calibration_of(options, session),
        )
        assert report.passed, (name, report.as_dict())
        stages = ("prompt", "vision", "context", "action", "decision")
        assert [stage for stage in stages if any(n.startswith(stage) for n in report.stages)] == [
            *stages
        ]
        errors[name] = report.stages["decision: actions"].relative
        session.engine.close()
    assert errors["fp32"] < errors["bf16"] < errors["fp8"]


def test_a_chunk_is_continued() -> None:
    """Kept rows come back as they were, in robot units."""
    from flashrt_core.guidance import Previous

    session = load(
        replace(OPTIONS, real_time_chunking=True, prompt="go", state_dim=3, action_dim=3)
    )
    ((_, observation),) = made_up_observations(session.processor.views, 3, 1)
    first = session.decide(observation).actions
    rows = np.roll(first, -2, axis=0)[:6]
    again = session.decide(observation, previous=Previous(rows, frozen=3)).actions
    assert np.array_equal(again[:3], rows[:3].astype(np.float32))
    assert not np.allclose(again[6:], first[6:])
    session.engine.close()


def test_the_encoding_that_ships_is_what_its_script_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import train_tiny_tokenizer

    monkeypatch.delitem(sys.modules, "train_tiny_tokenizer")
    shipped = ROOT / "flashrt_core/policies/groot_n17/tiny_tokenizer.json"
    assert shipped.read_bytes() == train_tiny_tokenizer.train_bpe()
    assert Tokenizer().vocab <= TINY_VOCAB
