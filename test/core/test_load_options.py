"""Options of load and of sessions: a wrong type or range is one line, before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.devices.overlap import DEFAULT
from flashrt_core.engine import Engine
from flashrt_core.errors import CapsuleError, FlashRTError, InputError, OptionError, SessionError
from flashrt_core.load import LoadOptions, configuration, describe, load, qualifier
from flashrt_core.load_options import (
    OPTIONS_OF_SOME,
    calibrate_command,
    checked,
    parse_settings,
    settings_of,
)
from flashrt_core.policies import REGISTRY, find_policy
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from . import toy

WHOLE = "expected a whole number, got "
REFUSED: list[tuple[str, Any, str]] = [
    *((name, value, WHOLE) for name in ("max_sessions", "capsule_slots", "threads", "seed",
      "camera_bytes") for value in ("3", 1.5, None, True, [1])),
    *((name, value, WHOLE) for name in ("state_dim", "action_dim", "horizon", "steps")
      for value in ("3", 1.5, True)),
    ("max_sessions", 0, "a whole number >= 1 and at most 64, got 0"),
    ("max_sessions", 65, "a whole number >= 1 and at most 64, got 65"),
    ("working_sets", 5, "expected at most 4, the sessions that may exist"),
    ("capsule_slots", -1, ">= 0 and at most 1024, got -1"),
    *((name, value, f"at most 1024, got {value}") for name in ("capsule_slots", "host_slots")
      for value in (1025, 10**9)),
    ("threads", -1, ">= 0 and at most 1024, got -1"),
    ("threads", 2**40, "at most 1024"),
    ("seed", -1, "a whole number >= 0 and at most 18446744073709551615, got -1"),
    ("seed", 2**64, "got 18446744073709551616"),
    ("camera_bytes", -1, ">= 0, got -1"),
    ("state_dim", -1, ">= 0"),
    *(("views", value, "a list of names of views, got ") for value in (5, "base_0_rgb")),
    ("views", (5,), "entry 0: expected text, got 5"),
    ("views", (), "at least one of"),
    *(("delta_actions", value, "a list of true or false, one an action, got ")
      for value in (5, "x", True)),
    ("delta_actions", (True, 1), "entry 1: expected true or false, got 1 .int."),
    *(("extra", value, "expected a mapping, got ") for value in (None, 5, "x", [("steps", 1)])),
    ("extra", {5: 1}, "key: expected text, got 5"),
    *(("prompt_buckets", value, "a list of whole numbers, got ") for value in (32, "32")),
    ("prompt_buckets", (32.0,), "entry 0: expected a whole number, got 32.0"),
    *((name, value, "expected text, got ") for name in ("policy", "preset", "device", "numerics",
      "prompt") for value in (None, 5, ["x"])),
    *((name, 5, "expected a path, got 5") for name in ("calibration", "norm_stats", "tokenizer")),
    ("precision", None, "the name of a plan or a path, got None"),
    *(("overlap", value, "on, off, or classes of boundaries, got ") for value in (None, 5, ["on"])),
    ("overlap", "", "on, off, or stages and kernel and product"),
    ("overlap", "on+off", "on, off, or stages"),
    ("overlap", "junk", "or of .'prompt', 'context', 'action', 'kernel', 'product'., got .'junk'"),
    ("overlap", "action+junk", "got .'junk'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "said"), REFUSED, ids=[f"{n}-{v!r}"[:40] for n, v, _ in REFUSED]
)
def test_wrong_options_are_one_line(name: str, value: Any, said: str) -> None:
    options = replace(LoadOptions(), **{name: value})
    for use in (load, describe, configuration, qualifier):
        with pytest.raises(OptionError, match=f"^option '{name}'.*{said}") as error:
            use(options)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [None, 5, "tiny", {"policy": "pi05"}])
def test_what_is_no_options(value: Any) -> None:
    with pytest.raises(OptionError, match="^options: expected LoadOptions, got "):
        load(value)


def test_every_option_is_checked_and_has_its_type_afterwards() -> None:
    given = LoadOptions(
        views=["left_wrist_0_rgb"],
        state_dim=np.int64(3),
        action_dim=np.uint8(2),
        delta_actions=np.array([True, False]),
        horizon=np.int32(4),
        steps=np.int64(2),
        prompt_buckets=np.array([32, 64]),
        seed=np.uint64(2**64 - 1),
        camera_bytes=np.int64(3 * 56 * 56),
        threads=np.int64(1),
        checkpoint=Path("nowhere"),
    )
    found = checked(given)
    assert found == LoadOptions(
        views=("left_wrist_0_rgb",),
        state_dim=3,
        action_dim=2,
        delta_actions=(True, False),
        horizon=4,
        steps=2,
        prompt_buckets=(32, 64),
        seed=2**64 - 1,
        camera_bytes=9408,
        threads=1,
        checkpoint=Path("nowhere"),
    )
    assert all(type(n) is int for n in (found.seed, found.camera_bytes, *found.prompt_buckets))
    assert checked(found) == found and checked(LoadOptions()) == LoadOptions()
    for each in fields(LoadOptions):
        if each.name != "checkpoint":
            with pytest.raises(OptionError, match=f"'{each.name}'"):
                checked(replace(LoadOptions(), **{each.name: object()}))
    session = load(replace(given, checkpoint="random:0"))
    session.set_prompt("go")
    seen = Observation({"left_wrist_0_rgb": np.zeros((9, 9, 3), np.uint8)}, np.zeros(3))
    assert session.decide(seen).actions.shape == (4, 2)
    session.engine.close()


@pytest.mark.parametrize("overlap", ["on", "off", True, False, "context+kernel", "action", DEFAULT])
def test_overlaps_that_are_some(overlap: str | bool) -> None:
    assert describe(LoadOptions(overlap=overlap)).missing is None


class TestSessions:
    @pytest.fixture
    def engine(self) -> Engine:
        return toy.engine()

    @pytest.fixture
    def main(self, engine: Engine) -> Session:
        return engine.create_session("main", prompt="ab")

    @pytest.mark.parametrize(
        "seed", [-1, 2**64, 2**128, 1.5, "x", None, True, np.True_, [1], np.float32(1)]
    )
    def test_seeds(self, engine: Engine, seed: Any) -> None:
        with pytest.raises(
            InputError,
            match=r"^seed: expected a (whole number|number of 0\.\.184467)",
        ):
            engine.create_session("s", seed=seed)
        assert not engine.sessions, "no half a session stays behind"

    def test_the_largest_seed(self, engine: Engine) -> None:
        noise = []
        for name, seed in (("a", 2**64 - 1), ("b", np.uint64(2**64 - 1)), ("c", 0)):
            session = engine.create_session(name, seed=seed, prompt="ab")
            noise.append(session.decide(toy.see(1)).raw)
        assert np.array_equal(noise[0], noise[1]) and not np.array_equal(noise[0], noise[2])

    @pytest.mark.parametrize("prompt", [None, 0, 5, "too long for it", " "])
    def test_a_wrong_prompt_makes_no_session(self, engine: Engine, prompt: Any) -> None:
        with pytest.raises(InputError, match="^prompt: "):
            engine.create_session("s", prompt=prompt)
        assert not engine.sessions

    @pytest.mark.parametrize(
        ("call", "kind", "said"),
        [
            (
                lambda s: s.engine.create_session(None),
                SessionError,
                "expected text, got None",
            ),
            (lambda s: s.engine.create_session(["x"]), SessionError, "expected text"),
            (lambda s: s.engine.session(["x"]), SessionError, "no such session"),
            (lambda s: s.engine.drop_session(None), SessionError, "no such session"),
            (lambda s: s.engine.fork(5, source="main"), SessionError, "expected text, got 5"),
            (lambda s: s.engine.fork("f", source=["x"]), SessionError, "no such session"),
            (lambda s: s.engine.fork("f", capsule=["x"]), CapsuleError, "no such capsule"),
            (lambda s: s.snapshot(None), CapsuleError, "capsule name: expected text, got None"),
            (lambda s: s.snapshot(["x"]), CapsuleError, "capsule name: expected text"),
            (lambda s: s.restore(None), CapsuleError, "no such capsule"),
            (lambda s: s.restore(["x"]), CapsuleError, "no such capsule"),
            (lambda s: s.engine.store.drop({}), CapsuleError, "no such capsule"),
            (lambda s: s.decide({}), InputError, "expected an Observation, got dict"),
            (lambda s: s.observe(None), InputError, "expected an Observation, got NoneType"),
            (lambda s: s.decide(noise="x"), InputError, "input 'noise'"),
            (lambda s: s.decide(noise=[[1.0], [1.0, 2.0]]), InputError, "expected an array"),
            (lambda s: s.write(None), InputError, "a mapping of inputs to arrays"),
            (lambda s: s.write({"image": [[1], [1, 2]]}), InputError, "'image': expected an array"),
        ],
    )
    def test_arguments_of_other_types(
        self, main: Session, call: Callable[[Session], object], kind: type[FlashRTError], said: str
    ) -> None:
        before = main.decide(toy.see(1))
        with pytest.raises(kind, match=said) as error:
            call(main)
        assert "\n" not in str(error.value)
        assert main.act(noise=np.zeros((2, 3), np.float32)).index == before.index + 1
        assert list(main.engine.sessions) == ["main"]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Observation(None), "images: expected a mapping of views to images, got NoneType"),
        (Observation([np.zeros((4, 4, 3), np.uint8)]), "images: expected a mapping"),
        (Observation({5: None, "x": None}), "image 5: expected one of the views"),
        (Observation({"base_0_rgb": [[1], [1, 2]]}), "image 'base_0_rgb': expected an array"),
        (Observation({"base_0_rgb": None}), "image 'base_0_rgb': expected .Y, X, 3. uint8"),
        (Observation({"base_0_rgb": np.zeros((4, 4, 3), np.uint8)}, [[1], [1, 2]]), "state: "),
        (Observation({"base_0_rgb": np.zeros((4, 4, 3), np.uint8)}, "x"), "state: "),
        (Observation({"base_0_rgb": np.zeros((4, 4, 3), np.uint8)}, np.zeros(7), None), "stamp_ns"),
    ],
)
def test_observations_of_other_types(seen: Observation, said: str) -> None:
    session = load(LoadOptions(views=("base_0_rgb",), prompt="go", threads=1))
    with pytest.raises(InputError, match=said) as error:
        session.decide(seen)
    assert "\n" not in str(error.value)
    session.engine.close()


def test_settings_are_values_of_the_configuration() -> None:
    texts = ["channels=0,2, 4", "tee = 1", "guidance=-1.5e-1", "flag=true", "one=3,", "name=a.b"]
    found = parse_settings([*texts, "tee=0"])
    assert found == {
        "channels": (0, 2, 4),
        "tee": 0,
        "guidance": -0.15,
        "flag": True,
        "one": (3,),
        "name": "a.b",
    }
    assert parse_settings(settings_of(found)) == found
    for wrong in ("channels", "=3", "tee=", "a b=3"):
        with pytest.raises(OptionError, match="option 'settings': expected name=value of the"):
            parse_settings([wrong])
    command = calibrate_command(LoadOptions(extra={"tee": 1, "embodiment": 2}))
    assert "--set tee=1" in command and "--set embodiment" not in command


@pytest.mark.parametrize("name", REGISTRY)
def test_an_option_that_a_policy_lacks_is_named_and_no_size_of_its_network(name: str) -> None:
    policy = find_policy(name)
    known = {each.name for each in fields(policy.config("tiny"))}
    given = {"numerics": "exact", "camera_bytes": 9, "state_in_prompt": False, "embodiment": 1}
    assert given.keys() == OPTIONS_OF_SOME.keys()
    for option in given.keys() - known:
        whole = {option: given[option]}
        asked = whole if hasattr(LoadOptions, option) else {"extra": whole}
        with pytest.raises(OptionError) as told:
            configuration(LoadOptions(policy=name, **asked))
        assert str(told.value) == (
            f"option '{option}': expected nothing: policy '{name}' has none, got {given[option]}; "
            f"{OPTIONS_OF_SOME[option]}"
        )
