"""C and Python keep one set of rules and one state: the same calls, in any order, do the same.

Two engines of the same plan, one driven by Python and one by C; now and then the second is taken
back and handed over again. Statuses, actions, capsules and decision indices agree at every step.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.capsule.state import HostState
from flashrt_core.contract import Update
from flashrt_core.devices import Device
from flashrt_core.engine import Engine
from flashrt_core.errors import CapsuleError, CapsuleStoreFullError, FlashRTError, StaleStateError
from flashrt_core.session import Session, noise_for
from test.abi import host as api
from test.abi.host import FakeCuda, Host, LentCuda
from test.core import toy

#: What Python raises -> what C may answer.
ANSWERS: dict[type[FlashRTError], set[int]] = {
    StaleStateError: {api.UNWRITTEN, api.STALE, api.NOT_MADE},
    CapsuleStoreFullError: {api.CAPSULE_FULL},
    CapsuleError: {api.CAPSULE, api.NOT_MADE},
}
STAGES, NAMES = ("prompt", "context", "action"), ("a", "b", "c")


class Twins:
    """The same session twice."""

    def __init__(self, device: Device | None, sets: int = 1) -> None:
        self.engines: list[Engine] = []
        for each in (None, device):
            engine = toy.engine(device=each, host_slots=1, working_sets=sets)
            session = engine.create_session("main", seed=7, prompt="ab")
            session.decide(toy.see(3))
            session.snapshot("held")
            engine.store.to_host("held")
            self.engines.append(engine)
        self.lend()

    @property
    def python(self) -> Session:
        return self.engines[0].session("main")

    def lend(self) -> None:
        self.host = Host(self.engines[1].session("main").export())
        self.python.ledger.lose_outputs()  # as the other side's are by the handover

    def observe(self, value: int, draw: np.random.Generator) -> None:
        """Python's part on both sides, between two exports: what is seen, and is it used."""
        decides, behind = draw.integers(0, 2, 2)
        for engine in self.engines:
            session = engine.session("main")
            session.set_prompt(chr(99 + value) + "b")  # C leaves none of tokens that it wrote
            seen = replace(toy.see(value), state=np.full(3, value, np.float32))
            session.decide(seen) if decides else session.observe(seen)
            if behind:
                session.set_prompt(chr(99 + value) + "c")

    def both(self, here: Any, there: Any) -> None:
        """Do the same on both sides; they agree on whether it may be done."""
        status = there()
        try:
            here()
        except FlashRTError as error:
            assert status in ANSWERS[type(error)], f"{error} / {status} {self.host.error()}"
        else:
            assert status == api.OK, self.host.error()

    def write(self, values: dict[str, Any]) -> None:
        self.both(
            lambda: self.python.write(values),
            lambda: max(self.host.write(name, value) for name, value in values.items()),
        )

    def compare(self) -> None:
        """State that shows outside."""
        state = self.host.get(api.records.State)
        assert state.decisions == self.python.decisions
        here = sorted(info.name for info in self.engines[0].store.list())
        slots = [self.host.get(api.records.Slot, index) for index in range(3)]
        assert here == sorted(slot.name.decode() for slot in slots if slot.full)


def step(twins: Twins, draw: np.random.Generator) -> None:
    kind = draw.integers(0, 12)
    python, host, name = twins.python, twins.host, str(draw.choice(NAMES))
    stale = bool(draw.integers(0, 2))
    noise = noise_for(int(draw.integers(0, 3)), 0, (2, 3))
    if kind <= 1:
        twins.write({"image": np.full((2, 2, 3), draw.integers(0, 4), np.uint8)})
    elif kind == 2:
        # Python runs the transform with the write, C when it is asked to or with the next decision.
        tokens = np.array([97 + draw.integers(0, 2), 98, 0, 0], np.int32)
        twins.write({"tokens": tokens})
        if host.get(api.records.Stage, 0).validity != 2:
            assert host.run("prompt") == api.OK
    elif kind == 3:
        stage = str(draw.choice(STAGES))
        twins.both(
            lambda: python.run(stage, allow_stale=stale), lambda: host.run(stage, int(stale))
        )
    elif kind <= 6:
        assert host.write("noise", noise) == api.OK  # Python writes it with the decision
        last = kind == 6
        twins.both(
            lambda: (
                python.act(noise=noise, allow_stale=stale) if last else python.decide(noise=noise)
            ),
            lambda: host.act(int(stale)) if last else host.decide(),
        )
    elif kind == 7:
        twins.both(lambda: python.snapshot(name), lambda: host.call("snapshot", name.encode()))
    elif kind == 8:
        name = str(draw.choice([*NAMES, "held"]))
        twins.both(lambda: python.restore(name), lambda: host.call("restore", name.encode()))
    elif kind == 9:
        read: list[Any] = []
        twins.both(
            lambda: read.append(python.read("actions", allow_stale=stale)),
            lambda: host.try_read(flags=int(stale))[0],
        )
        assert not read or np.array_equal(read[0], host.try_read(flags=1)[1])
    elif kind == 10:
        index = int(draw.integers(0, 4) == 0)  # the large one now and then
        host.do("select_shape", index)
        python.select_shape(python.contract.shapes[index])
    else:
        store = twins.engines[0].store
        twins.both(lambda: store.drop(name), lambda: host.call("drop", name.encode()))


def made_with(host: HostState) -> tuple[Any, ...]:
    """What is known of the observation that a context was made from, and of the newest."""
    states = (host.robot_state, host.seen_state)
    known = [None if state is None else state.tolist() for state in states]
    return host.stamp_ns, {**host.stamps_ns}, host.seen_ns, {**host.seen_stamps_ns}, known


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("seed", range(6))
def test_any_order(
    library_path: Any, driver: FakeCuda, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    bounds = {toy.SMALL: {"tokens": range(120)}, toy.LARGE: {"tokens": range(130)}}
    bounded = toy.changed(toy.contract(), bounds=bounds)
    monkeypatch.setattr(toy, "contract", lambda: bounded)
    twins = Twins(LentCuda(driver) if kind == "cuda" else None, sets=1 + seed % 2)
    draw = np.random.default_rng(seed)
    for index in range(250):
        step(twins, draw)
        twins.compare()
        if index % 40 == 39:
            twins.host.export.close()
            ours, theirs = (engine.session("main") for engine in twins.engines)
            assert ours.ledger.page().lineage == theirs.ledger.page().lineage
            assert ours.shape == theirs.shape
            assert {*ours.host_state().staged} == {*theirs.host_state().staged}
            assert made_with(ours.host_state()) == made_with(theirs.host_state())
            windows = [engine.buffers["actions"].numpy().tobytes() for engine in twins.engines]
            assert windows[0] == windows[1]
            for info in twins.engines[0].store.list():
                mine, other = (engine.store.export(info.name) for engine in twins.engines)
                assert mine.payload.tobytes() == other.payload.tobytes()
                assert mine.host.lineage == other.host.lineage
                assert made_with(mine.host) == made_with(other.host)
                assert (mine.info.decision, mine.info.place) == (
                    other.info.decision,
                    other.info.place,
                )
            twins.observe(index // 40, draw)
            twins.lend()
    twins.host.export.close()
    assert driver.library.fake_pinned() == 0


def test_what_python_left_goes_on(main: Session) -> None:
    """Windows, results, capsules: without a single write the next decision is Python's next."""
    main.snapshot("mark")
    noise = noise_for(7, 1, (2, 3))
    with main.export() as export:
        host = Host(export)
        host.do("restore", b"mark")
        assert host.write("noise", noise) == host.act() == api.OK
        assert np.array_equal(host.read(), toy.expected(3, "ab", noise).astype(np.float32))
        assert host.get(api.records.State).decisions == 2
    assert main.decisions == 2 and main.prompt == "ab"
    assert np.allclose(main.decide(toy.see(5)).raw, toy.expected(5, "ab", noise_for(7, 2, (2, 3))))


def test_what_c_left_goes_on(main: Session) -> None:
    noise = noise_for(7, 1, (2, 3))
    with main.export() as export:
        host = Host(export)
        host.write("image", np.full((2, 2, 3), 8, np.uint8))
        host.write("noise", noise)
        assert host.decide() == api.OK
        host.do("snapshot", b"c")
        branch = host.fork("branch")
        branch.write("noise", noise)
        assert branch.act() == api.OK and branch.read().tobytes() == host.read().tobytes()
    engine = main.engine
    assert sorted(engine.sessions) == ["branch", "main"]
    assert engine.store.info("c").prompt == "ab" and engine.store.info("c").decision == 2
    following = noise_for(7, 3, (2, 3))
    expected = toy.expected(8, "ab", following).astype(np.float32)
    assert np.array_equal(engine.session("branch").act(noise=following).raw, expected)
    assert np.array_equal(main.act(noise=following).raw, expected)
    assert main.host_state().stamp_ns == 0  # of an image that Python never saw


def test_the_state_is_that_of_the_context(main: Session) -> None:
    """Also where C decides on what Python had only written, and where C wrote it, unknown."""

    def state() -> float | None:
        """What the state of the session, and the stamp beside it, are of."""
        host = main.host_state()
        assert host.stamp_ns == (0 if host.robot_state is None else host.robot_state[0])
        return None if host.robot_state is None else float(host.robot_state[0])

    for value in (3, 9):
        seen = replace(toy.see(value), state=np.full(3, value, np.float32))
        main.decide(seen) if value == 3 else main.observe(seen)
    noise = noise_for(7, 1, (2, 3))
    with main.export() as export:
        host = Host(export)
        assert host.write("noise", noise) == api.OK
        assert host.act() == api.STALE and host.act(1) == api.OK
        host.do("snapshot", b"old")
    assert state() == 3
    with main.export() as export:
        host = Host(export)
        assert host.write("noise", noise) == host.decide() == api.OK
    assert state() == 9
    main.restore("old")
    assert state() == 3
    for name, value in (
        ("image", toy.see(9).images[toy.VIEW]),
        ("tokens", np.array([99, 98, 0, 0], np.int32)),
    ):
        main.decide(replace(toy.see(3), state=np.full(3, 3, np.float32)))
        with main.export() as export:
            host = Host(export)
            assert host.write(name, value) == host.write("noise", noise) == api.OK
            assert host.decide() == api.OK
        assert state() is None
        main.set_prompt("ab")


def test_the_text_of_tokens_that_c_wrote_is_unknown(main: Session) -> None:
    with main.export() as export:
        host = Host(export)
        assert host.write("tokens", np.array([97, 98, 0, 0], np.int32)) == api.OK
        assert host.get(api.records.Stage, 0).validity == 2, "the same tokens change nothing"
        host.do("snapshot", b"ab")
        assert host.write("tokens", np.array([99, 98, 0, 0], np.int32)) == api.OK
        assert host.get(api.records.Stage, 0).validity == 1
        assert host.act() == api.STALE
        assert host.write("noise", noise_for(0, 0, (2, 3))) == host.decide() == api.OK
    assert main.prompt == "" and main.engine.store.info("ab").prompt == "ab"
    with pytest.raises(FlashRTError, match="set_prompt"):
        main.observe(toy.see(1))
    main.restore("ab")
    assert main.prompt == "ab"


def test_python_does_not_drive_meanwhile(main: Session, tmp_path: Path) -> None:
    engine = main.engine
    other = engine.create_session("other", prompt="cd")
    store = engine.store
    main.snapshot("held")
    store.write_file("held", tmp_path / "held")
    image, before = store.export("held"), store.list()
    with main.export():
        for use in (
            lambda: main.decide(toy.see(1)),
            lambda: main.act(),
            lambda: main.run("prompt"),
            lambda: main.read("actions"),
            lambda: main.snapshot("x"),
            lambda: main.restore("x"),
            lambda: main.resume(main.host_state()),
            lambda: main.select_shape(toy.SMALL),
            lambda: other.decide(toy.see(1)),
            lambda: engine.create_session("new"),
            lambda: engine.fork("new", source="main"),
            lambda: engine.drop_session("other"),
            lambda: engine.store,
            lambda: main.set_prompt("xy"),
            lambda: store.list(),
            lambda: store.info("held"),
            lambda: store.find("held"),
            lambda: store.export("held"),
            lambda: store.write_file("held", tmp_path / "file"),
            lambda: store.read_file(tmp_path / "held"),
            lambda: store.read_file(tmp_path / "none"),
            lambda: store.adopt(image),
            lambda: store.drop("held"),
            lambda: store.to_host("held"),
            lambda: store.to_device("held"),
        ):
            with pytest.raises(FlashRTError, match="exported to the C interface.*close the export"):
                use()
        with pytest.raises(FlashRTError, match="one that is exported"):
            main.export()
        with other.export() as second:
            assert Host(second).get(api.records.State).name == b"other"
        with pytest.raises(FlashRTError, match="exported"):
            other.decide(toy.see(1))  # one export is left
    assert engine.store is store and store.list() == before
    assert not (tmp_path / "file").exists()
    main.decide(toy.see(1))
    other.decide(toy.see(1))


def test_a_capsule_from_a_file_is_restored_in_c(main: Session, tmp_path: Path) -> None:
    """Files are read and checked by Python; what came of one is a capsule like others."""
    store = main.engine.store
    main.snapshot("mark")
    store.write_file("mark", tmp_path / "mark")
    store.drop("mark")
    damaged = bytearray((tmp_path / "mark").read_bytes())
    damaged[-40] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(CapsuleError, match="checksum"):
        store.read_file(tmp_path / "damaged")
    store.read_file(tmp_path / "mark", "from a file")
    noise = noise_for(7, 1, (2, 3))
    main.decide(toy.see(11))
    with main.export() as export:
        host = Host(export)
        assert host.call("restore", b"mark") == api.CAPSULE
        host.do("restore", b"from a file")
        assert host.write("noise", noise) == host.act() == api.OK
        assert np.array_equal(host.read(), toy.expected(3, "ab", noise).astype(np.float32))
        host.do("snapshot", b"of c")
    store.write_file("of c", tmp_path / "of c")
    assert store.read_file(tmp_path / "of c", replace=True).decision == 2


def test_names_that_c_cannot_hold(main: Session) -> None:
    engine = main.engine
    name = "x" * 300
    engine.create_session(name, prompt="ab")
    with pytest.raises(FlashRTError, match="fewer than 256 bytes, got 300"):
        main.export()
    engine.drop_session(name)
    main.decide(toy.see(1))  # nothing was lent
    for make in (engine.create_session, main.snapshot):  # nor could a file
        with pytest.raises(FlashRTError, match="Unicode text"):
            make("x\ud800")


def test_inputs_of_the_set_up_are_refused(
    library_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = toy.contract()
    inputs = [*plain.inputs[:2], replace(plain.inputs[2], update=Update.SETUP)]
    fixed = toy.changed(plain, inputs=tuple(inputs))
    monkeypatch.setattr(toy, "contract", lambda: fixed)
    main = toy.engine().create_session("main", prompt="ab")
    main.decide(toy.see(3))
    with main.export() as export:
        host = Host(export)
        assert host.write("noise", np.zeros((2, 3), np.float32)) == api.INPUT
        assert host.decide() == api.OK


def test_closing_the_engine_retires_handles(main: Session) -> None:
    host = Host(main.export())
    main.engine.close()
    assert host.decide() == api.CLOSED
    host.export.close()
