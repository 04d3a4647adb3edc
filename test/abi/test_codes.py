"""Every status of the header is provoked, and says in one line what is wrong."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.c_interface import records
from flashrt_core.kernels.op import Op
from flashrt_core.session import Session
from test.abi import host as api
from test.abi.host import Host
from test.abi.test_header import TODAY, constants
from test.core import toy

NOISE = np.ones((2, 3), np.float32)
CODES = {"FLASHRT_OK", *(name for name in constants(TODAY) if name.startswith("FLASHRT_E_"))}


def no_session(host: Host) -> int:
    return int(host.library.flashrt_decide(None, None))


def small_record(host: Host) -> int:
    return host.call("get_info", ctypes.byref(records.Info.from_buffer_copy(bytes(88))))


def unknown_input(host: Host) -> int:
    return host.call("write_input", 3, ctypes.byref(ctypes.c_uint8()), ctypes.c_uint64(1))


def other_bytes(host: Host) -> int:
    return host.write("noise", NOISE[:1])


def unwritten(host: Host) -> int:
    host.do("snapshot", b"mark")
    host.do("restore", b"mark")
    return host.act()


def not_made(host: Host) -> int:
    host.do("snapshot", b"mark")
    host.do("restore", b"mark")
    value = np.empty((2, 3), np.float32)
    return host.call("read_output", 0, value.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(24))


def other_plan(host: Host) -> int:
    stranger = toy.engine(weights="other").create_session("main", prompt="ab")
    with stranger.export() as export:
        target = ctypes.c_void_p(export.handle)
        return host.call("fork", None, target, b"new", ctypes.byref(ctypes.c_void_p()))


def closed(host: Host) -> int:
    fork = host.fork("new")
    fork.do("close")
    return fork.decide()


def other_version(host: Host) -> int:
    plan = records.Handover(version=99)
    place = ctypes.c_void_p()
    return int(host.library.flashrt_handover_begin(ctypes.byref(plan), ctypes.byref(place)))


def not_finite(host: Host) -> int:
    return host.write("noise", np.full((2, 3), np.nan, np.float32))


def stale(host: Host) -> int:
    host.write("image", np.zeros((2, 2, 3), np.uint8))
    return host.act()


def no_shape(host: Host) -> int:
    return host.call("select_shape", 2)


def device_fails(host: Host) -> int:
    host.export._lent._programs[:] = []  # type: ignore[union-attr]
    return host.decide()


def overflows(host: Host) -> int:
    host.do("write_input", 2, NOISE.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(24))
    buffers = host.export._lent._engine.buffers  # type: ignore[union-attr]
    buffers["kv"].fill_(3e38)
    return host.act()


def no_capsule(host: Host) -> int:
    return host.call("restore", b"nothing")


def no_slot(host: Host) -> int:
    host.do("snapshot", b"one")
    host.do("snapshot", b"two")
    return host.call("snapshot", b"three")


def name_taken(host: Host) -> int:
    return host.call("fork", None, None, b"main", ctypes.byref(ctypes.c_void_p()))


def too_many(host: Host) -> int:
    host.fork("one"), host.fork("two")
    return host.call("fork", None, None, b"three", ctypes.byref(ctypes.c_void_p()))


def no_memory(host: Host) -> int:
    """A plan with more seats than any machine has memory for."""
    plan = records.Handover(
        version=records.HANDOVER_VERSION,
        device=1,
        seats=0xFFFFFFFF,
        replay=records.ReplayFn(len),
    )
    place = ctypes.c_void_p()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = resource.getrlimit(resource.RLIMIT_AS)
    # Else a kernel that promises any memory would hand it out.
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), limit[1]))
    try:
        return int(host.library.flashrt_handover_begin(ctypes.byref(plan), ctypes.byref(place)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)


#: Name of the code -> how to get it, its number, and what its text holds.
TABLE: dict[str, tuple[Callable[[Host], int], int, str]] = {
    "OK": (lambda host: host.decide(), api.OK, ""),
    "E_ARGUMENT": (no_session, api.ARGUMENT, "expected a handle, got null"),
    "E_STRUCT_SIZE": (small_record, api.STRUCT_SIZE, "expected at least 88, got 0"),
    "E_INDEX": (unknown_input, api.INDEX, "input 3: expected one of 3"),
    "E_BYTES": (other_bytes, api.BYTES, "input 'noise': expected 24 bytes, got 12"),
    "E_UNWRITTEN": (unwritten, api.UNWRITTEN, "reads input 'noise'"),
    "E_NOT_MADE": (not_made, api.NOT_MADE, "output 'actions'"),
    "E_FINGERPRINT": (other_plan, api.FINGERPRINT, "expected plan "),
    "E_CLOSED": (closed, api.CLOSED, "expected an open handle"),
    "E_VERSION": (other_version, api.VERSION, "expected version 5, got 99"),
    "E_INPUT": (not_finite, api.INPUT, "input 'noise': expected finite values"),
    "E_STALE": (stale, api.STALE, "one from before the last write of 'image'"),
    "E_SHAPE": (no_shape, api.SHAPE, "shape 2: expected one of 2"),
    "E_DEVICE": (device_fails, api.DEVICE, "IndexError"),
    "E_NUMERICS": (overflows, api.NUMERICS, "output 'actions': expected finite values"),
    "E_CAPSULE": (no_capsule, api.CAPSULE, "capsule 'nothing'"),
    "E_CAPSULE_FULL": (no_slot, api.CAPSULE_FULL, "capsule_slots"),
    "E_SESSION": (name_taken, api.SESSION, "session 'main'"),
    "E_SESSION_LIMIT": (too_many, api.SESSION_LIMIT, "at most 3 sessions"),
    "E_INTERNAL": (no_memory, api.INTERNAL, "bad_alloc"),
}


def test_every_code_is_in_the_table() -> None:
    assert {f"FLASHRT_{name}" for name in TABLE} == CODES


@pytest.mark.parametrize("name", TABLE)
def test_code(host: Host, name: str) -> None:
    provoke, code, text = TABLE[name]
    assert provoke(host) == code
    assert code == api.OK or text in host.error()
    words = host.library.flashrt_strerror(code).decode()
    assert words and words != host.library.flashrt_strerror(-1000).decode() == "unknown status"


def test_numbers_are_those_of_the_header() -> None:
    said = dict(line.split(" = ") for line in _enum_lines())
    assert {f"FLASHRT_{name}": code for name, (_, code, _) in TABLE.items()} == {
        name: int(value) for name, value in said.items()
    }


def _enum_lines() -> list[str]:
    lines = (line.split(",")[0].split("/*")[0].strip() for line in TODAY.read_text().splitlines())
    return [line for line in lines if line.startswith(("FLASHRT_OK", "FLASHRT_E_")) and "=" in line]


@pytest.mark.parametrize(
    ("call", "args", "code"),
    [
        ("get_info", (None,), api.ARGUMENT),
        ("get_shape", (2, ctypes.byref(records.Shape())), api.INDEX),
        ("get_graph", (99, ctypes.byref(records.Graph())), api.INDEX),
        ("get_region", (3, ctypes.byref(records.Region())), api.INDEX),
        ("get_slot", (2, ctypes.byref(records.Slot())), api.INDEX),
        ("find", (1, None, ctypes.byref(ctypes.c_uint32())), api.ARGUMENT),
        ("find", (7, b"kv", ctypes.byref(ctypes.c_uint32())), api.ARGUMENT),
        ("find", (1, b"other", ctypes.byref(ctypes.c_uint32())), api.INDEX),
        ("find", (6, b"other", ctypes.byref(ctypes.c_uint32())), api.INDEX),
        ("run_stage", (3, 0, None), api.INDEX),
        ("run_stage", (1, 2, None), api.ARGUMENT),
        ("act", (4, None), api.ARGUMENT),
        ("write_input", (2, None, ctypes.c_uint64(24)), api.ARGUMENT),
        ("read_output", (1, None, ctypes.c_uint64(24)), api.INDEX),
        ("read_output", (0, None, ctypes.c_uint64(24)), api.ARGUMENT),
        ("snapshot", (None,), api.ARGUMENT),
        ("snapshot", (b"",), api.CAPSULE),
        ("snapshot", (b"  ",), api.CAPSULE),
        ("snapshot", (b"line\nline",), api.CAPSULE),
        ("snapshot", (b"x" * 256,), api.CAPSULE),
        ("restore", (None,), api.ARGUMENT),
        ("drop", (b"nothing",), api.CAPSULE),
        ("fork", (b"nothing", None, b"new", ctypes.byref(ctypes.c_void_p())), api.CAPSULE),
        ("fork", (None, None, b"new", None), api.ARGUMENT),
        ("fork", (None, None, b"\xff", ctypes.byref(ctypes.c_void_p())), api.SESSION),
        ("close", (), api.SESSION),
    ],
)
def test_what_else_is_refused(host: Host, call: str, args: tuple[Any, ...], code: int) -> None:
    assert host.call(call, *args) == code
    assert host.error()
    assert host.decide() == api.OK  # nothing has changed


def test_capsules_of_others_are_forked_only(host: Host) -> None:
    branch = host.fork("branch")
    branch.do("snapshot", b"theirs")
    assert host.call("restore", b"theirs") == api.CAPSULE and "fork it" in host.error()
    assert host.call("snapshot", b"theirs") == api.CAPSULE and "'branch' uses" in host.error()


def test_a_fresh_session_has_nothing(main: Session) -> None:
    main.engine.create_session("fresh", prompt="ab")
    with main.engine.session("fresh").export() as export:
        fresh = Host(export)
        assert fresh.call("snapshot", b"mark") == api.NOT_MADE
        assert fresh.write("noise", NOISE) == api.OK
        assert fresh.run("context") == api.UNWRITTEN
        assert fresh.write("image", np.zeros((2, 2, 3), np.uint8)) == api.OK
        assert fresh.run("context") == api.STALE and "'prompt' to have run" in fresh.error()
        assert fresh.run("prompt") == api.UNWRITTEN and "announced" in fresh.error()
        assert fresh.write("tokens", np.array([97, 98, 0, 0], np.int32)) == api.OK
        assert fresh.run("prompt") == api.SHAPE
        assert fresh.get(records.State).shape == records.NONE
        fresh.do("select_shape", 0)
        assert fresh.decide() == api.OK


def test_errors_belong_to_their_thread(host: Host) -> None:
    import threading

    assert host.call("restore", b"mine") == api.CAPSULE
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(host.error()))
    thread.start()
    thread.join()
    assert said == ["no failure in this thread"] and "mine" in host.error()


def test_a_failed_replay_voids_what_is_retained(library_path: Path) -> None:
    broken = False

    def body(stage: str, shape: Any) -> Any:
        run = toy.body(stage, shape)

        def check() -> None:
            if broken and stage == "context":
                raise ValueError("out of order")

        def both(lane: Any, buffers: Any) -> None:
            lane.issue(Op("check", check))
            run(lane, buffers)

        return both

    session = toy.engine(bodies=body).create_session("main", seed=7, prompt="ab")
    session.decide(toy.see(3))
    with session.export() as export:
        host = Host(export)
        broken = True
        assert host.decide() == api.DEVICE and "ValueError('out of order')" in host.error()
        broken = False
        assert host.act() == api.STALE and host.run("prompt") == api.OK and host.decide() == api.OK
