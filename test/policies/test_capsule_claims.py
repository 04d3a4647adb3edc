"""Files with a checksum that fits, which say what no session would take, are not taken in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.contract import ShapeKey
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from test.core.capsules import refused, signed, taken_apart

Document = dict[str, Any]
LAST = (1 << 48) - 1  # decisions and epochs that a session may have


@pytest.fixture(scope="module")
def main() -> Session:
    """With actions that are relative to the state, and "mark" of a decision."""
    session = load(
        LoadOptions(
            prompt="pick up the cup",
            state_dim=3,
            action_dim=3,
            delta_actions=(True, False, True),
            steps=1,
            capsule_slots=2,
            threads=1,
        )
    )
    session.decide(observation(session))
    session.snapshot("mark")
    return session


def observation(session: Session, stamp_ns: int = 9) -> Observation:
    images = {view: np.full((8, 8, 3), 7, np.uint8) for view in session.processor.views}
    return Observation(images, np.full(3, 0.1, np.float32), stamp_ns)


@pytest.fixture
def files(main: Session, tmp_path: Path) -> Callable[..., Path]:
    """Makes a file of "mark" with another header, and perhaps another robot state."""
    main.engine.store.write_file("mark", tmp_path / "mark")
    document, payload = taken_apart((tmp_path / "mark").read_bytes())

    def make(change: Callable[[Document], Any], state: np.ndarray | None = None) -> Path:
        change(document)
        whole = payload
        row = document["arrays"][-1]
        assert row["role"] == "robot_state"
        if state is not None:
            row |= {"shape": list(state.shape), "dtype": state.dtype.str, "nbytes": state.nbytes}
            whole = payload[: row["offset"]] + state.tobytes()
        if document.pop("stateless", False):
            document["arrays"].pop()
            whole = payload[: row["offset"]]
        (tmp_path / "file").write_bytes(signed(document, whole))
        return tmp_path / "file"

    return make


def put(**values: Any) -> Callable[[Document], Any]:
    return lambda document: document.update(values)


def epochs(value: int) -> Callable[[Document], Any]:
    def change(document: Document) -> None:
        for made in document["lineage"].values():
            made.update(dict.fromkeys(made, value))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (epochs((1 << 63) - 1), f"whole number from 1, below {LAST + 1}"),
        (epochs(LAST + 1), f"whole number from 1, below {LAST + 1}"),
        (put(decisions=(1 << 63) - 1), "'decisions' of header is not a whole number from 0, "),
        (put(decisions=LAST + 1), f"below {LAST + 1}"),
        (put(prompt=" "), "prompt in capsule 'c': expected an instruction with at least one"),
        (put(prompt="a\0b"), "prompt in capsule 'c': expected no control characters"),
        (put(prompt="cup " * 100_000), "prompt in capsule 'c': expected at most"),
        (put(prompt="cup " * 200), "prompt in capsule 'c': expected at most"),
        (put(stateless=True), "state in capsule 'c': expected 3 numbers, got none"),
    ],
)
def test_of_a_header(
    main: Session, files: Callable[..., Path], change: Callable[[Document], Any], said: str
) -> None:
    assert said in refused(main, files(change), "c")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (np.zeros(2, np.float32), "expected [3] numbers, got [2] float32"),
        (np.zeros(4, np.float32), "expected [3] numbers, got [4] float32"),
        (np.zeros(0, np.float32), "expected [3] numbers, got [0] float32"),
        (np.zeros((3, 1), np.float32), "expected [3] numbers, got [3, 1] float32"),
        (np.zeros(3, bool), "expected [3] numbers, got [3] bool"),
        (np.float32([0, 3e38, 0]), "state[1] in capsule 'c': expected a number below 1e+30"),
        (np.float32([0, np.nan, 0]), "state[1] in capsule 'c': expected a finite number"),
    ],
)
def test_of_a_robot_state(
    main: Session, files: Callable[..., Path], state: np.ndarray, said: str
) -> None:
    assert said in refused(main, files(lambda document: None, state), "c")


def test_the_largest_that_is_taken_in_goes_on_and_into_a_file(
    main: Session, files: Callable[..., Path], tmp_path: Path
) -> None:
    """What a session has come to is what a file has room for: it says no where it is asked to."""
    store = main.engine.store
    store.read_file(files(put(decisions=LAST - 1)), "c")
    main.restore("c")
    assert main.act().index == LAST - 1
    main.snapshot("c")
    store.write_file("c", tmp_path / "last")
    assert store.read_file(tmp_path / "last").decision == LAST
    with pytest.raises(Exception, match=f"decision {LAST}: expected at most {LAST} decisions"):
        main.act()
    store.drop("c")
    main.restore("mark")


def test_whole_numbers_of_every_size_are_a_state(main: Session, tmp_path: Path) -> None:
    store = main.engine.store
    for kind in (np.uint8, np.uint16, np.int64, np.uint64, np.float16):
        plain = observation(main)
        main.decide(Observation(plain.images, np.ones(3, kind), 9))
        main.snapshot("c")
        store.write_file("c", tmp_path / "file")
        store.read_file(tmp_path / "file")
        main.restore("c")
        assert main.host_state().robot_state.dtype == kind
    store.drop("c")


@pytest.mark.parametrize("stamp", [1 << 63, 1 << 70, -(1 << 63) - 1])
def test_a_stamp_beyond_a_capsule_is_refused_at_once(main: Session, stamp: int) -> None:
    before = main.decisions
    with pytest.raises(Exception, match=r"stamp_ns: expected a number of -\d+\.\.\d+, got -?\d+"):
        main.decide(observation(main, stamp))
    assert main.decisions == before


def test_the_first_and_the_last_stamp_go_into_a_file(main: Session, tmp_path: Path) -> None:
    store = main.engine.store
    for stamp in (-(1 << 63), (1 << 63) - 1):
        main.decide(observation(main, stamp))
        main.snapshot("c")
        store.write_file("c", tmp_path / "file")
        assert store.read_file(tmp_path / "file").stamp_ns == stamp
    store.drop("c")


def test_windows_of_a_host_have_no_text_and_no_state(
    main: Session, files: Callable[..., Path]
) -> None:
    """The C interface knows neither, and its capsules are files like others."""
    store = main.engine.store
    store.read_file(files(put(prompt="", stateless=True, stamp_ns=0)), "c")
    main.restore("c")
    assert main.prompt == "" and isinstance(main.shape, ShapeKey)
    main.restore("mark")
    store.drop("c")
