"""Real-time chunking of π0.5: the stages, the way from robot units, and sessions that use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.errors import InputError, OptionError
from flashrt_core.guidance import DECAYS, GUIDANCE, PREVIOUS, Previous, weights
from flashrt_core.load import LoadOptions, describe, load
from flashrt_core.policies.base import Observation, ProcessorOptions
from flashrt_core.policies.normalisation import FIELDS, from_arrays
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.policies.pi05.preprocess import Pi05Processor
from flashrt_core.policies.pi05.reference import Reference
from flashrt_core.policies.reference import ReferenceGuide
from flashrt_core.session import Session

from .harness import TWO, Case, Pipeline, make_case, same_bits, spread, worst

TINY = POLICY.config("tiny")
GUIDED = POLICY.config("tiny", real_time_chunking=True)
Array = np.ndarray[Any, Any]


# ---- stages -------------------------------------------------------------------------------------


def guided_case(config: Any = GUIDED, decay: str = "exponential", columns: int = 7) -> Case:
    """Six rows of overlap, two of them kept, in the columns of a robot."""
    case = make_case(config, TWO, 20, seed=3)
    previous = make_case(config, TWO, 20, seed=4).noise
    weight = np.zeros_like(previous)
    weight[:6, :columns] = weights(6, 2, decay)[:, None]
    return replace(case, guide=ReferenceGuide(previous, weight))


@pytest.mark.parametrize("decay", DECAYS)
def test_stages_agree_with_the_reference(decay: str) -> None:
    pipeline, case = Pipeline(GUIDED), guided_case(decay=decay)
    actions = pipeline.decide(case)
    reference = Reference(GUIDED, pipeline.source)
    expected = reference.decide(case.images, case.tokens, case.noise, case.guide).actions
    assert worst(actions, expected) <= 1e-5 * spread(expected)
    free = reference.decide(case.images, case.tokens, case.noise).actions
    assert worst(actions, free) > 0.1 * spread(free), "guidance does something"


@pytest.mark.parametrize("overrides", [{"steps": 1}, {"steps": 7}, {"numerics": "openpi"}])
def test_other_step_counts_and_times(overrides: dict[str, Any]) -> None:
    config = POLICY.config("tiny", real_time_chunking=True, **overrides)
    pipeline, case = Pipeline(config), guided_case(config)
    expected = Reference(config, pipeline.source).decide(
        case.images, case.tokens, case.noise, case.guide
    )
    actions = pipeline.decide(case)
    assert worst(actions, expected.actions) <= 1e-5 * spread(expected.actions)
    assert np.array_equal(actions[:2, :7].numpy(), case.guide.previous[:2, :7])  # type: ignore[union-attr]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kept_rows_are_kept_exactly_and_others_fit_to_them(precision: str) -> None:
    pipeline, case = Pipeline(GUIDED, precision=precision), guided_case(decay="zeros")
    guide = case.guide
    assert guide is not None
    actions = pipeline.decide(case).numpy()
    assert np.array_equal(actions[:2, :7], guide.previous[:2, :7])
    free = pipeline.decide(replace(case, guide=None)).numpy()
    # Of these nothing was guided; they see the kept rows, and change with them.
    assert np.abs(actions[2:] - free[2:]).max() > 0.01
    assert np.abs(actions[:2, 7:] - free[:2, 7:]).max() > 0.0
    other = ReferenceGuide(guide.previous + 1.0, guide.weight)
    moved = pipeline.decide(replace(case, guide=other)).numpy()
    assert np.abs(actions[2:] - moved[2:]).max() > 0.01


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_without_weight_the_bits_are_those_of_a_plan_without_guidance(precision: str) -> None:
    case = make_case(TINY, TWO, 20, seed=3)
    plain = Pipeline(TINY, precision=precision).decide(case)
    rows = make_case(TINY, TWO, 20, seed=4).noise
    pipeline = Pipeline(GUIDED, precision=precision)
    for previous in (np.zeros_like(rows), rows):
        guide = ReferenceGuide(previous, np.zeros_like(rows))
        assert same_bits(plain, pipeline.decide(replace(case, guide=guide)))


def test_weights_are_those_of_the_paper() -> None:
    ahead = np.array([4, 3, 2, 1]) / 5
    exponential = ahead * (np.exp(ahead) - 1) / (np.e - 1)
    for decay, expected in (
        ("exponential", exponential),
        ("linear", ahead),
        ("ones", np.ones(4)),
        ("zeros", np.zeros(4)),
    ):
        np.testing.assert_allclose(weights(6, 2, decay), [1, 1, *expected], rtol=1e-14)
        assert weights(3, 3, decay).tolist() == [1.0, 1.0, 1.0]
    assert weights(3, 0, "linear").tolist() == [0.75, 0.5, 0.25]


# ---- robot units --------------------------------------------------------------------------------


def processor(tmp_path: Path, profile: str, mode: str, **changes: Any) -> Pi05Processor:
    config = POLICY.config("tiny", numerics=profile)
    first, second = FIELDS[mode]
    numbers = {first: [-1.0, 0.5, -2.0], second: [2.0, 0.75, -1.5]}
    if mode == "mean_std":
        numbers[second] = [2.0, 0.25, 0.75]
    options = ProcessorOptions(TWO, 3, 3, **changes)
    made = POLICY.processor(config, options)
    arrays = {name: np.array(value) for name, value in numbers.items()}
    made._action_stats = from_arrays(  # type: ignore[attr-defined]
        "actions", mode, arrays, guarded=profile == "lerobot", eps=1e-8
    )
    return made  # type: ignore[return-value]


@pytest.mark.parametrize("relative", [None, (True, False, True)])
@pytest.mark.parametrize("mode", ["quantiles", "mean_std"])
@pytest.mark.parametrize("profile", ["openpi", "lerobot"])
def test_encoded_actions_decode_to_what_they_were(
    tmp_path: Path, profile: str, mode: str, relative: tuple[bool, ...] | None
) -> None:
    subject = processor(tmp_path, profile, mode, delta_actions=relative)
    draw = np.random.default_rng(0)
    state, raw = draw.normal(size=3), draw.normal(size=(5, 32)).astype(np.float32)
    actions = subject.decode(raw, state)
    encoded = subject.encode_actions(actions, state)
    assert encoded.shape == (5, 32) and encoded.dtype == np.float32
    np.testing.assert_allclose(encoded[:, :3], raw[:, :3], atol=2e-5)
    assert np.isnan(encoded[:, 3:]).all(), "nothing is known of the padded columns"
    again = subject.decode(np.nan_to_num(encoded), state)
    np.testing.assert_allclose(again, actions, rtol=1e-6, atol=1e-6)
    # The same actions against another state are other relative ones.
    shifted = subject.encode_actions(actions, state + 0.1)
    changed = np.abs(shifted - encoded)[:, :3].max(axis=0) > 1e-3
    assert changed.tolist() == list(relative or (False, False, False))


@pytest.mark.parametrize(("profile", "mode"), [("lerobot", "mean_std"), ("openpi", "quantiles")])
def test_an_action_that_never_moved_is_not_guided(tmp_path: Path, profile: str, mode: str) -> None:
    subject = processor(tmp_path, profile, mode)
    stats = subject._action_stats
    assert stats is not None
    second = stats.second.copy()
    second[1] = 0.0 if mode == "mean_std" else stats.first[1]
    subject._action_stats = replace(stats, second=second)
    encoded = subject.encode_actions(np.array([[0.1, 0.5001, -1.7]]), None)
    assert np.isfinite(encoded[0, [0, 2]]).all() and np.isnan(encoded[0, 1])


def test_actions_of_another_robot_are_refused(tmp_path: Path) -> None:
    subject = processor(tmp_path, "openpi", "quantiles", delta_actions=(True, False, False))
    with pytest.raises(InputError, match=r"actions: expected \[rows, 3\], got \[2, 4\]"):
        subject.encode_actions(np.zeros((2, 4)), np.zeros(3))
    with pytest.raises(InputError, match="state: expected 3 numbers: actions add to it, got none"):
        subject._state_needed = False  # by the prompt; relative actions need it all the same
        subject.encode_actions(np.zeros((2, 3)), None)


# ---- sessions -----------------------------------------------------------------------------------

OPTIONS = LoadOptions(
    prompt="cup", threads=1, steps=4, prompt_buckets=(32,), state_dim=3, action_dim=3
)


def opened(**changes: Any) -> Session:
    return load(replace(OPTIONS, **changes))


def see(value: int, state: float = 0.0) -> Observation:
    images = {view: np.full((56, 56, 3), value + k, np.uint8) for k, view in enumerate(TWO)}
    return Observation(images, np.full(3, state, np.float32), stamp_ns=value)


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    stats = {"q01": [-2.0, 0.0, 1.0], "q99": [2.0, 1.5, 9.0]}
    path = tmp_path_factory.mktemp("stats") / "norm_stats.json"
    path.write_text(json.dumps({"norm_stats": {"actions": stats, "state": stats}}))
    session = opened(real_time_chunking=True, norm_stats=path, delta_actions=(True, False, False))
    yield session
    session.engine.close()


def test_a_decision_continues_the_chunk_before_it(guided: Session) -> None:
    first = guided.decide(see(10, 0.2))
    rows = first.actions[4:]  # the next chunk begins four rows later
    free = guided.decide(see(20, 0.5)).actions
    guided.resume(replace(guided.host_state(), decisions=1))  # the same noise
    found = guided.decide(see(20, 0.5), previous=Previous(rows, frozen=2)).actions
    np.testing.assert_allclose(found[:2], rows[:2], rtol=1e-6, atol=1e-6)
    gaps = np.abs(found[:6] - rows).max(axis=1)
    assert gaps[2:].min() > 1e-3 and gaps[2] < gaps[5]
    assert gaps[2] < 0.5 * np.abs(free[2] - rows[2]).max()
    guidance = guided.buffers[GUIDANCE].numpy()
    assert (guidance[:2, :3] == 1.0).all() and (guidance[6:] == 0.0).all()
    assert (guidance[:, 3:] == 0.0).all(), "padded columns are free"


def test_guidance_is_relative_to_the_state_that_actions_add_to(guided: Session) -> None:
    """Rows that are kept come back, whichever context they are decided on."""
    rows = guided.decide(see(10, 0.2)).actions[4:]
    kept = Previous(rows, frozen=2)
    guided.observe(see(20, 0.5))
    for decide in (
        lambda: guided.act(previous=kept, allow_stale=True),
        lambda: guided.decide(previous=kept),
        lambda: guided.act(previous=kept),
    ):
        np.testing.assert_allclose(decide().actions[:2], rows[:2], rtol=1e-6, atol=1e-6)
    guided.observe(see(30, 0.8))
    guided.run("context")
    found = guided.act(previous=kept)
    assert found.stamp_ns == 30
    np.testing.assert_allclose(found.actions[:2], rows[:2], rtol=1e-6, atol=1e-6)
    images = {f"image.{view}": guided.buffers[f"image.{view}"].numpy().copy() for view in TWO}
    guided.write(images)
    with pytest.raises(InputError, match="state: expected 3 numbers"):
        guided.decide(previous=kept)
    guided.decide(see(10, 0.2))


def test_a_guided_decision_leaves_nothing_behind(guided: Session) -> None:
    """Whatever was guided: the next decision, a capsule and a fork go on as if it had not been."""
    plain = opened(
        norm_stats=guided_stats(guided), delta_actions=(True, False, False), max_sessions=2
    )
    rows = np.ones((5, 3))
    for session in (plain, guided):
        session.resume(replace(session.host_state(), decisions=0))
    expected = [plain.decide(see(30)).raw, plain.act().raw, plain.act().raw]
    assert np.array_equal(guided.decide(see(30)).raw, expected[0])
    guided.snapshot("mark")
    kept = guided.act(previous=Previous(rows, frozen=3))
    assert not np.array_equal(kept.raw, expected[1])
    assert np.array_equal(guided.act().raw, expected[2])
    guided.restore("mark")
    assert np.array_equal(guided.act().raw, expected[1])
    branch = guided.engine.fork("branch", capsule="mark")
    again = branch.act(previous=Previous(rows, frozen=3))
    assert np.array_equal(again.raw, kept.raw)
    assert np.array_equal(branch.act().raw, expected[2])
    guided.engine.drop_session("branch")
    guided.engine.store.drop("mark")
    plain.engine.close()


def guided_stats(session: Session) -> Path:
    stats = session.processor._action_stats  # type: ignore[attr-defined]
    return Path(stats.source.split("'")[1])


def test_split_and_whole_decisions_agree(guided: Session) -> None:
    noise = np.zeros(guided.contract.input("noise").shape, np.float32)
    previous = Previous(np.ones((5, 3)), 2, "linear")
    whole = guided.decide(see(40), noise=noise, previous=previous).raw
    assert np.array_equal(
        guided.decide(see(40), noise=noise, previous=previous, split=True).raw, whole
    )


@pytest.mark.parametrize(
    ("previous", "message"),
    [
        (np.ones((2, 3)), "previous: expected a Previous, got ndarray"),
        (Previous(np.ones((11, 3))), r"previous rows: expected \[1..10, 3\], got \[11, 3\]"),
        (Previous(np.ones((0, 3))), r"previous rows: expected .*, got \[0, 3\]"),
        (Previous(np.ones((2, 4))), r"previous rows: expected .*, got \[2, 4\]"),
        (Previous(np.ones(3)), r"previous rows: expected .*, got \[3\]"),
        (Previous(np.array([["a"] * 3])), "previous rows: expected numbers"),
        (Previous(np.ones((1, 3), complex)), "expected numbers, got complex128 values"),
        (Previous(np.ones((1, 3), bool)), "expected numbers, got bool values"),
        (Previous(np.array([[0.0, np.nan, 0.0]])), "previous rows: expected finite values"),
        (Previous(np.array([[0.0, np.inf, 0.0]])), "previous rows: expected finite values"),
        (Previous(np.ones((2, 3)), 3), r"previous rows to keep: expected 0\.\.2, got 3"),
        (Previous(np.ones((2, 3)), -1), r"previous rows to keep: expected 0\.\.2, got -1"),
        (Previous(np.ones((2, 3)), 1.5), "previous rows to keep: expected a whole number"),  # type: ignore[arg-type]
        (Previous(np.ones((2, 3)), 1, "slow"), "decay: expected one of .*, got 'slow'"),
    ],
)
def test_what_cannot_be_continued_is_refused(guided: Session, previous: Any, message: str) -> None:
    decided = guided.decisions
    guided.observe(see(50))
    for call in (guided.decide, guided.act):
        with pytest.raises(InputError, match=message):
            call(previous=previous)
    assert guided.decisions == decided


def test_a_plan_without_guidance_refuses_and_is_another_plan() -> None:
    plain = opened(extra={"vision_depth": 1, "trunk_depth": 1, "expert_depth": 1})
    message = "previous: expected none: the plan has no real-time chunking.*real_time_chunking=True"
    with pytest.raises(InputError, match=message):
        plain.decide(see(10), previous=Previous(np.ones((2, 3))))
    plain.engine.close()
    one, other = (describe(replace(OPTIONS, real_time_chunking=on)) for on in (False, True))
    assert one.fingerprint is not None and other.fingerprint is not None
    assert "config" in one.fingerprint.diff(other.fingerprint)
    names = {spec.name for spec in other.contract.inputs}
    assert names - {spec.name for spec in one.contract.inputs} == {PREVIOUS, GUIDANCE}


def test_a_policy_that_cannot_continue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(POLICY), "continues_chunks", False)
    with pytest.raises(OptionError, match="'real_time_chunking': expected false: policy 'pi05'"):
        describe(replace(OPTIONS, real_time_chunking=True))


def test_a_calibration_serves_both_plans() -> None:
    assert POLICY.of_activations(GUIDED) == POLICY.of_activations(TINY)


def test_windows_are_neighbours_of_the_noise() -> None:
    """One copy takes all three to a GPU."""
    contract = POLICY.contract(GUIDED, POLICY.shapes(GUIDED, 2), TWO, "fp32")
    names = [spec.name for spec in contract.buffers]
    at = names.index("noise")
    assert names[at - 2 : at] == [PREVIOUS, GUIDANCE]
    assert torch.Size(contract.input(GUIDANCE).shape) == torch.Size((10, 32))
