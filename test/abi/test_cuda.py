"""The library on a CUDA driver that is not there: which calls, their order, and failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flashrt_core.c_interface import records
from flashrt_core.c_interface.library import NativeError
from flashrt_core.session import Session
from test.abi import host as api
from test.abi.conftest import HERE, ROOT, CompileC
from test.abi.host import FakeCuda, Host, LentCuda
from test.core import toy

NOISE = np.ones((2, 3), np.float32)
IMAGE = np.full((2, 2, 3), 5, np.uint8)


@pytest.fixture
def session(driver: FakeCuda, library_path: Path) -> Session:
    session = toy.engine(device=LentCuda(driver)).create_session("main", seed=7, prompt="ab")
    session.decide(toy.see(3))
    return session


@pytest.fixture
def gpu(session: Session, driver: FakeCuda) -> Iterator[Host]:
    with session.export() as export:
        driver.reset()
        yield Host(export)
        driver.reset()


def test_a_decision_is_five_kinds_of_calls(gpu: Host, driver: FakeCuda) -> None:
    gpu.write("image", IMAGE)
    gpu.write("noise", NOISE)
    assert driver.calls() == []  # a write waits for the replay
    report = records.Report()
    gpu.do("decide", api.ctypes.byref(report))
    # Image and noise are no neighbours: the tokens' window is between them.
    sent = ["write", "write"]
    assert driver.calls() == [
        "get",
        "push",
        *sent,
        "launch",
        "read",
        "wait",
        *["elapsed"] * 2,
        "pop",
    ]
    assert list(report.stage_ms[:3]) == [0.0, 0.5, 0.5] and report.stages == 0b110
    assert np.array_equal(gpu.read(), toy.expected(5, "ab", NOISE).astype(np.float32))
    driver.reset()
    gpu.write("image", IMAGE)
    gpu.write("tokens", np.array([97, 99, 0, 0], np.int32))
    gpu.write("noise", NOISE)
    assert gpu.run("prompt") == api.OK
    assert driver.calls() == ["get", "push", "write", "launch", "wait", "pop"], "neighbours in one"
    driver.reset()
    assert gpu.decide() == api.OK
    assert driver.calls() == ["get", "push", "launch", "read", "wait", "pop"], (
        "nothing is sent twice"
    )


def test_a_capsule_is_one_launch(gpu: Host, driver: FakeCuda) -> None:
    once = ["get", "push", "kernel", "pop"]
    for call in (
        lambda: gpu.do("snapshot", b"mark"),
        lambda: gpu.do("restore", b"mark"),
        lambda: gpu.fork("live"),
        lambda: gpu.fork("branch", "mark"),
    ):
        driver.reset()
        found = call()
        assert driver.calls() == once
    branch: Host = found
    driver.reset()
    assert branch.write("noise", NOISE) == branch.act() == api.OK
    switch = ["get", "push", "kernel", "kernel", "pop"]
    assert driver.calls() == [*switch, "get", "push", "write", "launch", "read", "wait", "pop"]
    info = gpu.get(records.Info)
    nbytes = gpu.get(records.Slot, 0).bytes
    assert (info.switches, info.moved_bytes) == (1, 2 * nbytes)
    driver.reset()
    gpu.do("restore", b"mark")
    assert driver.calls() == switch, "one leaves, the capsule comes: nothing else"
    info = gpu.get(records.Info)
    assert (info.switches, info.moved_bytes) == (2, 3 * nbytes)


def test_a_restore_that_fails_behind_another_session_loses_nothing(
    gpu: Host, driver: FakeCuda
) -> None:
    assert gpu.write("noise", NOISE) == gpu.act() == api.OK
    expected = gpu.read()
    gpu.do("snapshot", b"mark")
    branch = gpu.fork("branch", "mark")
    assert branch.write("noise", NOISE) == branch.act() == api.OK  # the buffers are the branch's
    for name in ("kernel", "push"):
        driver.reset()
        driver.fail(name)
        assert gpu.call("restore", b"mark") == api.DEVICE
    driver.reset()
    for each in (branch, gpu):
        assert each.write("noise", NOISE) == each.act() == api.OK
        assert np.array_equal(each.read(), expected)


def test_a_slot_of_the_host_is_a_place_like_others(driver: FakeCuda, library_path: Path) -> None:
    engine = toy.engine(device=LentCuda(driver), host_slots=1)
    session = engine.create_session("main", seed=7, prompt="ab")
    session.decide(toy.see(3))
    session.snapshot("mark")
    expected = session.act(noise=NOISE).raw
    engine.store.to_host("mark")
    session.decide(toy.see(4))
    with session.export() as export:
        driver.reset()
        host = Host(export)
        host.do("restore", b"mark")
        assert driver.calls() == ["get", "push", "launch", "pop"]
        assert host.write("noise", NOISE) == host.act() == api.OK
        assert np.array_equal(host.read(), expected)
        driver.reset()
        branch = host.fork("branch", "mark")
        assert driver.calls() == ["get", "push", "copy", "pop"], "the copy engine's"
        assert branch.write("noise", NOISE) == branch.act() == api.OK
        assert np.array_equal(branch.read(), expected)
        driver.reset()


def test_a_live_fork_into_another_engine_goes_through_its_parking_slot(
    gpu: Host, driver: FakeCuda
) -> None:
    other = toy.engine(device=LentCuda(driver)).create_session("main", prompt="cd")
    assert gpu.write("noise", NOISE) == gpu.act() == api.OK
    expected = gpu.read()
    with other.export() as export:
        driver.reset()
        branch = gpu.fork("branch", into=Host(export))
        assert driver.calls().count("kernel") == 2
        assert gpu.write("noise", 0 * NOISE) == gpu.decide() == api.OK
        for _ in range(2):
            assert branch.write("noise", NOISE) == branch.act() == api.OK
            assert np.array_equal(branch.read(), expected)
        driver.reset()


def test_the_threads_own_context_comes_back(gpu: Host, driver: FakeCuda) -> None:
    driver.library.fake_set_current(0x77)
    assert gpu.write("noise", NOISE) == gpu.decide() == api.OK
    assert driver.library.fake_current() == 0x77
    driver.library.fake_set_current(0x1000)  # the session's own: nothing to push
    driver.reset()
    assert gpu.decide() == api.OK
    assert not {"push", "pop"} & {*driver.calls()}
    driver.library.fake_set_current(None)


@pytest.mark.parametrize("name", ["get", "push", "write", "launch", "read", "wait"])
def test_what_fails_is_told_and_voids_what_is_retained(
    gpu: Host, driver: FakeCuda, name: str
) -> None:
    gpu.write("noise", NOISE)
    driver.fail(name)
    assert gpu.decide() == api.DEVICE
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access" in gpu.error()
    driver.reset()
    assert gpu.act() == api.STALE and driver.calls() == []
    with pytest.raises(api.RefusedError, match=f"read_output: {api.NOT_MADE}"):
        gpu.read()
    assert gpu.write("image", IMAGE) == gpu.run("prompt") == gpu.decide() == api.OK


def test_a_failed_copy_leaves_no_half_capsule(gpu: Host, driver: FakeCuda) -> None:
    gpu.do("snapshot", b"mark")
    driver.fail("kernel", 999)
    assert gpu.call("snapshot", b"mark") == api.DEVICE
    assert "an unknown error (999): no explanation" in gpu.error()
    assert gpu.call("restore", b"mark") == api.CAPSULE
    driver.reset()
    gpu.do("snapshot", b"mark")
    driver.fail("kernel")
    assert gpu.call("restore", b"mark") == api.DEVICE
    driver.reset()
    assert gpu.act() == api.STALE
    gpu.do("restore", b"mark")
    assert gpu.write("noise", NOISE) == gpu.act() == api.OK


def test_pinned_memory_that_is_refused_leaves_python_driving(
    session: Session, driver: FakeCuda
) -> None:
    driver.fail("alloc", 700)
    with pytest.raises(NativeError, match="cuMemHostAlloc: got CUDA_ERROR_ILLEGAL_ADDRESS"):
        session.export()
    driver.reset()
    assert driver.library.fake_pinned() == 0
    session.decide(toy.see(1))


def test_a_device_that_failed_is_told_at_the_end(session: Session, driver: FakeCuda) -> None:
    export = session.export()
    driver.fail("wait")
    with pytest.raises(NativeError, match="cuStreamSynchronize"):
        export.close()
    driver.reset()
    assert driver.library.fake_pinned() == 0
    session.decide(toy.see(1))  # nothing was retained, and nothing is used


def test_no_driver_is_one_line(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashrt_core.devices.base import Native

    none = Native("cuda", "libnone.so.1", 1, 1, 1, 1)
    monkeypatch.setattr(session.engine.device, "lend", lambda: none)
    with pytest.raises(NativeError, match="expected library libnone.so.1, got"):
        session.export()
    session.decide(toy.see(1))


def test_a_thread_needs_no_gil(client_path: Path, library_path: Path, driver: FakeCuda) -> None:
    """Python holds it, and waits, until the host's thread has made all its decisions."""
    device = LentCuda(driver, computes=False)
    session = toy.engine(device=device).create_session("main", prompt="ab")
    session.decide(toy.see(3))
    holding = api.ctypes.PyDLL(str(client_path))  # calls through it keep the GIL
    with session.export() as export:
        assert holding.client_thread(api.ctypes.c_void_p(export.handle), 200) == 0
        assert Host(export).get(records.State).decisions > 200


LOOP = """
import ctypes, json, sys
from pathlib import Path
from test.abi.host import FakeCuda, LentCuda
from test.core import toy
counter, fake, client = sys.argv[1:]
driver = FakeCuda(Path(fake))
session = toy.engine(device=LentCuda(driver, computes=False)).create_session("main", prompt="ab")
session.decide(toy.see(3))
counts, host = ctypes.CDLL(counter), ctypes.CDLL(client)
export = session.export()
handle = ctypes.c_void_p(export.handle)
counts.count_begin(); ctypes.create_string_buffer(1000); sees = counts.count_end()
line = host.client_loop(handle, 2)
driver.reset()
counts.count_begin()
line = line or host.client_loop(handle, 500)
count = counts.count_end()
print(json.dumps({"line": line, "count": count, "sees": sees, "calls": sorted({*driver.calls()})}))
export.close()
"""


def test_the_hot_path_allocates_nothing(
    compile_c: CompileC, client_path: Path, library_path: Path, driver: FakeCuda
) -> None:
    counter = compile_c(HERE / "count_malloc.c", "-std=c11", "-O0")
    words = [sys.executable, "-c", LOOP, counter, driver.path, client_path]
    environment = os.environ | {"LD_PRELOAD": str(counter), "FLASHRT_LIBRARY": str(library_path)}
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["sees"] > 0, "the counter counts nothing"
    assert (said["line"], said["count"]) == (0, 0)
    assert said["calls"] == sorted(
        ["get", "push", "write", "launch", "kernel", "read", "wait", "elapsed", "pop"]
    )
