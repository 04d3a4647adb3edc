"""A capsule of a small network goes through a file into another engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_core.errors import CapsuleError
from flashrt_core.session import Session

from .small import POLICIES, observation, tiny


def session(policy: str, precision: str = "fp32", prompt: str = "pick up the cup") -> Session:
    return tiny(
        policy,
        precision=precision,
        steps=2,
        prompt=prompt,
        seed=5,
        max_sessions=2,
        capsule_slots=1,
        host_slots=1,
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_another_engine_continues_with_equal_bits(
    policy: str, precision: str, tmp_path: Path
) -> None:
    first, second = session(policy, precision), session(policy, precision, prompt="open the drawer")
    first.decide(observation(first, 1))
    first.snapshot("mark")
    first.engine.store.write_file("mark", tmp_path / "mark")
    for seed in (2, 3):
        second.decide(observation(second, seed))
    second.engine.store.read_file(tmp_path / "mark")
    second.engine.store.to_host("mark")
    second.restore("mark")
    assert second.prompt == "pick up the cup"
    here, there = first.act(), second.act()
    assert here.raw.tobytes() == there.raw.tobytes()
    assert here.actions.tobytes() == there.actions.tobytes()
    assert (here.index, here.stamp_ns) == (there.index, there.stamp_ns) == (1, 1)
    after = [each.decide(observation(each, 4)).raw.tobytes() for each in (first, second)]
    assert after[0] == after[1]
    other = session(policy, "bf16" if precision == "fp32" else "fp32")
    with pytest.raises(CapsuleError, match=r"differs in \['layout', 'precision'\]"):
        other.engine.store.read_file(tmp_path / "mark")
