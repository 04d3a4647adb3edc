"""Planned copies: which bytes they move, what they ask of the driver, what they keep open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.capsule.state import Place
from flashrt_core.contract import BufferSpec, DType, Role
from flashrt_core.devices import Device, cuda_transfer
from flashrt_core.devices.base import NUMPY_DTYPES
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.devices.cuda import CudaDevice
from flashrt_core.devices.transfer import Piece, Rows, Transfer, pieces
from flashrt_core.errors import DeviceError
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import NOISE, Session
from test.devices.fake_cuda import FakeCuda, Result
from test.gpu import CAPSULE_CALLS, capsule_calls, count_calls

BYTES = 4096


def specs(*names: str) -> list[BufferSpec]:
    return [BufferSpec(name, (BYTES,), DType.U8, Role.STATE) for name in names]


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "cpu":
        yield CpuDevice(1)
        return
    fake: FakeCuda = request.getfixturevalue("whole")
    device = CudaDevice()
    yield device
    device.close()
    assert not fake.opened


def numbered(buffers: dict[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """Fills every buffer with bytes of its own; copies of them."""
    draw = np.random.default_rng(0)
    for buffer in buffers.values():
        buffer.copy_(torch.from_numpy(draw.integers(0, 256, BYTES, dtype=np.uint8)))
    return {name: buffer.numpy().copy() for name, buffer in buffers.items()}


@pytest.mark.parametrize("place", ["slot", "hosted"])
@pytest.mark.parametrize("rows", [1, 2, 37])
@pytest.mark.parametrize("width", [1, 3, 16, 47])
@pytest.mark.parametrize("gap", [0, 1, 5])
def test_rows_and_nothing_else_are_copied(
    device: Device, place: str, rows: int, width: int, gap: int
) -> None:
    buffers = device.allocate(specs("kv", "more", "slot"))
    buffers |= device.allocate_host(specs("other", "hosted"))
    slot, pitch = buffers[place], width + gap
    there = [
        Rows(slot, buffers["kv"], width, rows, 7, width, 13, pitch),
        Rows(slot, buffers["more"], 5, 1, 7 + rows * width, 5, 1, 0),
    ]
    back = [
        Rows(buffers["kv"], slot, width, rows, 13, pitch, 7, width),
        Rows(buffers["more"], slot, 5, 1, 1, 0, 7 + rows * width, 5),
    ]
    save, load_ = device.plan(there), device.plan(back)
    before = numbered(buffers)
    kept = [before["kv"][13 + row * pitch :][:width] for row in range(rows)]
    payload = np.concatenate([*kept, before["more"][1:6]])

    device.transfer(save)
    device.synchronize()
    expected = dict(before)
    expected[place] = before[place].copy()
    expected[place][7 : 7 + payload.size] = payload
    assert all(np.array_equal(buffers[name].numpy(), expected[name]) for name in buffers)

    numbered({name: buffers[name] for name in ("more", "kv")})  # other bytes than before
    expected |= {name: buffers[name].numpy().copy() for name in ("kv", "more")}
    device.transfer(load_)
    device.synchronize()
    for row in range(rows):
        expected["kv"][13 + row * pitch :][:width] = kept[row]
    expected["more"][1:6] = before["more"][1:6]
    assert all(np.array_equal(buffers[name].numpy(), expected[name]) for name in buffers)


def test_the_start_of_a_buffer(device: Device) -> None:
    buffers = device.allocate(specs("a", "b")) | device.allocate_host(specs("c"))
    before = numbered(buffers)
    device.copy(buffers["b"], buffers["a"], 33)
    device.copy(buffers["c"], buffers["b"], 31)
    device.synchronize()
    for name, end in (("b", 33), ("c", 31)):
        assert np.array_equal(buffers[name].numpy()[:end], before["a"][:end])
        assert np.array_equal(buffers[name].numpy()[end:], before[name][end:])


def test_copies_of_another_device_are_refused(device: Device, whole: FakeCuda) -> None:
    other = CpuDevice(1) if device.name == "cuda" else CudaDevice()
    foreign = other.plan([])
    with pytest.raises(DeviceError, match="expected copies it planned, got"):
        device.transfer(foreign)
    other.close()


class TestPieces:
    A, B = torch.zeros(100, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)

    def test_neighbours_are_one_piece(self) -> None:
        a, b = self.A.data_ptr(), self.B.data_ptr()
        first = Rows(self.A, self.B, 10, 1, 0, 0, 20, 0)
        joined = Rows(self.A, self.B, 5, 2, 10, 5, 30, 5)  # rows without a gap are one row
        assert pieces([first, joined]) == (Piece(a, b + 20, 20, 1, 20, 20),)

    @pytest.mark.parametrize("to, source", [(11, 30), (10, 31), (9, 30), (10, 29)])
    def test_a_gap_at_either_end_is_kept(self, to: int, source: int) -> None:
        first = Rows(self.A, self.B, 10, 1, 0, 0, 20, 0)
        assert len(pieces([first, Rows(self.A, self.B, 5, 1, to, 0, source, 0)])) == 2

    def test_rows_apart_at_one_end_stay_rows(self) -> None:
        a, b = self.A.data_ptr(), self.B.data_ptr()
        rows = Rows(self.A, self.B, 4, 3, 0, 4, 0, 6)
        behind = Rows(self.A, self.B, 4, 1, 12, 0, 16, 0)
        assert pieces([rows, behind]) == (
            Piece(a, b, 4, 3, 4, 6),
            Piece(a + 12, b + 16, 4, 1, 4, 4),
        )


class TestWhatTheKernelTakes:
    """Copies on the device are its, as long as its parameter holds them; else the copy engines'."""

    @pytest.mark.parametrize(("count", "kernel"), [(1, True), (8, True), (9, False), (40, False)])
    def test_pieces(self, whole: FakeCuda, count: int, kernel: bool) -> None:
        device = CudaDevice()
        buffers = device.allocate(specs("a", "b"))
        before = numbered(buffers)
        size = BYTES // count
        planned = device.plan(
            [
                Rows(buffers["b"], buffers["a"], size - 1, 1, i * size, 0, i * size, 0)
                for i in range(count)
            ]
        )
        assert planned.call == ("cuLaunchKernel" if kernel else "cuGraphLaunch")
        device.transfer(planned)
        device.synchronize()
        for start in range(0, size * count, size):
            copied = slice(start, start + size - 1)
            assert np.array_equal(buffers["b"].numpy()[copied], before["a"][copied])
            assert buffers["b"][start + size - 1] == before["b"][start + size - 1]
        device.close()
        assert not whole.opened

    @pytest.mark.parametrize("over", [False, True])
    def test_bytes(self, whole: FakeCuda, monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
        monkeypatch.setattr(cuda_transfer, "MOST_BYTES", 99)
        device = CudaDevice()
        buffers = device.allocate(specs("a", "b"))
        planned = device.plan([Rows(buffers["b"], buffers["a"], 33 + over, 3, 0, 50, 0, 60)])
        assert (planned.call == "cuGraphLaunch") is over
        device.close()

    def test_the_layout_is_that_of_the_sources(self) -> None:
        root = Path(__file__).resolve().parents[2]
        kernel = (root / "csrc" / "ops" / "copy_pieces.cu").read_text()
        handover = (root / "csrc" / "abi" / "handover.h").read_text()
        names = "uint64_t to, from, width, rows, to_pitch, from_pitch;"
        assert names in kernel and names in handover
        most, threads = cuda_transfer.MOST_PIECES, cuda_transfer.THREADS
        assert f"kMostPieces = {most};" in kernel and f"__launch_bounds__({threads})" in kernel
        assert f"FLASHRT_COPY_PIECES = {most}, FLASHRT_COPY_THREADS = {threads}" in handover
        assert list(Piece._fields) == [
            "target", "source", "width", "rows", "target_pitch", "source_pitch",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("there", "here", "common"), [(0, 0, 40), (39, 0, 1), (0, 39, 1), (40, 0, 0), (0, 40, 0)]
)
def test_what_one_copy_writes_none_reads(
    device: Device, there: int, here: int, common: int
) -> None:
    a = device.allocate(specs("a"))["a"]
    copies = [Rows(a, a, 4, 4, there, 12, here, 12)]  # of 40 bytes with the gaps
    if not common:
        device.plan(copies)
        return
    with pytest.raises(DeviceError, match=f"none that reads .*, got {common} bytes in common"):
        device.plan(copies)


PLAN = LoadOptions(
    device="cuda",
    precision="bf16",
    prompt="cup",
    views=("base_0_rgb",),
    steps=1,
    prompt_buckets=(9, 32),
    max_sessions=3,
    capsule_slots=2,
    host_slots=1,
    working_sets=2,
    extra={"vision_depth": 1, "trunk_depth": 2, "expert_depth": 2},
)


def started(options: LoadOptions) -> Session:
    session = load(options)
    image = np.zeros((30, 40, 3), np.uint8)
    session.decide(Observation({"base_0_rgb": image}, np.zeros(7, np.float32)))
    return session


@pytest.fixture
def session(whole: FakeCuda) -> Iterator[Session]:
    session = started(PLAN)
    yield session
    session.engine.close()
    assert not whole.opened


def test_what_the_driver_is_asked_for(whole: FakeCuda) -> None:
    session = started(replace(PLAN, working_sets=1))
    opened = set(whole.opened)
    assert capsule_calls(session) == CAPSULE_CALLS
    assert whole.opened == opened
    session.engine.close()


def test_every_graph_is_made_and_uploaded_at_configure(session: Session, whole: FakeCuda) -> None:
    graphs = {handle for kind, handle in whole.opened if kind == "executable graph"}
    assert whole.uploaded == graphs
    programs = sum(len(working.programs) for working in session.engine.sets)
    sets, hosted, shapes, directions, seats = 2, 1, 2, 2, 3
    assert len(graphs) == programs + (sets * directions + seats) * hosted * shapes


def test_a_graph_that_cannot_be_made_leaves_nothing_open(whole: FakeCuda) -> None:
    for name in ("cuGraphInstantiate", "cuGraphUpload", "cuMemcpy2DAsync"):
        whole.failing = {name: Result.CUDA_ERROR_OUT_OF_MEMORY}
        with pytest.raises(DeviceError, match=f"{name}.*out of memory"):
            load(PLAN)
        whole.failing = {}
        assert not whole.opened


def test_a_failed_launch_saves_nothing(session: Session, whole: FakeCuda) -> None:
    session.snapshot("mark")
    for name in ("mark", "new", "mark"):
        whole.failing = {"cuLaunchKernel": Result.CUDA_ERROR_OUT_OF_MEMORY}
        with pytest.raises(DeviceError, match="cuLaunchKernel"):
            session.snapshot(name)
        whole.failing = {}
    assert session.engine.store.list() == []  # half a capsule is none
    for name in ("mark", "new"):
        session.snapshot(name)  # and no slot is lost
    session.engine.store.drop("new")
    whole.failing = {"cuMemcpyAsync": Result.CUDA_ERROR_OUT_OF_MEMORY}
    for _ in range(2):
        with pytest.raises(DeviceError, match="cuMemcpyAsync"):
            session.engine.store.to_host("mark")
    whole.failing = {}
    assert session.engine.store.to_host("mark").place is Place.HOST


@pytest.mark.parametrize("bucket", [0, 1])
@pytest.mark.parametrize("on_host", [False, True])
def test_a_capsule_is_the_rows_of_its_bucket(session: Session, bucket: int, on_host: bool) -> None:
    """Every byte of every buffer: those of the regions come back, all others stay as they are."""
    engine, contract = session.engine, session.contract
    shape = contract.shapes[bucket]
    session.select_shape(shape)
    session.write(
        {
            spec.name: np.ones(spec.shape, NUMPY_DTYPES[spec.dtype])
            for spec in contract.inputs
            if spec.name != NOISE
        }
    )
    session.decide()
    flat = {
        spec.name: session.buffers[spec.name].view(-1).view(torch.uint8)
        for spec in contract.buffers
        if spec.role in (Role.STATE, Role.SCRATCH)
    }

    def dirty(seed: int) -> dict[str, np.ndarray[Any, Any]]:
        draw = np.random.default_rng(seed)
        for bytes_ in flat.values():
            bytes_.copy_(torch.from_numpy(draw.integers(0, 256, bytes_.numel(), dtype=np.uint8)))
        return {name: bytes_.numpy().copy() for name, bytes_ in flat.items()}

    first = dirty(1)
    info = session.snapshot("mark")
    if on_host:
        engine.store.to_host("mark")
    expected, payload = dirty(2), []
    for region in contract.regions[shape]:
        for row in range(region.rows):
            start = region.offset + row * region.pitch
            valid = slice(start, start + region.row_bytes)
            expected[region.buffer][valid] = first[region.buffer][valid]
            payload.append(first[region.buffer][valid])
    session.restore("mark")
    for name, bytes_ in flat.items():
        assert np.array_equal(bytes_.numpy(), expected[name]), name
    whole_payload = np.concatenate(payload)
    assert info.nbytes == whole_payload.size
    assert np.array_equal(engine.store.export("mark").payload, whole_payload)


def test_a_decision_rehearses_a_snapshot_and_copies_nothing(session: Session) -> None:
    """Once capsules are kept: same calls of the driver, same capsules."""

    def decide() -> Counter[str]:
        with count_calls(engine.device.driver) as calls:  # type: ignore[attr-defined]
            session.decide(Observation(session_images, np.zeros(7, np.float32)))
        return Counter(calls)

    engine, session_images = session.engine, {"base_0_rgb": np.ones((30, 40, 3), np.uint8)}
    expected = decide()
    assert len(engine.rehearsal) == 0
    info = session.snapshot("mark")
    assert decide() == expected and len(engine.rehearsal) == 1
    assert engine.store.list() == [info], "its host's state, too, is that of the snapshot"
    engine.create_session("other", prompt="bowl").decide(
        Observation(session_images, np.zeros(7, np.float32))
    )
    session.restore("mark")
    assert session.decisions == info.decision
    with pytest.raises(DeviceError, match="copies it planned"):
        engine.device.transfer(Transfer(()))


def test_a_snapshot_over_an_older_one_finds_its_copies(session: Session) -> None:
    """Of another shape, in the host's memory, by another set of buffers."""
    engine, contract = session.engine, session.contract
    session.snapshot("mark")
    for move in (lambda: None, lambda: engine.store.to_host("mark")):
        move()
        for shape in (*contract.shapes, *contract.shapes):
            session.select_shape(shape)
            session.write(
                {
                    spec.name: np.ones(spec.shape, NUMPY_DTYPES[spec.dtype])
                    for spec in contract.inputs
                    if spec.name != NOISE
                }
            )
            session.decide()
            copier = engine.set_of(session).copier
            for _ in range(2):
                info = session.snapshot("mark")
                slot = engine.store.find("mark").slot
                assert engine.store.find("mark").saving is copier.planned(shape, slot)[0]
                assert info.nbytes == copier.nbytes(shape) and info.decision == session.decisions


def test_copies_of_state_leave_windows_alone(session: Session) -> None:
    """What waits for its window waits on: no window is among the regions."""
    spec = session.contract.input("noise")
    session.engine.device.write(session.buffers["noise"], np.ones(spec.shape, np.float32))
    with count_calls(session.engine.device.driver) as calls:  # type: ignore[attr-defined]
        session.snapshot("mark")
    assert calls == Counter(CAPSULE_CALLS["snapshot"])
