"""Relative actions of every policy add the state that their context was made with."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_core.errors import InputError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from .small import POLICIES, observation, small

#: Values of the state; exact in float32, and so are their differences.
OLD, NEW = -0.5, 0.75


@pytest.fixture(params=POLICIES)
def main(request: pytest.FixtureRequest) -> Session:
    found = small(request.param, action_dim=1, delta_actions=(True,), capsule_slots=1)
    yield found
    found.engine.close()


def see(session: Session, seed: int, state: float) -> Observation:
    return Observation(observation(session, seed).images, np.array([state], np.float32), seed)


def noise(session: Session) -> np.ndarray:
    return np.random.default_rng(0).normal(size=session.contract.input("noise").shape).astype("f4")


def test_not_a_newer_one(main: Session) -> None:
    drawn = noise(main)
    expected = main.decide(see(main, 1, OLD), noise=drawn)
    main.observe(see(main, 2, NEW))
    main.snapshot("c")
    for _ in range(2):
        found = main.act(noise=drawn, allow_stale=True)
        assert np.array_equal(found.raw, expected.raw)
        assert np.array_equal(found.actions, expected.actions)
        assert found.stamp_ns == 1
        main.restore("c")


def test_not_an_older_one(main: Session) -> None:
    drawn = noise(main)
    seen = see(main, 2, NEW)
    expected = main.decide(seen, noise=drawn)
    values = main.processor.encode(seen, main.prompt)
    main.decide(see(main, 1, OLD), noise=drawn)
    main.write(values)
    with pytest.raises(InputError, match="state: expected 1 numbers, got none"):
        main.decide(noise=drawn)
    assert np.array_equal(main.read("actions"), expected.raw), "what a host decodes itself"
    assert main.host_state().stamp_ns == 0
    again = main.decide(seen, noise=drawn)
    assert np.array_equal(again.actions, expected.actions) and again.stamp_ns == 2


@pytest.mark.parametrize("name", ["image.{view}", "state", "prompt_tokens"])
def test_of_one_window_alone(main: Session, name: str) -> None:
    name = name.format(view=main.processor.views[0])
    if name not in {spec.name for spec in main.contract.inputs}:
        pytest.skip("the state is in the prompt")
    main.decide(see(main, 1, OLD))
    values = main.processor.encode(see(main, 2, NEW), main.prompt)
    if name == "prompt_tokens":  # of as many tokens
        values[name] = values[name].copy()
        values[name].flat[0] += 1
    main.write({name: values[name]})
    with pytest.raises(InputError, match="state: expected 1 numbers, got none"):
        main.decide()
