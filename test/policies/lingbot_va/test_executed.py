"""Rows that were executed belong to the observation behind them."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_core.errors import InputError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from .test_sessions import go_on, main, pictures

__all__ = ["main"]


@pytest.mark.parametrize("observed", [False, True])
def test_rows_without_an_observation_are_refused(main: Session, observed: bool) -> None:
    """They would come too late: the windows of the decision are written."""
    go_on(main, 2)
    rows = np.asarray(main.chunk()) + np.float32(0.05)
    *way, last = pictures(0, 2, 8)
    main.snapshot("end")
    found = []
    for told in (None, rows, np.full((1, 1), np.nan)):
        main.restore("end")
        for images in way:
            main.record(images)
        if observed:
            main.observe(Observation(last), executed=rows)
        if told is not None:
            with pytest.raises(InputError, match="executed rows: expected none without an obs"):
                main.decide(executed=told)
        seen = None if observed else Observation(last)
        found.append(main.decide(seen, executed=None if observed else rows).raw)
    assert all(np.array_equal(found[0], raw) for raw in found), "nothing of it was lost"
