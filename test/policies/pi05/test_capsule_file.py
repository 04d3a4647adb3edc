"""A capsule of the small network goes through a file into another engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashrt_core.errors import CapsuleError
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

VIEW = "base_0_rgb"


def session(precision: str = "fp32", prompt: str = "pick up the cup") -> Session:
    return load(
        LoadOptions(
            precision=precision, views=(VIEW,), steps=2, prompt=prompt, threads=1, seed=5,
            max_sessions=2, capsule_slots=1, host_slots=1,
        )
    )  # fmt: skip


def observation(seed: int) -> Observation:
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, (48, 64, 3), np.uint8)
    return Observation({VIEW: image}, generator.random(7, np.float32), stamp_ns=seed)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_another_engine_continues_with_equal_bits(precision: str, tmp_path: Path) -> None:
    first, second = session(precision), session(precision, prompt="open the drawer")
    first.decide(observation(1))
    first.snapshot("mark")
    first.engine.store.write_file("mark", tmp_path / "mark")
    for seed in (2, 3):
        second.decide(observation(seed))
    second.engine.store.read_file(tmp_path / "mark")
    second.engine.store.to_host("mark")
    second.restore("mark")
    assert second.prompt == "pick up the cup"
    here, there = first.act(), second.act()
    assert here.raw.tobytes() == there.raw.tobytes()
    assert here.actions.tobytes() == there.actions.tobytes()
    assert (here.index, here.stamp_ns) == (there.index, there.stamp_ns) == (1, 1)
    after = [each.decide(observation(4)).raw.tobytes() for each in (first, second)]
    assert after[0] == after[1]
    other = session("bf16" if precision == "fp32" else "fp32")
    with pytest.raises(CapsuleError, match=r"differs in \['layout', 'precision'\]"):
        other.engine.store.read_file(tmp_path / "mark")
