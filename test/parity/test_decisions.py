"""Whole decisions against those recorded from LeRobot's and openpi's own code.

Recorded by tools/record_goldens.py; both official networks ran with the weights that
test/parity/case.py makes, at full depth and reduced width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.pi05.numerics import CHOICES, Numerics, parse_numerics
from flashrt_core.policies.pi05.reference import Reference
from flashrt_core.policies.pi05.weights import tensors
from flashrt_core.session import Decision, Session

from . import case as parity
from .folders import sizes, write_lerobot, write_openpi

SOURCES = ("lerobot", "openpi")
#: fp32, largest difference of an action. Measured: reference 7e-7, stages 2e-6; a flipped switch
#: moves the actions by at least 4e-5.
EXACT = 5e-6
NETWORK_SWITCHES = ("rope_frequencies", "embedding_scale", "time_grid")
#: The profile under which ours should equal what was recorded.
PROFILES = {
    ("lerobot", "float32"): "lerobot",
    ("lerobot", "rounded"): "lerobot_bf16",
    ("lerobot", "bfloat16"): "lerobot_bf16",
    ("openpi", "float32"): "openpi,rope_frequencies=exact",  # their network built with float32
    ("openpi", "rounded"): "openpi",
    ("openpi", "bfloat16"): "openpi",
}
FP32 = [case for case in parity.CASES if case.arithmetic != "bfloat16"]


@cache
def golden(source: str) -> dict[str, np.ndarray[Any, Any]]:
    path = Path(__file__).parents[1] / "data" / f"pi05_{source}.npz"
    with np.load(path) as file:
        return dict(file)


class Seeded:
    """The formula's weights as a tensor source."""

    digest = "seeded"

    def __init__(self) -> None:
        self._specs = tensors(sizes())
        self._made: dict[str, torch.Tensor] = {}

    def names(self) -> Iterator[str]:
        return iter(self._specs)

    def get(self, name: str) -> torch.Tensor:
        if name not in self._made:
            shape = self._specs[name].shape
            self._made[name] = torch.from_numpy(parity.weight(name, shape))
        return self._made[name]


SEEDED = Seeded()


def run_reference(case: parity.Case, numerics: Numerics) -> Any:
    config = sizes(
        horizon=case.horizon,
        steps=case.steps,
        prompt_buckets=(case.padded,),
        numerics=numerics,
    )
    reference = Reference(config, SEEDED)
    shown = parity.images(case, config.image_size)
    return reference.decide(shown, parity.tokens(case), parity.noise(case))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        "openpi": write_openpi(root / "openpi"),
        "lerobot": write_lerobot(root / "lerobot", cameras=("image", "image2", "image3")),
    }


def open_session(
    folder: Path, case: parity.Case, numerics: Numerics, precision: str = "fp32"
) -> Session:
    options = LoadOptions(
        preset="base",
        checkpoint=str(folder),
        precision=precision,
        views=parity.VIEWS[: case.views],
        state_dim=parity.STATS_DIM,
        action_dim=parity.STATS_DIM,
        horizon=case.horizon,
        steps=case.steps,
        # Room for the state text of the processor; the case's tokens use a part of it.
        prompt_buckets=(max(case.padded, 64),),
        max_sessions=1,
        capsule_slots=0,
        threads=1,
        extra={**parity.SIZES, "numerics": numerics},
    )
    return load(options)


def decide(session: Session, case: parity.Case) -> Decision:
    session.select_shape(session.contract.shapes[0])
    limit = session.contract.input("prompt_tokens").shape[0]
    tokens = np.zeros(limit, np.int32)
    tokens[: case.tokens] = parity.tokens(case)
    size = parity.SIZES["image_size"]
    images = {f"image.{view}": value for view, value in parity.images(case, size).items()}
    session.write(
        {
            **images,
            "prompt_tokens": tokens,
            "prompt_length": np.array([case.tokens], np.int32),
        }
    )
    return session.decide(noise=parity.noise(case))


def run_stages(
    folder: Path, case: parity.Case, numerics: Numerics, precision: str = "fp32"
) -> np.ndarray[Any, Any]:
    session = open_session(folder, case, numerics, precision)
    try:
        return decide(session, case).raw
    finally:
        session.engine.close()


def worst(found: Any, expected: np.ndarray[Any, Any]) -> float:
    return float(np.abs(np.asarray(found) - expected).max())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", FP32, ids=lambda case: case.name)
def test_reference_equals_official(source: str, case: parity.Case) -> None:
    expected = golden(source)
    found = run_reference(case, parse_numerics(PROFILES[source, case.arithmetic]))
    keys = found.keys[list(parity.LAYERS)][:, found.valid]
    values = found.values[list(parity.LAYERS)][:, found.valid]
    assert worst(keys, expected[f"{case.name}.keys"]) < 2e-5
    assert worst(values, expected[f"{case.name}.values"]) < 2e-5
    assert worst(found.actions, expected[f"{case.name}.actions"]) < EXACT


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", FP32, ids=lambda case: case.name)
def test_stages_equal_official(folders: dict[str, Path], source: str, case: parity.Case) -> None:
    numerics = parse_numerics(PROFILES[source, case.arithmetic])
    found = run_stages(folders[source], case, numerics)
    assert worst(found, golden(source)[f"{case.name}.actions"]) < EXACT


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("switch", NETWORK_SWITCHES)
def test_each_switch_matters(folders: dict[str, Path], source: str, switch: str) -> None:
    case = next(case for case in parity.CASES if case.arithmetic == "rounded")
    numerics = parse_numerics(PROFILES[source, "rounded"])
    standing = getattr(numerics, switch)
    (other,) = (value for value in CHOICES[switch] if value != standing)
    flipped = replace(numerics, **{switch: other})
    expected = golden(source)["rounded.actions"]
    assert worst(run_reference(case, flipped).actions, expected) > 2e-5
    assert worst(run_stages(folders[source], case, flipped), expected) > 2e-5


@pytest.mark.parametrize("source", SOURCES)
def test_bf16_is_as_near_to_fp32_as_official_bf16(folders: dict[str, Path], source: str) -> None:
    expected = golden(source)
    ours, theirs = [], []
    for rounded, plain in (
        ("bfloat16", "two_views"),
        ("bfloat16_3", "three_views"),
        ("bfloat16_1", "one_view"),
    ):
        case = next(case for case in parity.CASES if case.name == rounded)
        official, exact = expected[f"{rounded}.actions"], expected[f"{plain}.actions"]
        profile = parse_numerics(PROFILES[source, "bfloat16"])
        found = run_stages(folders[source], case, profile, "bf16")
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(official, axis=1)
        assert ((found * official).sum(1) / norms).min() > 0.9999
        ours.append((found - exact).ravel())
        theirs.append((official - exact).ravel())
    # Over all cases: one alone is few enough numbers for chance to decide.
    assert np.linalg.norm(np.concatenate(ours)) <= np.linalg.norm(np.concatenate(theirs))
