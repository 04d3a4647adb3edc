"""Images, text, statistics and delta actions against those recorded from the official code."""

from __future__ import annotations

import hashlib
import json
import logging
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.kernels.rope_rows import rope_rows_ref
from flashrt_core.policies.normalisation import FIELDS, Statistics
from flashrt_core.policies.pi05.camera import resize_with_pad
from flashrt_core.policies.pi05.numerics import (
    PROFILES,
    embedding_scale,
    parse_numerics,
    step_times,
)
from flashrt_core.policies.pi05.prompt import PromptEncoder, clean, discretise
from flashrt_core.policies.pi05.schedule import time_embedding
from flashrt_core.policies.sentencepieces import Tokenizer

from . import case as parity
from .folders import TINY_TOKENIZER
from .test_decisions import golden

SIDE = parity.SIZES["image_size"]
MODES = {"QUANTILES": "quantiles", "MEAN_STD": "mean_std", "MIN_MAX": "min_max"}


def grey_levels(source: str, size: tuple[int, int], method: str) -> Any:
    """Differences in grey levels between ours and the official resize."""
    expected = golden(source)[f"resize.{size[0]}x{size[1]}"].astype(np.float64)
    return np.abs(resize_with_pad(parity.raw_image("resize", *size), SIDE, method) - expected)


@pytest.mark.parametrize("size", parity.RAW_SIZES, ids=str)
def test_resize_equals_openpi(size: tuple[int, int]) -> None:
    assert grey_levels("openpi", size, "pillow").max() == 0


@pytest.mark.parametrize("size", parity.RAW_SIZES, ids=str)
def test_resize_equals_lerobot_to_the_grey_level(size: tuple[int, int]) -> None:
    # LeRobot keeps fractions of a grey level, the image window rounds them; 0.07 is the float16
    # step that the recorded values are stored with.
    assert grey_levels("lerobot", size, "torch").max() <= 0.5 + 0.07


def test_resize_switch_matters() -> None:
    assert grey_levels("openpi", (120, 90), "torch").max() > 20
    assert grey_levels("lerobot", (120, 90), "pillow").max() > 20


@pytest.mark.parametrize("steps", parity.GRIDS)
def test_time_grid_equals_lerobot(steps: int) -> None:
    times = step_times(PROFILES["lerobot"], steps)
    assert times == golden("lerobot")[f"times.{steps}"].tolist()
    expected = golden("lerobot")[f"time_embedding.{steps}"]
    assert np.array_equal(time_embedding(times, 64).numpy(), expected)


@pytest.mark.parametrize("case", ["two_views", "three_views", "one_view"])
def test_time_grid_equals_openpi(case: str) -> None:
    expected = golden("openpi")[f"{case}.times"].tolist()
    assert step_times(PROFILES["openpi"], len(expected)) == expected


def test_time_grid_switch_matters() -> None:
    expected = golden("openpi")["two_views.times"].tolist()
    assert step_times(PROFILES["lerobot"], 10) != expected
    assert step_times(PROFILES["openpi"], 10) != golden("lerobot")["times.10"].tolist()


def test_values_of_the_true_size() -> None:
    """The numbers that the documentation quotes."""
    assert embedding_scale(PROFILES["lerobot_bf16"], 2048) == 45.25
    assert embedding_scale(PROFILES["openpi"], 2048) == pytest.approx(45.254834, abs=1e-6)
    # The frequencies as Gemma's PyTorch module makes them, cast to bfloat16 and back.
    official = 1.0 / (10000.0 ** (torch.arange(0, 256, 2, dtype=torch.int64).float() / 256))
    angles = 700.0 * official.bfloat16().double()
    found = torch.empty(1, 256)
    rope_rows_ref(torch.tensor([700]), found, theta=10000.0, rounded=True)
    torch.testing.assert_close(found[0], torch.cat((angles.cos(), angles.sin())).float())
    assert float((angles - 700.0 * official.double()).abs().max()) == pytest.approx(0.97, abs=0.01)


@pytest.mark.parametrize("source", ["openpi", "lerobot"])
def test_token_ids_were_recorded_with_this_tokenizer(source: str) -> None:
    about = json.loads(golden(source)["about"].tobytes())
    found = hashlib.sha256(TINY_TOKENIZER.read_bytes()).hexdigest()
    assert about["tokenizer"] == found, "the tokenizer changed: run tools/record_goldens.py again"


def prompt_table() -> list[tuple[str, Any]]:
    return list(product(parity.PROMPTS, parity.states()))


def encoded(text: str, bins: list[int] | None) -> list[int]:
    dims = None if bins is None else len(bins)
    return PromptEncoder(Tokenizer(), dims, parity.PROMPT_LIMIT, truncate=True).encode(text, bins)


def official(source: str, kind: str, row: int) -> list[int]:
    tokens, mask = golden(source)[f"{kind}.tokens"][row], golden(source)[f"{kind}.mask"][row]
    assert not tokens[~mask].any()
    return tokens[mask].tolist()


@pytest.mark.parametrize("source", ["openpi", "lerobot"])
def test_token_ids_equal_official(source: str) -> None:
    """With BOS, state in the text, and the over-long ones truncated."""
    table = prompt_table()
    lengths = set()
    for row, (text, state) in enumerate(table):
        found = encoded(text, discretise(state))
        assert found == official(source, "prompt", row), (text, state)
        lengths.add(len(found))
    assert parity.PROMPT_LIMIT in lengths  # the table does reach truncation


def test_token_ids_without_state_equal_openpi() -> None:
    for row, text in enumerate(parity.PROMPTS):
        assert encoded(text, None) == official("openpi", "plain", row), text


def test_padded_state_text_equals_the_older_lerobot_and_differs() -> None:
    differing = 0
    for row, (text, state) in enumerate(prompt_table()):
        bins = discretise(np.pad(state, (0, 32 - len(state))))
        found = encoded(text, bins)
        assert found == official("lerobot", "padded", row), (text, state)
        differing += found != official("lerobot", "prompt", row)
    assert differing > len(parity.PROMPTS)


def test_prompt_texts_equal_lerobot() -> None:
    texts = json.loads(golden("lerobot")["about"].tobytes())["prompts"]
    for expected, (text, state) in zip(texts, prompt_table(), strict=True):
        numbers = " ".join(map(str, discretise(state)))
        assert f"Task: {clean(text)}, State: {numbers};\nAction: " == expected


def test_truncation_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    encoder = PromptEncoder(Tokenizer(), 2, 20, truncate=True)
    with caplog.at_level(logging.WARNING):
        for value in (1, 2, 3):
            assert len(encoder.encode("word " * 40, [value, value])) == 20
    assert len(caplog.records) == 1
    assert "cut to 20" in caplog.text


def statistics(part: str, mode: str, *, guarded: bool) -> Statistics:
    known = parity.statistics(part)
    first, second = FIELDS[MODES[mode]]
    # LeRobot keeps its statistics in float32.
    kind = np.float32 if guarded else np.float64
    return Statistics(
        "mean_std" if mode == "MEAN_STD" else "range",
        np.array(known[first], kind).astype(np.float64),
        np.array(known[second], kind).astype(np.float64),
        guarded=guarded,
    )


@pytest.mark.parametrize("mode", ["QUANTILES", "MEAN_STD"])
def test_normalisation_equals_openpi(mode: str) -> None:
    state, actions = parity.statistics_inputs()
    expected = golden("openpi")
    normal = statistics("state", mode, guarded=False).normalise(state)
    np.testing.assert_allclose(normal, expected[f"normalise.{mode}"], rtol=1e-12)
    restored = statistics("action", mode, guarded=False).restore(actions)
    # openpi passes dimensions without statistics through; a robot has none of those.
    np.testing.assert_allclose(restored, expected[f"restore.{mode}"][..., :8], rtol=1e-12)


@pytest.mark.parametrize("mode", ["QUANTILES", "MEAN_STD", "MIN_MAX"])
def test_normalisation_equals_lerobot_bit_for_bit(mode: str) -> None:
    state, actions = parity.statistics_inputs()
    expected = golden("lerobot")
    normal = statistics("state", mode, guarded=True).normalise(state)
    assert normal.dtype == np.float32
    np.testing.assert_array_equal(normal, expected[f"normalise.{mode}"])
    restored = statistics("action", mode, guarded=True).restore(actions)
    np.testing.assert_array_equal(restored, expected[f"restore.{mode}"])


@pytest.mark.parametrize("source", ["openpi", "lerobot"])
@pytest.mark.parametrize("mode", ["QUANTILES", "MEAN_STD"])
def test_normalisation_switch_matters(source: str, mode: str) -> None:
    state, _ = parity.statistics_inputs()
    wrong = statistics("state", mode, guarded=source == "openpi").normalise(state)
    # In the dimension that hardly moved, 1e-6 is a good part of the denominator.
    assert np.abs(wrong - golden(source)[f"normalise.{mode}"])[..., 6].max() > 0.002


@pytest.mark.parametrize("source", ["openpi", "lerobot"])
def test_mean_std_and_quantiles_differ(source: str) -> None:
    expected = golden(source)
    difference = expected["normalise.QUANTILES"] - expected["normalise.MEAN_STD"]
    assert np.abs(difference).max() > 0.1


def test_numerics_text() -> None:
    assert parse_numerics("lerobot").image_resize == "torch"
    changed = parse_numerics("openpi, time_grid=multiplied , state_text=padded")
    assert (changed.time_grid, changed.state_text) == ("multiplied", "padded")
    assert changed.rope_frequencies == "bfloat16"
