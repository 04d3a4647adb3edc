"""A camera that an observation lacks is masked: as if the plan had never had it, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_core.errors import InputError, OptionError
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import NOISE, Session, noise_for

BASE, WRIST = "base_0_rgb", "left_wrist_0_rgb"
RNG = np.random.default_rng(3)
IMAGES = {view: RNG.integers(0, 256, (40, 60, 3), np.uint8) for view in (BASE, WRIST)}
STATE = np.linspace(-0.5, 0.5, 7, dtype=np.float32)


def session(views: tuple[str, ...], **changes: object) -> Session:
    options = {"prompt": "stack the blocks", "threads": 1, "steps": 2, "capsule_slots": 1}
    return load(LoadOptions(views=views, **(options | changes)))


def observation(*views: str) -> Observation:
    return Observation({view: IMAGES[view] for view in views}, STATE, 5)


def raw(session: Session, *views: str) -> bytes:
    noise = noise_for(0, 0, session.contract.input(NOISE).shape)
    return session.decide(observation(*views), noise=noise).raw.tobytes()


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16"}, {"camera_bytes": 1 << 16}])
def test_what_is_absent_is_as_if_it_had_never_been(changes: dict[str, object]) -> None:
    both = session((BASE, WRIST), absent_views=1, **changes)
    whole = raw(session((BASE, WRIST), **changes), BASE, WRIST)
    alone = {view: raw(session((view,), **changes), view) for view in (BASE, WRIST)}
    assert len({whole, *alone.values()}) == 3, "the cameras see different things"
    for _ in range(2):  # coming and going
        assert raw(both, BASE, WRIST) == whole
        assert raw(both, WRIST) == alone[WRIST]
        assert raw(both, BASE) == alone[BASE]


def test_a_capsule_of_a_masked_decision_comes_back() -> None:
    both = session((BASE, WRIST), absent_views=1)
    noise = noise_for(0, 0, both.contract.input(NOISE).shape)
    before = raw(both, WRIST)
    both.snapshot("masked")
    assert raw(both, BASE, WRIST) != before
    both.restore("masked")
    assert both.act(noise=noise).raw.tobytes() == before


def test_no_more_may_lack_than_was_said() -> None:
    with pytest.raises(InputError, match="image 'base_0_rgb': expected"):
        session((BASE, WRIST)).observe(observation(WRIST))
    with pytest.raises(InputError, match="image 'base_0_rgb': expected"):
        session((BASE, WRIST), absent_views=1).observe(observation())
    with pytest.raises(OptionError, match="'absent_views': expected at most 1 of 2 views, got 2"):
        session((BASE, WRIST), absent_views=2)
