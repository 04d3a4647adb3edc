"""Several handles at once, in threads of their own: a lock orders them, and no input is lost."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.c_interface import records
from flashrt_core.devices import Program
from flashrt_core.session import Session, noise_for
from test.abi import host as api
from test.abi.host import FakeCuda, Host, LentCuda
from test.core import toy

ROUNDS = 60


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("sets", [1, 2, 3])
def test_three_sessions_in_three_threads(
    library_path: Path, driver: FakeCuda, kind: str, sets: int
) -> None:
    device = LentCuda(driver) if kind == "cuda" else None
    engine = toy.engine(working_sets=sets, capsule_slots=3, device=device)
    prompts = {"one": "ab", "two": "cd", "three": "efg"}
    for name, prompt in prompts.items():
        engine.create_session(name, prompt=prompt).decide(toy.see(1))
    before = engine.traffic.switches
    exports = {name: engine.session(name).export() for name in prompts}
    wrong: list[str] = []

    def drive(name: str, number: int) -> None:
        host = Host(exports[name])
        for index in range(ROUNDS):
            value, noise = (index * 3 + number) % 20, noise_for(number, index, (2, 3))
            host.write("image", np.full((2, 2, 3), value, np.uint8))
            host.write("noise", noise)
            if host.decide() != api.OK:
                wrong.append(host.error())
            if not np.array_equal(
                host.read(), toy.expected(value, prompts[name], noise).astype(np.float32)
            ):
                wrong.append(f"{name} {index}")
            if index % 5 == 0:
                host.do("snapshot", name.encode())
                host.do("restore", name.encode())

    threads = [
        threading.Thread(target=drive, args=(name, number)) for number, name in enumerate(prompts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    info = Host(exports["one"]).get(records.Info)
    for export in exports.values():
        export.close()
    assert (engine.traffic.switches, engine.traffic.nbytes) == (info.switches, info.moved_bytes)
    assert info.working_sets == sets and info.sessions == 3
    if sets == 3:
        assert info.switches == before == info.moved_bytes == 0, "each has buffers of its own"
    else:
        assert info.switches > before
    for number, name in enumerate(prompts):
        decision = engine.session(name).decide(toy.see(7), noise=noise_for(number, 0, (2, 3)))
        expected = toy.expected(7, prompts[name], noise_for(number, 0, (2, 3)))
        assert np.array_equal(decision.raw, expected.astype(np.float32))


def test_inputs_outlast_another_sessions_decision(library_path: Path) -> None:
    """In Python they would be lost with the windows, and StaleStateError would say so."""
    engine = toy.engine()
    for name in ("one", "two"):
        engine.create_session(name, prompt="ab").decide(toy.see(1))
    with engine.session("one").export() as first, engine.session("two").export() as second:
        one, two = Host(first), Host(second)
        noise = noise_for(1, 1, (2, 3))
        one.write("image", np.full((2, 2, 3), 9, np.uint8))
        one.write("noise", noise)
        two.write("image", np.full((2, 2, 3), 3, np.uint8))
        two.write("noise", noise)
        assert two.decide() == one.decide() == api.OK
        assert np.array_equal(one.read(), toy.expected(9, "ab", noise).astype(np.float32))


def test_a_fork_into_another_engine_of_the_plan(library_path: Path) -> None:
    engines = [toy.engine() for _ in range(2)]
    for engine in engines:
        engine.create_session("main", seed=1, prompt="ab").decide(toy.see(4))
    with engines[0].session("main").export() as here, engines[1].session("main").export() as there:
        source, target = Host(here), Host(there)
        source.do("snapshot", b"mark")
        noise = noise_for(5, 5, (2, 3))
        for capsule, name in ((None, "live"), ("mark", "saved")):
            branch = source.fork(name, capsule, target)
            branch.write("noise", noise)
            assert branch.act() == api.OK
            assert np.array_equal(branch.read(), toy.expected(4, "ab", noise).astype(np.float32))
            branch.do("close")
    assert list(engines[1].sessions) == ["main"]


def test_taking_back_waits_for_a_call(main: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends as ever, with what it has to work on; what comes later is refused."""
    device = main.engine.device
    begun, go, replay = threading.Event(), threading.Event(), device.replay

    def slowly(program: Program, **options: Any) -> None:
        begun.set()
        assert go.wait(30.0)
        replay(program, **options)

    monkeypatch.setattr(device, "replay", slowly)
    export = main.export()
    host = Host(export)
    branch, noise = host.fork("branch"), noise_for(7, 1, (2, 3))
    host.write("image", np.full((2, 2, 3), 9, np.uint8))
    host.write("noise", noise)
    statuses: list[int] = []
    call = threading.Thread(target=lambda: statuses.append(host.decide()))
    call.start()
    assert begun.wait(30.0)
    close = threading.Thread(target=export.close)
    close.start()
    while branch.call("get_fingerprint", ctypes.byref(records.FingerprintRecord())) != api.CLOSED:
        time.sleep(0.001)
    assert branch.act() == branch.call("snapshot", b"late") == api.CLOSED
    assert close.is_alive() and not statuses
    go.set()
    close.join()
    call.join()
    assert statuses == [api.OK] and main.decisions == 2
    assert host.decide() == api.CLOSED
    raw = toy.expected(9, "ab", noise_for(7, 2, (2, 3))).astype(np.float32)
    assert np.array_equal(main.act().raw, raw)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_taking_back_at_any_moment(library_path: Path, driver: FakeCuda, kind: str) -> None:
    device = LentCuda(driver) if kind == "cuda" else None
    engine = toy.engine(device=device, max_sessions=4)
    for name in ("one", "two"):
        engine.create_session(name, prompt="ab").decide(toy.see(1))
    for moment in range(20):
        exports = [engine.session(name).export() for name in ("one", "two")]
        hosts = [Host(export) for export in exports]
        wrong: list[int] = []

        def drive(host: Host, number: int, wrong: list[int] = wrong) -> None:
            while True:
                host.call("write_input", 0, bytes(12), ctypes.c_uint64(12))
                host.call("write_input", 2, bytes(24), ctypes.c_uint64(24))
                status = host.decide()
                branch = ctypes.c_void_p()
                if not host.call("fork", None, None, f"f{number}".encode(), ctypes.byref(branch)):
                    host.library.flashrt_close(branch)
                if status == api.CLOSED:
                    return
                if status != api.OK:
                    wrong.append(status)

        threads = [
            threading.Thread(target=drive, args=(host, number)) for number, host in enumerate(hosts)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.001 * moment)
        for export in exports:
            export.close()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive()
        assert not wrong
        for name in set(engine.sessions) - {"one", "two"}:
            engine.drop_session(name)  # a fork whose end came too late
        engine.session("one").decide(toy.see(2))
    assert driver.library.fake_pinned() == 0
