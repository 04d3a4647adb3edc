"""How windows travel, and what a decision asks of the driver once everything is captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.contract import BufferSpec, DType, Role
from flashrt_core.devices.cuda import CudaDevice
from flashrt_core.devices.transfer import Rows
from flashrt_core.errors import DeviceError, StaleStateError
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session, noise_for
from test.devices.fake_cuda import FakeCuda, Result
from test.gpu import DECISION_CALLS, count_calls

SPECS = [
    BufferSpec("kept", (5,), DType.F32, Role.STATE),
    *(BufferSpec(name, (100,), DType.F32, Role.SWAP) for name in "abcd"),
]


@pytest.fixture
def device(whole: FakeCuda) -> Iterator[CudaDevice]:
    device = CudaDevice()
    yield device
    device.close()
    assert not whole.opened


def filled(value: float) -> np.ndarray[Any, Any]:
    return np.full(100, value, np.float32)


@pytest.mark.parametrize(("names", "copies"), [("a", 1), ("ab", 1), ("acd", 2), ("bd", 2), ("", 0)])
def test_changed_neighbours_share_a_copy(device: CudaDevice, names: str, copies: int) -> None:
    buffers = device.allocate(SPECS)
    program = device.capture([("nothing", lambda lane: None)])
    for name in "abcd":
        device.write(buffers[name], filled(1.0))
    device.replay(program)
    with count_calls(device.driver) as calls:
        for name in reversed(names):
            device.write(buffers[name], filled(2.0))
        assert not calls
        device.replay(program)
        assert calls["cuMemcpyHtoDAsync"] == copies
    for name in "abcd":
        assert (buffers[name] == (2.0 if name in names else 1.0)).all()


def test_results_come_with_the_replay(device: CudaDevice) -> None:
    buffers = device.allocate(SPECS)
    program = device.capture([("nothing", lambda lane: None)])
    order: list[str] = []
    buffers["b"].fill_(3.0)
    with count_calls(device.driver) as calls:
        device.replay(program, outputs=[buffers["b"]], meanwhile=lambda: order.extend(calls))
        assert order == ["cuGraphLaunch", "cuMemcpyDtoHAsync"]
        before = dict(calls)
        first = device.read(buffers["b"])
        assert (first == 3.0).all() and calls == before
        assert calls["cuStreamSynchronize"] == 1
    first[:] = 0.0  # the reader's own
    assert (device.read(buffers["b"]) == 3.0).all()


@pytest.mark.parametrize("after", ["replay", "write", "write elsewhere", "copy", "transfer"])
def test_an_older_result_is_not_handed_out(device: CudaDevice, after: str) -> None:
    buffers = device.allocate(SPECS)
    program = device.capture([("nothing", lambda lane: None)])
    device.replay(program, outputs=[buffers["b"]])
    planned = device.plan([Rows(buffers["b"], buffers["a"], 400)])
    if after == "replay":
        buffers["b"].fill_(7.0)
        device.replay(program)
    elif after == "write":
        device.write(buffers["b"], filled(7.0))
    elif after == "write elsewhere":  # a part of it, at another address than a window's
        device.write(buffers["b"][1:], filled(7.0)[1:])
        device.write(buffers["b"][:1], filled(7.0)[:1])
    else:
        device.write(buffers["a"], filled(7.0))
        if after == "copy":
            device.copy(buffers["b"], buffers["a"], 400)
        else:
            device.transfer(planned)
    assert (device.read(buffers["b"]) == 7.0).all()


def test_a_window_is_not_written_while_a_copy_reads_it(device: CudaDevice) -> None:
    buffers = device.allocate(SPECS)
    with count_calls(device.driver) as calls:
        device.write(buffers["a"], filled(1.0))
        device.copy(buffers["kept"], buffers["a"], 4)
        device.write(buffers["b"], filled(2.0))
        assert calls["cuStreamSynchronize"] == 0, "that one is not read"
        device.copy(buffers["kept"], buffers["b"], 4)
        for name, waits in (("b", 1), ("a", 1), ("b", 1)):
            device.write(buffers[name], filled(3.0))
            assert calls["cuStreamSynchronize"] == waits


def test_what_is_not_waited_for_is_under_way(device: CudaDevice) -> None:
    buffers = device.allocate(SPECS)
    program = device.capture([("nothing", lambda lane: None)])
    device.write(buffers["a"], filled(1.0))
    with count_calls(device.driver) as calls:
        device.replay(program, wait=False)
        device.write(buffers["b"], filled(2.0))
        assert calls == {"cuMemcpyHtoDAsync": 1, "cuGraphLaunch": 1}
        device.write(buffers["a"], filled(3.0))
        assert calls["cuStreamSynchronize"] == 1
    assert (device.read(buffers["a"]) == 3.0).all()


LARGE = [
    BufferSpec("first", (1 << 16,), DType.U8, Role.SWAP),
    BufferSpec("second", (1 << 16,), DType.U8, Role.SWAP),
    BufferSpec("small", (64,), DType.U8, Role.SWAP),
]


def bytes_of(value: int, count: int = 1 << 16) -> np.ndarray[Any, Any]:
    return np.full(count, value, np.uint8)


def test_bytes_that_were_prepared_are_not_copied_again(device: CudaDevice) -> None:
    buffers = device.allocate(LARGE)
    program = device.capture([("nothing", lambda lane: None)])
    first, second = bytes_of(1), bytes_of(2)
    device.prepare(buffers["first"], first)
    device.prepare(buffers["small"], bytes_of(9, 64))  # too small for a place of its own
    device.replay(program)
    assert not any(buffers[name].any() for name in buffers), "it may follow, or not"
    prepared = device._staging.window(buffers["first"]).spare[1]  # type: ignore[union-attr,index]
    first[:] = 77  # only to see that nobody reads it again
    for name, value in (("first", first), ("second", second), ("small", bytes_of(3, 64))):
        device.write(buffers[name], value)
    with count_calls(device.driver) as calls:
        device.replay(program)
    assert calls["cuMemcpyHtoDAsync"] == 2, "what lies elsewhere on the host goes by itself"
    assert [int(buffers[name][0]) for name in ("first", "second", "small")] == [1, 2, 3]
    assert prepared is device._staging.window(buffers["first"]).view  # type: ignore[union-attr]
    device.write(buffers["first"], first)
    device.replay(program)
    assert int(buffers["first"][0]) == 77, "prepared once is written once"


def test_what_was_prepared_for_another_write_is_not_used(device: CudaDevice) -> None:
    buffers = device.allocate(LARGE)
    program = device.capture([("nothing", lambda lane: None)])
    device.prepare(buffers["first"], bytes_of(1))
    device.write(buffers["first"], bytes_of(2))
    device.replay(program)
    assert (buffers["first"] == 2).all()
    late = bytes_of(3, 100)
    device.prepare(buffers["first"], late)
    device.write(buffers["first"], bytes_of(4))
    device.write(buffers["first"], late)  # on top of what waits already
    device.replay(program)
    assert (buffers["first"][:100] == 3).all() and (buffers["first"][100:] == 4).all()
    device.prepare(buffers["first"], bytes_of(5, (1 << 16) + 1))
    device.prepare(buffers["first"], bytes_of(6, 1 << 17)[::2])
    device.replay(program)
    assert (buffers["first"][100:] == 4).all()


def test_a_prepared_place_is_not_written_while_a_copy_reads_it(device: CudaDevice) -> None:
    buffers = device.allocate(LARGE)
    program = device.capture([("nothing", lambda lane: None)])
    with count_calls(device.driver) as calls:
        for value in (1, 2, 3):
            array = bytes_of(value)
            device.prepare(buffers["first"], array)
            device.write(buffers["first"], array)
            device.replay(program, wait=False)  # each time from the other place, while one is free
        assert calls["cuStreamSynchronize"] == 1
    assert (device.read(buffers["first"]) == 3).all()


def test_sizes_are_checked(device: CudaDevice) -> None:
    square = BufferSpec("square", (10, 10), DType.F32, Role.SWAP)
    buffers = device.allocate([*SPECS, square])
    for name, count in (("a", 101), ("kept", 6), ("square", 99)):
        with pytest.raises(DeviceError, match=f"write: expected .* bytes, got {4 * count} bytes"):
            device.write(buffers[name], np.zeros(count, np.float32))


def test_fewer_values_go_to_the_start(device: CudaDevice) -> None:
    buffers = device.allocate(SPECS)
    program = device.capture([("nothing", lambda lane: None)])
    for name in ("a", "b", "kept"):
        device.write(buffers[name], np.full(buffers[name].numel(), 1.0, np.float32))
    device.replay(program)
    with count_calls(device.driver) as calls:
        for name in ("a", "b"):
            device.write(buffers[name], np.full(3, 2.0, np.float32))
        device.replay(program)
        assert calls["cuMemcpyHtoDAsync"] == 1
        device.write(buffers["kept"], np.full(3, 2.0, np.float32))
    for name in ("a", "b", "kept"):
        assert buffers[name].tolist() == [2.0] * 3 + [1.0] * (buffers[name].numel() - 3)


def test_formats_that_numpy_lacks_are_widened(device: CudaDevice) -> None:
    buffers = device.allocate([BufferSpec("x", (2, 3), DType.BF16, Role.SWAP)])
    buffers["x"][:] = torch.arange(6).view(2, 3)
    assert device.read(buffers["x"]).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.fixture
def session(whole: FakeCuda) -> Iterator[Session]:
    session = load(
        LoadOptions(device="cuda", precision="bf16", prompt="pick up the cup", max_sessions=2)
    )
    yield session
    session.engine.close()
    assert not whole.opened


def observation(session: Session, value: int) -> Observation:
    images = {view: np.full((30, 40, 3), value, np.uint8) for view in session.processor.views}
    return Observation(images, np.zeros(session.processor.state_dim, np.float32))


def test_a_decision_asks_the_driver_for_nothing_else(session: Session) -> None:
    session.decide(observation(session, 0))
    with count_calls(session.engine.device.driver) as calls:  # type: ignore[attr-defined]
        for value in range(1, 6):
            session.decide(observation(session, value))
    assert calls == {name: 5 * count for name, count in DECISION_CALLS.items()}


def test_a_new_prompt_replays_its_stage_and_no_more(session: Session) -> None:
    session.decide(observation(session, 0))
    session.set_prompt("put it down")
    with count_calls(session.engine.device.driver) as calls:  # type: ignore[attr-defined]
        session.decide(observation(session, 1))
    extra = {"cuMemcpyHtoDAsync": 1, "cuGraphLaunch": 1}  # nothing waits for it
    spent = {name: calls[name] - count for name, count in DECISION_CALLS.items()}
    assert set(calls) == set(DECISION_CALLS)
    assert {name: count for name, count in spent.items() if count} == extra


def test_noise_drawn_ahead_is_that_of_the_decision(session: Session) -> None:
    noises = []
    for value in range(3):
        session.decide(observation(session, value))
        noises.append(session.engine.buffers["noise"].numpy().copy())
    for index, noise in enumerate(noises):
        assert np.array_equal(noise, noise_for(0, index, noise.shape))


def test_a_failed_launch_voids_what_was_retained(session: Session, whole: FakeCuda) -> None:
    session.decide(observation(session, 0))
    whole.failing["cuGraphLaunch"] = Result.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceError, match="cuGraphLaunch"):
        session.decide(observation(session, 1))
    del whole.failing["cuGraphLaunch"]
    with pytest.raises(StaleStateError):
        session.act()


def host_specs(count: int = 2, size: int = 300) -> list[BufferSpec]:
    return [BufferSpec(f"host.{i}", (size,), DType.U8, Role.STATE) for i in range(count)]


class TestHostMemory:
    def test_it_is_pinned_once_and_given_back(self, whole: FakeCuda) -> None:
        device = CudaDevice()
        hosted = device.allocate_host(host_specs())
        block = [address for kind, address in whole.opened if kind == "host memory"]
        assert [buffer.data_ptr() for buffer in hosted.values()] == [block[0], block[0] + 512]
        assert all(not buffer.any() for buffer in hosted.values())
        with pytest.raises(DeviceError, match="one allocation a device"):
            device.allocate_host(host_specs())
        device.close()
        assert not whole.opened

    def test_without_memory_nothing_stays_open(self, whole: FakeCuda) -> None:
        device = CudaDevice()
        whole.failing = {"cuMemHostAlloc": Result.CUDA_ERROR_OUT_OF_MEMORY}
        with pytest.raises(DeviceError, match="cuMemHostAlloc.*out of memory"):
            device.allocate_host(host_specs())
        whole.failing = {}
        device.close()
        assert not whole.opened

    def test_copies_to_it_and_back_say_so(self, device: CudaDevice, whole: FakeCuda) -> None:
        buffers = device.allocate(SPECS)
        hosted = device.allocate_host(host_specs())["host.1"]
        buffers["kept"].copy_(torch.arange(5.0))
        there = device.plan([Rows(hosted, buffers["kept"], 8, 2, 4, 8, 0, 12)])
        back = device.plan([Rows(buffers["kept"], hosted, 16, 1, 4, 16, 4, 16)])
        device.plan([Rows(buffers["a"], buffers["b"], 16, 1, 4, 16, 0, 16)])
        host, on_device = 1, 2
        kinds = [
            (on_device, host),
            (host, on_device),
        ]  # the third is the kernel's
        assert whole.copied == kinds and not hosted.any()  # nothing is copied yet
        device.transfer(there)
        assert hosted.numpy()[4:20].view(np.float32).tolist() == [0.0, 1.0, 3.0, 4.0]
        device.transfer(back)
        assert buffers["kept"].tolist() == [0.0, 0.0, 1.0, 3.0, 4.0]
        device.copy(buffers["kept"], hosted, 8)
        assert buffers["kept"].tolist() == [0.0, 0.0, 1.0, 3.0, 4.0]

    def test_the_host_waits_before_it_touches_it(self, device: CudaDevice) -> None:
        hosted = device.allocate_host(host_specs())["host.0"]
        with count_calls(device.driver) as calls:
            device.write(hosted[:3], np.array([1, 2, 3], np.uint8))
            assert device.read(hosted[:4]).tolist() == [1, 2, 3, 0]
            device.synchronize()
            assert calls == {"cuStreamSynchronize": 3}
        with pytest.raises(DeviceError, match="expected 300 bytes, got 301 bytes"):
            device.write(hosted, np.zeros(301, np.uint8))

    def test_a_capsule_goes_there_and_back(self, whole: FakeCuda) -> None:
        plan = {"views": ("base_0_rgb",), "steps": 1, "prompt_buckets": (32,)}
        depths = {"vision_depth": 1, "trunk_depth": 1, "expert_depth": 1}
        session = load(
            LoadOptions(
                device="cuda", precision="bf16", prompt="cup", extra=depths, host_slots=1, **plan
            )
        )
        image = np.zeros((30, 40, 3), np.uint8)
        session.decide(Observation({"base_0_rgb": image}, np.zeros(7, np.float32)))
        kv = session.engine.buffers["kv"]
        kv.copy_(torch.rand(kv.shape))
        session.snapshot("mark")
        first = session.engine.store.export("mark").payload
        session.engine.store.to_host("mark")
        assert session.engine.store.export("mark").payload.tobytes() == first.tobytes()
        kv.zero_()
        session.restore("mark")
        session.snapshot("again")
        assert session.engine.store.export("again").payload.tobytes() == first.tobytes()
        session.engine.close()
        assert not whole.opened
