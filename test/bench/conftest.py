"""A bench whose GPU work is as if done."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flashrt_core.bench import command
from flashrt_core.load import LoadOptions
from test.bench.test_bench import line


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a GPU, as if done."""

    def bench(plan: LoadOptions) -> SimpleNamespace:
        return SimpleNamespace(plan=plan, library="abc", gpu={}, close=lambda: None)

    monkeypatch.setattr(command, "Bench", bench)
    monkeypatch.setattr(command, "check_loadable", lambda options: None)
    monkeypatch.setattr(command, "_measure", lambda b, o, cases: [line(c, False) for c in cases])
    monkeypatch.setattr(command, "require_lerobot", lambda policy: "0.6.1")
