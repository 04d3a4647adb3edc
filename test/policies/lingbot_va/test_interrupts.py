"""An interrupt in a decision that builds on others: what is remembered does not count."""

from __future__ import annotations

from typing import Any

import pytest

from flashrt_core.errors import StaleStateError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

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
