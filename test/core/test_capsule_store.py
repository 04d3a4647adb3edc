"""Where capsules are: in slots of the device or of the host, moved when asked, never evicted."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_core.capsule.state import Place, frozen
from flashrt_core.engine import Engine
from flashrt_core.errors import CapsuleError, CapsuleStoreFullError, DeviceError, OptionError
from flashrt_core.load import LoadOptions, load
from flashrt_core.session import Session

from . import toy


@pytest.fixture
def engine() -> Engine:
    return toy.engine(capsule_slots=2, host_slots=1)


@pytest.fixture
def main(engine: Engine) -> Session:
    return engine.create_session("main", seed=7, prompt="ab")


def saved(main: Session, name: str, value: int) -> bytes:
    """Saves a capsule; the raw action that follows from it."""
    main.decide(toy.see(value))
    main.snapshot(name)
    return main.act().raw.tobytes()


def places(engine: Engine) -> list[tuple[str, str]]:
    return [(info.name, str(info.place)) for info in engine.store.list()]


def dirty(engine: Engine) -> None:
    """Lets another session write all over the buffers."""
    engine.create_session("other", seed=9, prompt="xyz").decide(toy.see(9))
    engine.drop_session("other")


def test_what_somebody_may_write_is_copied() -> None:
    """What nobody can is kept: a prompt's rows are megabytes."""
    own = np.arange(6.0)
    view, across = own[:4], np.arange(6.0).reshape(2, 3).T
    for array in (view, across):
        array.setflags(write=False)
    kept = [frozen(array) for array in (own, view, across)]
    own[:] = 9.0
    assert [each.ravel().tolist() for each in kept] == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3],
        [0, 3, 1, 4, 2, 5],
    ]
    assert not any(each.flags.writeable for each in kept)
    assert all(frozen(each) is each for each in kept)


def test_a_move_frees_the_slot_of_the_device(engine: Engine, main: Session) -> None:
    saved(main, "a", 1)
    saved(main, "b", 2)
    info = engine.store.to_host("a")
    assert info.place is Place.HOST and engine.store.info("a") == info
    assert places(engine) == [("a", "host"), ("b", "device")]
    saved(main, "c", 3)
    with pytest.raises(CapsuleStoreFullError, match=r"2 of 2 in use: \['b', 'c'\].*capsule_slots"):
        saved(main, "d", 4)
    engine.store.drop("b")
    assert engine.store.to_device("a").place is Place.DEVICE
    assert places(engine) == [("a", "device"), ("c", "device")]
    engine.store.to_host("c")


def test_bytes_are_the_same_wherever_they_are(engine: Engine, main: Session) -> None:
    expected = saved(main, "a", 1)
    payload = engine.store.export("a").payload.tobytes()
    for move in (engine.store.to_host, engine.store.to_device, engine.store.to_host):
        move("a")
        dirty(engine)
        assert engine.store.export("a").payload.tobytes() == payload
        main.restore("a")
        assert main.act().raw.tobytes() == expected
        assert engine.fork("branch", capsule="a").act().raw.tobytes() == expected
        engine.drop_session("branch")


def test_a_full_host_store_is_an_error(engine: Engine, main: Session) -> None:
    saved(main, "a", 1)
    expected = saved(main, "b", 2)
    engine.store.to_host("a")
    with pytest.raises(
        CapsuleStoreFullError,
        match=r"free slot of the host, got 1 of 1 in use: \['a'\]; drop a capsule or raise host_sl",
    ):
        engine.store.to_host("b")
    assert places(engine) == [("a", "host"), ("b", "device")]
    main.restore("b")
    assert main.act().raw.tobytes() == expected
    engine.store.to_host("a")  # it is there already
    saved(main, "c", 3)
    with pytest.raises(CapsuleStoreFullError, match="raise capsule_slots"):
        engine.store.to_device("a")
    assert places(engine) == [("a", "host"), ("b", "device"), ("c", "device")]


def test_without_host_slots_there_is_none(main: Session) -> None:
    plain = toy.engine().create_session("main", prompt="ab")
    saved(plain, "a", 1)
    with pytest.raises(CapsuleStoreFullError, match=r"0 of 0 in use: \[\].*host_slots"):
        plain.engine.store.to_host("a")
    for move in (plain.engine.store.to_host, plain.engine.store.to_device):
        with pytest.raises(CapsuleError, match="no such capsule"):
            move("b")


def test_a_snapshot_replaces_a_capsule_where_it_is(engine: Engine, main: Session) -> None:
    saved(main, "a", 1)
    engine.store.to_host("a")
    saved(main, "b", 2)
    saved(main, "c", 3)
    expected = saved(main, "a", 4)
    assert engine.store.info("a").place is Place.HOST
    dirty(engine)
    main.restore("a")
    assert main.act().raw.tobytes() == expected


def test_dropped_host_slots_are_used_again(engine: Engine, main: Session) -> None:
    for value in range(5):
        expected = saved(main, "a", value)
        engine.store.to_host("a")
        main.restore("a")
        assert main.act().raw.tobytes() == expected
        engine.store.drop("a")
    assert len(engine.store) == 0


def test_a_move_that_fails_changes_nothing(
    engine: Engine, main: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = saved(main, "a", 1)

    def fail(*args: object, **kwargs: object) -> None:
        raise DeviceError("copy", got="a fault")

    with monkeypatch.context() as broken:
        broken.setattr(engine.device, "copy", fail)
        with pytest.raises(DeviceError, match="a fault"):
            engine.store.to_host("a")
    assert places(engine) == [("a", "device")]
    main.restore("a")
    assert main.act().raw.tobytes() == expected
    engine.store.to_host("a")


def test_options() -> None:
    with pytest.raises(OptionError, match="host_slots"):
        load(LoadOptions(host_slots=-1))
    assert toy.engine(host_slots=3).store.host_capacity == 3


def test_arrays_of_the_host_are_no_part_of_the_device(engine: Engine) -> None:
    with pytest.raises(DeviceError, match="one allocation a device"):
        engine.device.allocate_host([])
    assert np.shares_memory(  # the slots are that memory, not copies of it
        engine.store._all[Place.HOST][0].numpy(), engine.device._host_arena.numpy()
    )
