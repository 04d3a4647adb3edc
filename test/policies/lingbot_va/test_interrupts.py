"""Interrupts where decisions build on others: what is remembered or half seen does not count."""

from __future__ import annotations

from typing import Any

import pytest

from flashrt_core.errors import InputError, StaleStateError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from test.core.test_interrupts import cut_everywhere

from .test_sessions import go_on, main, pictures, raws

__all__ = ["main"]


@pytest.mark.parametrize("where", ["in the replay", "behind it"])
def test_an_episode_does_not_go_on_behind_an_interrupt(
    main: Session, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(main, 1)
    main.snapshot("end")
    expected = raws(go_on(main, 1))
    main.restore("end")

    def interrupts(*_args: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    device = main.engine.device
    with monkeypatch.context() as patch:
        patch.setattr(device, "replay" if where == "in the replay" else "read", interrupts)
        with pytest.raises(KeyboardInterrupt):
            go_on(main, 1)
    assert main.turn == 1 and not main.intact
    with pytest.raises(StaleStateError, match="restart"):
        main.decide(Observation(pictures(0, 2, 1)[0]))
    main.restore("end")
    assert raws(go_on(main, 1)) == expected


def test_half_an_observation(main: Session) -> None:
    """The windows of the decision before are still whole: they are not what is decided on."""
    history = main.contract.history
    assert history is not None
    *before, last = pictures(5, 1, history.pictures[history.variant(1)])
    seen = Observation(last, stamp_ns=9)

    def prepare() -> Session:
        main.restart()
        go_on(main, 1)
        for images in before:
            main.record(images)
        return main

    refused = 0
    for cut in cut_everywhere(prepare, lambda cut: cut.observe(seen), each=23):
        try:
            decision = cut.decide()
        except (InputError, StaleStateError):
            refused += 1
            decision = cut.decide(seen)
        assert decision.stamp_ns == 9 and cut.turn == 2
    assert refused > 10
