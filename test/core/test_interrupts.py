"""An interrupt at any point leaves what was there, or nothing that anybody decides on.

A call is cut short at each of its lines in turn: what Python lets a signal do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import flashrt_core
from flashrt_core.drawing import noise_for
from flashrt_core.errors import CapsuleError, StaleStateError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from . import toy

HERE = str(Path(flashrt_core.__file__).parent)
OLD, NEW = "ab", "b"


def seen(value: int) -> Observation:
    """Picture, state, stamp and the stamps of the parts all tell ``value``."""
    state = np.full(3, value, np.float32)
    parts = {"camera": value, "joints": value - 1}
    return Observation(toy.see(value).images, state, stamp_ns=value, stamps_ns=parts)


class Cut:
    """Raises KeyboardInterrupt before the ``n``-th line of the package; a trace function."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        if event == "line" or (event == "return" and not frame.f_code.co_flags & CO_GENERATOR):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def cut_everywhere(
    prepare: Callable[[], Session], call: Callable[[Session], Any], each: int = 1
) -> Iterator[Session]:
    """A session for every line of ``call``, or every so many, which was cut short there."""
    point = 0
    while True:
        point += each
        session, before = prepare(), sys.gettrace()
        sys.settrace(Cut(point))
        try:
            call(session)
        except KeyboardInterrupt:
            sys.settrace(before)
            yield session
            continue
        finally:
            sys.settrace(before)
        break
    assert point > 20, "nothing of the call was cut"


def told(session: Session, make: Callable[[], Any]) -> int | None:
    """What a decision was made of, None where it is refused; all of it tells the same."""
    index = session.decisions
    try:
        decision = make()
    except StaleStateError:
        return None
    value, host = decision.stamp_ns, session.host_state()
    wanted = toy.expected(value, session.prompt, noise_for(7, index, (2, 3)))
    assert np.allclose(decision.raw, wanted), f"not of {value} with prompt {session.prompt!r}"
    assert decision.stamps_ns == {"camera": value, "joints": value - 1}
    assert host.stamp_ns == value and host.stamps_ns == decision.stamps_ns
    assert host.robot_state is not None and (host.robot_state == value).all()
    return int(value)


@pytest.fixture
def session() -> Session:
    session = toy.engine(max_sessions=2).create_session("main", seed=7, prompt=OLD)
    session.decide(seen(3))
    return session


def test_half_an_observation(session: Session) -> None:
    def prepare() -> Session:
        session.set_prompt(OLD)
        session.decide(seen(3))
        return session

    outcomes = []
    for cut in cut_everywhere(prepare, lambda cut: cut.observe(seen(5))):
        outcomes.append(told(cut, cut.decide))
        cut.observe(seen(5))
        assert told(cut, cut.decide) == 5
    assert set(outcomes) <= {None, 3, 5} and {None, 3} <= set(outcomes)


def test_half_an_observation_with_a_new_prompt(session: Session) -> None:
    def prepare() -> Session:
        session.set_prompt(OLD)
        session.decide(seen(3))
        session.set_prompt(NEW)
        return session

    for cut in cut_everywhere(prepare, lambda cut: cut.observe(seen(5))):
        with pytest.raises(StaleStateError):
            cut.act()
        assert told(cut, cut.decide) in (None, 5)
        cut.observe(seen(5))
        assert told(cut, cut.decide) == 5


def test_half_of_the_windows(session: Session) -> None:
    def prepare() -> Session:
        session.decide(seen(3))
        return session

    windows = {"image": toy.see(5).images[toy.VIEW], "tokens": np.array([98, 0, 0, 0], np.int32)}
    for cut in cut_everywhere(prepare, lambda cut: cut.write(windows)):
        index, prompts = cut.decisions, {3: OLD, 5: NEW}
        try:
            raw = cut.decide().raw
        except StaleStateError:
            continue
        wanted = [toy.expected(v, p, noise_for(7, index, (2, 3))) for v, p in prompts.items()]
        assert any(np.allclose(raw, each) for each in wanted), "both or none"


def test_half_a_new_prompt(session: Session) -> None:
    def prepare() -> Session:
        session.set_prompt(OLD)
        session.decide(seen(3))
        return session

    for cut in cut_everywhere(prepare, lambda cut: cut.set_prompt(NEW)):
        if cut.prompt == NEW:
            assert told(cut, cut.act) is None, "it would be the old prompt's"
            cut.snapshot("mark")
            cut.restore("mark")
            assert told(cut, cut.act) is None
        else:
            assert told(cut, cut.act) in (None, 3)
        cut.set_prompt(NEW)
        assert cut.prompt == NEW and told(cut, cut.act) is None
        assert told(cut, lambda cut=cut: cut.decide(seen(4))) == 4


@pytest.mark.parametrize("parked", [False, True])
def test_half_a_restore(session: Session, parked: bool) -> None:
    session.snapshot("mark")
    other = session.engine.create_session("other", prompt="q") if parked else None

    def prepare() -> Session:
        session.decide(seen(9))
        if other is not None:
            other.decide(seen(6))
        return session

    for cut in cut_everywhere(prepare, lambda cut: cut.restore("mark")):
        assert told(cut, cut.act) in (None, 3, 9)
        assert told(cut, cut.decide) in (None, 9)
        cut.restore("mark")
        assert told(cut, cut.act) == 3


def test_half_a_decision(session: Session) -> None:
    def prepare() -> Session:
        session.decide(seen(3))
        return session

    for cut in cut_everywhere(prepare, lambda cut: cut.decide(seen(5))):
        assert told(cut, cut.act) in (None, 3, 5)
        assert told(cut, cut.decide) in (None, 3, 5)
        try:
            cut.snapshot("mark")
        except CapsuleError:
            continue
        cut.restore("mark")
        assert told(cut, cut.act) in (None, 3, 5)
        cut.engine.store.drop("mark")
