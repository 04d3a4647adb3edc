"""The device that computes references."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.errors import CapsuleError
from flashrt_core.fingerprint import fingerprint
from flashrt_core.kernels.op import Op
from test.core import toy


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("place", "rounds"), [("cpu", True), ("cuda", False)])
def test_references_on_a_gpu_convolve_in_float32(
    monkeypatch: pytest.MonkeyPatch, place: str, rounds: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    CpuDevice(place=place)
    assert torch.backends.cudnn.allow_tf32 is rounds


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_replay_has_the_threads_that_the_device_was_opened_with(count: int) -> None:
    """Whoever calls, and whatever torch was told meanwhile: sums are added up in as many pieces."""
    found = []
    device = CpuDevice(threads=count)
    assert torch.get_num_threads() == count
    op = Op("count", lambda: found.append(torch.get_num_threads()))
    program = device.capture([("stage", lambda lane: lane.issue(op))])

    def replay(told: int | None) -> None:
        if told is not None:
            torch.set_num_threads(told)
        device.replay(program)
        assert told is None or torch.get_num_threads() == told, "what was told is true again"

    for told in (1, 2, 4):
        replay(told)
        for new in (None, told):
            thread = threading.Thread(target=replay, args=(new,))
            thread.start()
            thread.join()
    assert found == [count] * 9


def test_a_replay_that_fails_leaves_the_threads_as_they_were() -> None:
    device = CpuDevice(threads=2)
    torch.set_num_threads(1)

    def fail() -> None:
        raise KeyboardInterrupt

    program = device.capture([("stage", lambda lane: lane.issue(Op("fail", fail)))])
    with pytest.raises(KeyboardInterrupt):
        device.replay(program)
    assert torch.get_num_threads() == 1


def test_own_choice_is_that_of_the_time_it_was_opened() -> None:
    torch.set_num_threads(3)
    device = CpuDevice()
    torch.set_num_threads(1)
    assert device.execution["threads"] == "3"


def saved(threads: int, folder: Path) -> Path:
    engine = toy.engine(device=CpuDevice(threads))
    main = engine.create_session("main", prompt="ab")
    main.decide(toy.see(3))
    main.snapshot("mark")
    engine.store.write_file("mark", folder / str(threads))
    return folder / str(threads)


def test_bits_of_other_threads_are_another_plan(tmp_path: Path) -> None:
    file = saved(2, tmp_path)
    with pytest.raises(CapsuleError, match=r"differs in \['threads'\]; .* shapes and threads"):
        toy.engine(device=CpuDevice(1)).store.read_file(file)
    engine = toy.engine(device=CpuDevice(2))
    torch.set_num_threads(1)  # which is not asked
    engine.store.read_file(file)
    assert engine.fork("main", capsule="mark").act().stamp_ns == 3


def test_instructions_are_part_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(1, tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "of another machine")
    with pytest.raises(CapsuleError, match=r"differs in \['instructions'\]"):
        toy.engine(device=CpuDevice(1)).store.read_file(file)


def test_a_device_whose_bits_depend_on_nothing_else_adds_nothing() -> None:
    """What a GPU's plan is called does not change with how the CPU is called."""
    assert CpuDevice(place="cuda").execution == {}
    what = {"config": {}, "precision": "bf16", "weights": "w", "arch": "sm_90", "library": "l"}
    plain = fingerprint(toy.contract(), **what, transforms={})
    assert plain == fingerprint(toy.contract(), **what, transforms={}, execution={})
    assert sorted(plain.parts) == [
        *("arch", "calibration", "config", "layout", "library", "policy", "precision", "shapes"),
        *("transforms", "weights"),
    ]
