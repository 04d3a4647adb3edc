"""The soak's own judgement, and the soak itself on the CPU."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import soak


def held(**changes: object) -> soak.Soak:
    """A soak in which everything held, but for ``changes``."""
    good = soak.Soak(
        10, [1 << 30] * 3, [5 << 30] * 3, np.full(10, 0.5), 3, 0, Counter({"cuGraphLaunch": 10})
    )
    for name, value in changes.items():
        setattr(good, name, value)
    return good


def test_nothing_is_said_of_what_held() -> None:
    assert held().failures() == []
    assert held().to_json()["replay_ms"]["max"] == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"different": 1}, "1 of 3 repeats"),
        ({"device": [5, 5, 6]}, "device memory: grew by 1 bytes"),
        ({"host": [0, 0, 3 << 20]}, "host memory: grew"),
        ({"calls": Counter({"cuGraphLaunch": 9, "cuMemAlloc": 1})}, r"got \['cuMemAlloc'\]"),
    ],
)
def test_what_did_not_hold_is_said(changes: dict[str, object], message: str) -> None:
    (line,) = held(**changes).failures()
    assert re.search(message, line)


@pytest.mark.slow
def test_a_short_soak_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_WARM_UP", 20)
    session = soak.open_session("tiny", "cpu", "fp32")
    try:
        result = soak.soak(session, 60, checks=3)
    finally:
        session.engine.close()
    assert result.failures() == []
    assert (result.decisions, result.repeats, len(result.host)) == (60, 3, 4)
