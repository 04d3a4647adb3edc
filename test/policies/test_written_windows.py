"""Whole numbers that stages take for counts and places are checked when a host writes them."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_core.errors import InputError

from .small import POLICIES, observation, small


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_tokens", -1),
        ("prompt_tokens", 1 << 30),
        ("prompt_length", -1),
        ("prompt_length", 99),
    ],
)
def test_numbers_out_of_range_are_refused(policy: str, name: str, value: int) -> None:
    session = small(policy)
    seen = observation(session, 1)
    session.decide(seen)
    expected = session.act().raw
    spec = session.contract.input(name)
    wrong = np.zeros(spec.shape, np.int32)
    wrong.flat[-1] = value
    with pytest.raises(InputError, match=rf"input '{name}': expected [01]\.\.\d+, got {value}$"):
        session.write({name: wrong})
    again = session.act().raw
    assert again.shape == expected.shape and np.isfinite(again).all(), "what was kept still counts"


@pytest.mark.parametrize("policy", POLICIES)
def test_no_text_at_all_is_refused_where_blocks_attend_to_text_alone(policy: str) -> None:
    session = small(policy)
    seen = observation(session, 1)
    session.decide(seen)
    if session.contract.bound(session.shape, "prompt_length") is None:
        pytest.skip("a policy whose prompts are embedded elsewhere")
    none = {"prompt_length": np.zeros(session.contract.input("prompt_length").shape, np.int32)}
    if policy == "groot_n17":
        with pytest.raises(InputError, match=r"input 'prompt_length': expected 1\.\.\d+, got 0$"):
            session.write(none)
    else:
        session.write(none)
    assert np.isfinite(session.decide(observation(session, 2)).raw).all()
