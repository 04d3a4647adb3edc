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
    with pytest.raises(InputError, match=rf"input '{name}': expected 0\.\.\d+, got {value}$"):
        session.write({name: wrong})
    again = session.act().raw
    assert again.shape == expected.shape and np.isfinite(again).all(), "what was kept still counts"
