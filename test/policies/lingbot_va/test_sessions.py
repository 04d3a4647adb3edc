"""Sessions whose decisions build on each other: episodes, capsules of them, what is refused."""

from __future__ import annotations

import copy
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.decision import Decision
from flashrt_core.errors import (
    CapsuleError,
    ContractError,
    DeviceError,
    FlashRTError,
    InputError,
    NumericsError,
    SessionError,
    StaleStateError,
)
from flashrt_core.load import LoadOptions, load
from flashrt_core.past import Past
from flashrt_core.policies.base import Observation
from flashrt_core.policies.lingbot_va import POLICY
from flashrt_core.policies.lingbot_va.reference import Reference
from flashrt_core.session import Session
from flashrt_core.weights import open_weights
from test.core.capsules import refused, signed, taken_apart

VIEWS = ("view_0", "view_1")
OPTIONS = LoadOptions(
    policy="lingbot_va",
    preset="tiny",
    checkpoint="random:0",
    device="cpu",
    precision="fp32",
    views=VIEWS,
    prompt="pick up the cube",
    threads=1,
    steps=2,
    extra={"action_steps": 2},
    max_sessions=3,
    capsule_slots=4,
)


@pytest.fixture
def main() -> Iterator[Session]:
    session = load(OPTIONS)
    yield session
    session.engine.close()


def pictures(seed: int, turn: int, count: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    draw = np.random.default_rng([seed, turn])
    shape = (36, 44, 3)
    return [
        {view: draw.integers(0, 256, shape, dtype=np.uint8) for view in VIEWS} for _ in range(count)
    ]


def go_on(session: Session, turns: int, seed: int = 0, **options: Any) -> list[Decision]:
    """So many decisions; what is seen depends on the seed and the turn alone."""
    history, made = session.contract.history, []
    assert history is not None
    for _ in range(turns):
        turn = session.turn
        seen = pictures(seed, turn, history.pictures[history.variant(turn)])
        *before, last = [{view: each[view] for view in session.processor.views} for each in seen]
        for images in before:
            session.record(images)
        made.append(session.decide(Observation(last, stamp_ns=turn + 1), **options))
    return made


def raws(decisions: list[Decision]) -> list[bytes]:
    return [decision.raw.tobytes() for decision in decisions]


def spoil(session: Session, but: str = "-") -> None:
    """Garbage in everything that a session may have left in the buffers; ``but``: names' start."""
    for spec in session.contract.buffers:
        buffer = session.buffers[spec.name]
        if not spec.name.startswith(but) and spec.role.value in ("state", "scratch", "swap"):
            buffer.fill_(float("nan") if buffer.dtype.is_floating_point else 12345)


def test_an_episode_is_the_references(main: Session) -> None:
    config = POLICY.config("tiny", steps=2, action_steps=2)
    reference = Reference(config, open_weights("random:0", POLICY.tensors(config)), 2)
    side: Any = main.processor
    values = side.encode(Observation(pictures(0, 0, 1)[0]), main.prompt)
    n, m = values["prompt_lengths"]
    rows = values["prompt_rows"]
    reference.set_prompt(rows[0, 1 : 1 + n], rows[1, 1 : 1 + m])
    draw = np.random.default_rng(5)
    executed_raw, executed = None, None
    for turn in range(6):
        noise = {
            "noise": draw.standard_normal((config.horizon, config.action_dim), dtype=np.float32),
            "noise.video": draw.standard_normal(
                (config.video_tokens(2), config.token_width), dtype=np.float32
            ),
        }
        history = main.contract.history
        assert history is not None
        seen = pictures(0, turn, history.pictures[history.variant(turn)])
        frames = [
            np.stack([side.encode_pictures(each)[f"image.{view}"] for each in seen])
            for view in VIEWS
        ]
        decided = go_on(main, 1, noise=noise, executed=executed)[0]
        expected = reference.decide([unsquared(each) for each in frames], noise, executed_raw)
        wanted = expected.actions.numpy()
        used = list(config.channels)
        worst = np.abs(decided.raw[:, used] - wanted[:, used]).max()
        assert worst <= 5e-5 * np.abs(wanted).max()
        skip = config.frame_rows if turn == 0 else 0
        assert np.array_equal(decided.actions, decided.raw[skip:, used])
        executed, executed_raw = None, wanted.copy()
        if turn % 2:  # not quite what was decided
            executed = decided.actions + np.float32(0.25)
            executed_raw[skip:, used] = executed


def unsquared(cells: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    T, h, w, _ = cells.shape
    return cells.reshape(T, h, w, 3, 2, 2).transpose(0, 1, 5, 2, 4, 3).reshape(T, 2 * h, 2 * w, 3)


def test_another_instruction_in_the_middle_of_an_episode(main: Session) -> None:
    """Also one of another bucket: the past stays, its keys and values are those of the old one."""
    config = POLICY.config("tiny", steps=2, action_steps=2)
    reference = Reference(config, open_weights("random:0", POLICY.tensors(config)), 2)
    history, executed = main.contract.history, None
    assert history is not None
    side: Any = main.processor
    prompts = ("pick up the cube", "and now put it back where it was " * 2, "go")
    for turn, prompt in enumerate(prompts):
        main.set_prompt(prompt)
        seen = pictures(1, turn, history.pictures[turn])
        for images in seen[:-1]:
            main.record(images)
        main.observe(Observation(seen[-1]))
        noise = {
            spec.name: np.random.default_rng([turn, len(spec.name)])
            .standard_normal(spec.shape)
            .astype(np.float32)
            for spec in main.contract.inputs
            if spec.name.startswith("noise")
        }
        decided = main.decide(noise=noise)
        values = side.encode(Observation(seen[-1]), prompt)
        n, m = values["prompt_lengths"]
        reference.set_prompt(
            values["prompt_rows"][0, 1 : 1 + n], values["prompt_rows"][1, 1 : 1 + m]
        )
        frames = [
            unsquared(np.stack([side.encode_pictures(each)[f"image.{view}"] for each in seen]))
            for view in VIEWS
        ]
        wanted = reference.decide(frames, noise, executed).actions.numpy()
        used = list(config.channels)
        assert np.abs(decided.raw[:, used] - wanted[:, used]).max() <= 5e-5 * np.abs(wanted).max()
        executed = wanted
    assert {main.contract.shapes[0], main.contract.shapes[1]} >= {main.shape}


@pytest.mark.parametrize("before", [1, 2, 5, 7, 9])
def test_a_capsule_goes_on_to_the_bit_after_everything_was_overwritten(
    main: Session, before: int
) -> None:
    go_on(main, before)
    info = main.snapshot("here")
    expected = raws(go_on(main, 3))
    other = main.engine.create_session("other", seed=9, prompt="put it down")
    go_on(other, 8, seed=77)
    spoil(main)
    main.restore("here")
    assert main.turn == before
    assert raws(go_on(main, 3)) == expected
    assert info.nbytes <= main.contract.region_bytes()


def test_capsules_hold_what_is_real_of_the_pool(main: Session) -> None:
    sizes, contract = [], main.contract
    pool = contract.buffer("pool")
    row = pool.nbytes // pool.shape[3]
    for turn in range(6):
        go_on(main, 1)
        sizes.append(main.snapshot(f"{turn % 2}").nbytes)
    per_chunk = 12 * row  # tokens of a chunk, video and action
    assert np.diff(sizes).tolist() == [per_chunk, per_chunk, 0, 0, 0]
    # What the next decision takes as predictions of its own is no part of it.
    assert sizes[-1] == sum(region.nbytes for region in contract.regions_at(contract.shapes[0], 4))
    assert contract.region_bytes() > max(sizes)  # the longer bucket has more of a prompt


def test_a_fork_and_its_parent_decide_alike(main: Session) -> None:
    go_on(main, 4)
    fork = main.engine.fork("fork", source="main")
    assert (fork.turn, fork.prompt) == (4, main.prompt)
    expected = raws(go_on(main, 2))
    assert raws(go_on(fork, 2)) == expected
    main.snapshot("there")
    second = main.engine.fork("second", capsule="there")
    assert raws(go_on(second, 1)) == raws(go_on(main, 1))


def test_a_file_goes_on_elsewhere(main: Session, tmp_path: Path) -> None:
    go_on(main, 5)
    main.snapshot("there")
    main.engine.store.write_file("there", tmp_path / "c")
    expected = raws(go_on(main, 2))
    other = load(OPTIONS)
    other.engine.store.read_file(tmp_path / "c")
    go_on(other, 1, seed=3)
    spoil(other)
    other.restore("there")
    assert raws(go_on(other, 2)) == expected
    other.engine.close()


def test_a_file_whose_episode_fits_no_plan_is_refused(main: Session, tmp_path: Path) -> None:
    go_on(main, 2)
    main.snapshot("there")
    main.engine.store.write_file("there", tmp_path / "c")
    whole, payload = taken_apart((tmp_path / "c").read_bytes())
    main.engine.store.drop("there")
    at = next(n for n, each in enumerate(whole["arrays"]) if each["role"] == "raw")
    rows, columns = whole["arrays"][at]["shape"]
    assert (rows, columns) == (8, 30)
    for change, said in (
        (
            {"shape": [columns, rows]},
            f"[{rows}, {columns}] float32, finite, got [{columns}, {rows}",
        ),
        ({"shape": [rows * columns]}, f"finite, got [{rows * columns}] float32"),
        ({"dtype": "<i4"}, "finite, got [8, 30] int32"),
        ({"turn": 1 << 40}, "at most the session's 2 decisions in its episode, got 1099511627776"),
        ({"turn": 0}, "no actions of the decision before, of 0 in the episode, got others"),
    ):
        document = copy.deepcopy(whole)
        (document if "turn" in change else document["arrays"][at]).update(change)
        if change == {"turn": 0}:
            del document["turn"]
        (tmp_path / "c").write_bytes(signed(document, payload))
        assert said in refused(main, tmp_path / "c")


def test_a_new_episode_remembers_nothing(main: Session) -> None:
    noise = {
        spec.name: np.ones(spec.shape, np.float32)
        for spec in main.contract.inputs
        if spec.name.startswith("noise")
    }
    first = raws(go_on(main, 3, noise=noise))
    spoil(main, but="prompt")
    main.restart()
    assert raws(go_on(main, 3, noise=noise)) == first


def test_in_the_middle_of_a_chunk(main: Session) -> None:
    go_on(main, 2)
    main.snapshot("end")
    images = pictures(0, 2, 1)[0]
    main.record(images)
    with pytest.raises(CapsuleError, match="at the end of a chunk.*1 pictures of a chunk"):
        main.snapshot("middle")
    main.snapshot("middle", midway=True)
    fork = main.engine.fork("fork", source="main")  # it has seen that picture, too
    with pytest.raises(InputError, match=r"expected 8 of each camera, one every 1.*got 2") as told:
        main.decide(Observation(images))
    assert "\n" not in str(told.value)
    main.restore("end")  # what was seen of the chunk is given up with it
    expected = raws(go_on(main, 1))
    for name in ("end", "middle"):  # the same: a capsule holds what the decision left
        main.restore(name)
        assert raws(go_on(main, 1)) == expected
    with pytest.raises(InputError, match="got 2"):
        fork.decide(Observation(images))
    *rest, last = pictures(0, 2, 8)[1:]
    for seen in rest:
        fork.record(seen)
    assert raws([fork.decide(Observation(last, stamp_ns=3))]) == expected


def test_what_a_history_does_not_take(main: Session) -> None:
    images = pictures(0, 0, 1)[0]
    wrong: list[tuple[Any, type[FlashRTError], str]] = [
        (lambda: main.record(images), InputError, "one before the first decision"),
        (lambda: main.decide(), InputError, "what is seen where the chunk ends"),
        (lambda: main.decide(Observation(images), executed=np.zeros((8, 7))), InputError, "none"),
    ]
    for call, kind, said in wrong:
        with pytest.raises(kind, match=said):
            call()
    go_on(main, 2)
    for images in pictures(0, 2, 7):
        main.record(images)
    nan, far = np.zeros((8, 7)), np.zeros((8, 7))
    nan[3, 5], far[7, 0] = np.nan, 10.1
    wrong = [
        (lambda: main.record(images), InputError, "7 before the observation"),
        (lambda: main.act(), SessionError, "which has a history"),
        (lambda: main.run("video"), SessionError, "which has a history"),
        (lambda: main.export(), ContractError, "one with a history"),
        (lambda: main.decide(Observation(images), executed=np.zeros((7, 7))), InputError, "whole"),
        (lambda: main.decide(Observation(images), executed=np.zeros((8, 6))), InputError, "8, 7"),
        (lambda: main.decide(Observation(images), executed=nan), InputError, "nan in row 3, .* 5"),
        (lambda: main.decide(Observation(images), executed=far), InputError, "10.1 in row 7, .* 0"),
        (lambda: main.decide(Observation(images), noise={"x": np.zeros(1)}), InputError, "noise"),
    ]
    for call, kind, said in wrong:
        with pytest.raises(kind, match=said):
            call()
    main.decide(Observation(images), executed=np.zeros((8, 7)))  # nothing of it was lost


def test_what_was_done_as_decided_changes_no_bit(main: Session) -> None:
    go_on(main, 2)
    main.snapshot("end")
    expected = raws(go_on(main, 1))
    main.restore("end")
    assert raws(go_on(main, 1, executed=main.chunk())) == expected
    alone: Any = SimpleNamespace(history=None)
    with pytest.raises(InputError, match=r"got an array of shape \[10, 7\]"):
        Past(alone, main.processor).windows({}, main.host_state(), np.zeros((10, 7)))


def test_after_a_failure_an_episode_starts_again(
    main: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(main, 2)
    main.snapshot("end")
    expected = raws(go_on(main, 1))
    main.restore("end")

    def fails(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(main.engine.device, "replay", fails)
        with pytest.raises(DeviceError, match="lost"):
            go_on(main, 1)
    with pytest.raises(StaleStateError, match=r"restart\(\) for a new episode"):
        main.decide(Observation(pictures(0, 2, 1)[0]))
    main.restore("end")
    assert raws(go_on(main, 1)) == expected


def test_actions_that_are_not_finite_end_an_episode(main: Session) -> None:
    """The past has that decision in it; another one on top would count it twice."""
    go_on(main, 2)
    weight = main.buffers["net.action_out_bias"]
    before = weight.clone()
    weight.fill_(float("nan"))
    with pytest.raises(NumericsError, match="expected finite values"):
        go_on(main, 1)
    weight.copy_(before)
    assert not main.intact and main.turn == 2
    with pytest.raises(StaleStateError, match="after a failure"):
        main.decide(Observation(pictures(0, 2, 1)[0]))
    main.restart()
    go_on(main, 2)


def test_hours_take_no_memory() -> None:
    session = load(
        LoadOptions(
            policy="lingbot_va",
            preset="tiny",
            device="cpu",
            precision="bf16",
            views=VIEWS[:1],
            prompt="go",
            threads=1,
            steps=1,
            extra={"action_steps": 1, "vae_base": 2, "net_depth": 1},
        )
    )
    go_on(session, 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decisions = go_on(session, 170)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown <= 1024, f"{grown} KiB"
    assert np.isfinite(decisions[-1].raw).all()
    assert session.turn == 200
    assert torch.equal(session.buffers["frame"], torch.tensor([2 * 199], dtype=torch.int32))
    session.engine.close()
