"""Files with a checksum that fits, which say what no session would take, are not taken in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.contract import DType, Role, ShapeKey, Update
from flashrt_core.errors import CapsuleError
from flashrt_core.load import LoadOptions, configuration, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from test.core.capsules import refused, signed, taken_apart

from .small import observation as small_observation
from .small import tiny

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
    assert store.read_file(tmp_path / "last", replace=True).decision == LAST
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
        store.read_file(tmp_path / "file", replace=True)
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
        assert store.read_file(tmp_path / "file", replace=True).stamp_ns == stamp
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


def part(document: Document, name: str) -> Document:
    """The row of a region, or of a staged input, in a header's table."""
    rows = [row for row in (*document["regions"], *document["arrays"]) if row["name"] == name]
    assert len(rows) == 1
    return rows[0]


#: Of every policy: numbers that stages take for counts, places and indices, and where they may lie,
#: by the sizes of the plan: bucket, image rows and vocabulary.
NUMBERS = {
    "pi05": {
        "prompt_tokens": lambda bucket, images, vocab: range(vocab),
        "prompt_length": lambda bucket, images, vocab: range(bucket + 1),
        "prefix_length": lambda bucket, images, vocab: range(images, images + bucket + 1),
    },
    "groot_n17": {
        "prompt_tokens": lambda bucket, images, vocab: range(vocab),
        "prompt_length": lambda bucket, images, vocab: range(1, bucket + 1),
        "text_length": lambda bucket, images, vocab: range(bucket + 1),
        "context_length": lambda bucket, images, vocab: range(images, images + bucket + 1),
    },
    "lingbot_va": {
        "prompt_lengths": lambda bucket, images, vocab: range(bucket),
        "holders": lambda bucket, images, vocab: range(-1, 1 << 30),
        "kinds": lambda bucket, images, vocab: range(2),
        "frame": lambda bucket, images, vocab: range(1 << 30),
    },
}


@pytest.fixture(scope="module", params=NUMBERS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A session of every policy with "mark", and its file."""
    session = tiny(request.param, steps=1, prompt="pick up the cup", capsule_slots=2)
    session.decide(small_observation(session, 1))
    session.snapshot("mark")
    path = tmp_path_factory.mktemp("mark") / "file"
    session.engine.store.write_file("mark", path)
    return session, path


def sizes(session: Session) -> tuple[int, int, int]:
    """Bucket, image rows and vocabulary of a tiny plan."""
    options = LoadOptions(policy=session.contract.policy, preset="tiny", steps=1)
    config, shape = configuration(options)[1], session.shape
    assert shape is not None
    images = shape.views * getattr(config, "view_tokens", 0)
    return shape.prompt_tokens, images, getattr(config, "vocab", 0)


def test_numbers_that_stages_do_not_look_at(saved: Any, tmp_path: Path) -> None:
    session, path = saved
    document, payload = taken_apart(path.read_bytes())
    policy = session.contract.policy
    for name, allowed_of in NUMBERS[policy].items():
        allowed = allowed_of(*sizes(session))
        row = part(document, name)
        first, last = row["offset"], row["offset"] + row["nbytes"] - 4
        for place in (first, last):
            for value in (allowed[0] - 1, allowed[-1] + 1, -(1 << 31), (1 << 31) - 1):
                changed = bytearray(payload)
                changed[place : place + 4] = np.int32(value).tobytes()
                (tmp_path / "file").write_bytes(signed(document, bytes(changed)))
                said = refused(session, tmp_path / "file", "c")
                assert f"{name!r} of {allowed[0]}..{allowed[-1]}, got {value}" in said
        for value in (allowed[0], allowed[-1]):
            changed = bytearray(payload)
            changed[first : first + 4] = np.int32(value).tobytes()
            (tmp_path / "file").write_bytes(signed(document, bytes(changed)))
            session.engine.store.read_file(tmp_path / "file", "c")
            session.engine.store.drop("c")
    whole = {
        spec.name
        for spec in session.contract.buffers
        if spec.dtype is DType.I32 and spec.role is Role.STATE
    } | {
        spec.name
        for spec in session.contract.inputs
        if spec.dtype is DType.I32 and spec.update is Update.STAGED
    }
    assert whole == NUMBERS[policy].keys(), "no other whole numbers are in a capsule"


def test_staged_inputs_come_together(saved: Any, tmp_path: Path) -> None:
    session, path = saved
    document, payload = taken_apart(path.read_bytes())
    staged = [row["name"] for row in document["arrays"] if row["role"] == "staged"]
    assert len(staged) == 2
    for left in staged:
        kept, arrays, end = bytearray(), [], part(document, staged[0])["offset"]
        for row in document["arrays"]:
            if row["name"] != left:
                begin = row["offset"]
                kept += payload[begin : begin + row["nbytes"]]
                arrays.append(row | {"offset": end})
                end += row["nbytes"]
        whole = payload[: part(document, staged[0])["offset"]] + bytes(kept)
        (tmp_path / "file").write_bytes(signed(document | {"arrays": arrays}, whole))
        assert f"staged together, of {sorted(staged)}, or none" in refused(
            session, tmp_path / "file", "c"
        )


def test_a_host_that_stages_one_by_one_writes_none(saved: Any, tmp_path: Path) -> None:
    """Its own windows: what they made is kept, and the next observation makes it again."""
    session, _ = saved
    host = session.host_state()
    names = list(host.staged)
    only = {names[0]: host.staged[names[0]]}
    held = session.engine.store.find("mark")
    before = held.host
    held.host = replace(before, staged=only)
    session.engine.store.write_file("mark", tmp_path / "file")
    held.host = before
    document, _ = taken_apart((tmp_path / "file").read_bytes())
    assert [row["role"] for row in document["arrays"]].count("staged") == 0
    session.engine.store.read_file(tmp_path / "file", "c")
    branch = session.engine.fork("branch", capsule="c")
    other = session.engine.fork("other", capsule="mark")
    if session.contract.history is None:
        assert branch.act().raw.tobytes() == other.act().raw.tobytes()
        seen = small_observation(session, 2)
        assert branch.decide(seen).raw.tobytes() == other.decide(seen).raw.tobytes()
    for name in ("branch", "other"):
        session.engine.drop_session(name)
    session.engine.store.drop("c")


def test_a_field_that_comes_twice(saved: Any, tmp_path: Path) -> None:
    """Every reader would believe another one."""
    session, path = saved
    document, payload = taken_apart(path.read_bytes())
    header = json.dumps(document).encode()
    twice = [
        (b'{"name": ', b'{"prompt": "dup", "name": '),
        (b'"lineage": {', b'"lineage": {"action": {}, '),
        (b'"fingerprint": {', b'"fingerprint": {"weights": "x", '),
    ]
    for before, after in twice:
        changed = header.replace(before, after, 1)
        assert changed != header
        (tmp_path / "file").write_bytes(signed(changed, payload))
        assert "comes twice" in refused(session, tmp_path / "file", "c")


def test_a_file_that_nobody_would_take_is_not_written(saved: Any, tmp_path: Path) -> None:
    """A host that writes windows on its own may write any length."""
    session, _ = saved
    name, allowed_of = next(
        (name, found)
        for name, found in NUMBERS[session.contract.policy].items()
        if "length" in name
    )
    held = session.engine.store.find("mark")
    before = held.host
    wrong = {**before.staged, name: np.full_like(before.staged[name], 10**6)}
    held.host, allowed = replace(before, staged=wrong), allowed_of(*sizes(session))
    try:
        with pytest.raises(CapsuleError, match=f"'{name}' of {allowed[0]}..{allowed[-1]}"):
            session.engine.store.write_file("mark", tmp_path / "file")
    finally:
        held.host = before
    assert not (tmp_path / "file").exists()
