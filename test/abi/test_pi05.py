"""π0.5 through the C interface: the bits that Python gives, on the CPU and on a GPU.

On a GPU: ``pytest -m gpu test/abi/test_pi05.py -s`` prints what the calls take, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from flashrt_core.c_interface import records
from flashrt_core.devices.cuda_library import find_fatbin
from flashrt_core.guidance import GUIDANCE, PREVIOUS, Previous
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from test.abi import host as api
from test.abi.conftest import ROOT
from test.abi.host import Host
from test.abi.test_embed import checkout, embed
from test.gpu import requires_gpu

__all__ = ["checkout"]  # the fixture

TINY = LoadOptions(state_dim=1, max_sessions=3, capsule_slots=2, threads=1)
GPU = replace(TINY, device="cuda", precision="bf16")
SIZES: list[Any] = [pytest.param(TINY, 4, id="cpu-tiny")]
SIZES += [pytest.param(GPU, 64, id="cuda-tiny", marks=requires_gpu)]
SIZES += [
    pytest.param(
        replace(GPU, preset="base", horizon=10, prompt_buckets=(48,)),
        64,
        id="cuda-base",
        marks=[*requires_gpu, pytest.mark.timeout(400)],
    )
]


def observe(session: Session, value: int) -> None:
    images = {view: np.full((64, 64, 3), value, np.uint8) for view in session.processor.views}
    session.decide(Observation(images, np.zeros(1, np.float32)))


class Robot:
    """Images and noise of a decision, for either side."""

    def __init__(self, session: Session) -> None:
        self.contract = session.contract
        self.draw = np.random.default_rng(0)

    def windows(self) -> dict[str, np.ndarray[Any, Any]]:
        values = {}
        for spec in self.contract.inputs:
            if spec.name.startswith("image."):
                values[spec.name] = self.draw.integers(0, 256, spec.shape, dtype=np.uint8)
        return values

    def noise(self) -> np.ndarray[Any, Any]:
        shape = self.contract.input("noise").shape
        return self.draw.standard_normal(shape, dtype=np.float32)


def decide(host: Host, windows: dict[str, Any], noise: Any) -> bytes:
    for name, value in {**windows, "noise": noise}.items():
        assert host.write(name, value) == api.OK, host.error()
    assert host.decide() == api.OK, host.error()
    return host.read(noise.shape).tobytes()


def act(host: Host, noise: Any) -> bytes:
    assert host.write("noise", noise) == host.act() == api.OK, host.error()
    return host.read(noise.shape).tobytes()


@pytest.mark.parametrize(("options", "trials"), SIZES)
def test_equal_bits(library_path: Path, options: LoadOptions, trials: int) -> None:
    session = load(replace(options, prompt="pick up the cup"))
    engine, robot = session.engine, Robot(session)
    try:
        other = engine.create_session("other", prompt="open the drawer")
        for each, value in ((session, 80), (other, 160)):
            observe(each, value)
        cases = [(robot.windows(), robot.noise()) for _ in range(4)]
        session.write(cases[0][0])
        by_python = [
            (session.write(windows), session.decide(noise=noise).raw.tobytes())[1]
            for windows, noise in cases
        ]
        times: dict[str, list[float]] = {}
        with session.export() as first, other.export() as second:
            host, dirty, handle = Host(first), Host(second), ctypes.c_void_p()
            wait = waiter(session)
            assert [decide(host, *case) for case in cases] == by_python
            for index in range(trials):
                windows, noise = cases[index % 4]
                assert decide(host, windows, noise) == by_python[index % 4]
                following = robot.noise()
                timed(times, "snapshot_us", wait, lambda: host.do("snapshot", b"mark"))
                expected = act(host, following)
                decide(dirty, *cases[(index + 1) % 4])
                timed(times, "switch_us", wait, lambda: host.do("restore", b"mark"))
                assert act(host, following) == expected
                timed(times, "restore_us", wait, lambda: host.do("restore", b"mark"))
                fork = partial(host.do, "fork", b"mark", None, b"b", ctypes.byref(handle))
                timed(times, "fork_us", wait, fork)
                branch = Host(first, handle.value)
                decide(dirty, *cases[(index + 2) % 4])
                assert act(branch, following) == expected
                branch.do("close")
                report = records.Report()
                assert host.write("noise", following) == api.OK
                host.do("act", 0, ctypes.byref(report))
                times.setdefault("act_us", []).append(report.wall_us)
            nbytes = host.get(records.Slot, host.find("slot", "mark")).bytes
        told = {name: round(float(np.median(found)), 1) for name, found in times.items()}
        print(json.dumps({"device": options.device, "preset": options.preset, "trials": trials}
                         | {"bytes": nbytes, "bit_exact": True} | told))  # fmt: skip
        session.write(cases[1][0])  # and Python goes on
        assert session.decide(noise=cases[1][1]).raw.tobytes() == by_python[1]
    finally:
        engine.close()


def test_a_host_continues_chunks(library_path: Path) -> None:
    """It writes both windows itself; they stay until it writes others."""
    session = load(replace(TINY, prompt="pick up the cup", real_time_chunking=True))
    observe(session, 80)
    robot, dim = Robot(session), session.processor.action_dim
    windows, noise = robot.windows(), robot.noise()
    session.write(windows)
    free = session.decide(noise=noise).raw.tobytes()
    previous = Previous(np.ones((6, dim)), 2)
    guided = session.act(noise=noise, previous=previous).raw.tobytes()
    values = {name: session.buffers[name].numpy().copy() for name in (PREVIOUS, GUIDANCE)}
    with session.export() as export:
        host = Host(export)
        assert decide(host, {**windows, **values}, noise) == guided != free
        assert act(host, noise) == guided
        assert host.write(GUIDANCE, 0 * values[GUIDANCE]) == api.OK
        assert act(host, noise) == free
        assert host.write(GUIDANCE, values[GUIDANCE]) == api.OK
    assert session.act(noise=noise).raw.tobytes() == free, "in Python each says anew"
    session.engine.close()


def waiter(session: Session) -> Callable[[], object]:
    """Waits for the device while the C interface has it."""
    device: Any = session.engine.device
    if device.name == "cpu":
        return lambda: None
    return lambda: device.driver.call("cuStreamSynchronize", device._stream)


def timed(
    times: dict[str, list[float]], name: str, wait: Callable[[], object], call: Callable[[], Any]
) -> Any:
    """What ``call`` gives; its time goes into the list, until the device is done with it."""
    wait()
    began = perf_counter()
    value = call()
    wait()
    times.setdefault(name, []).append((perf_counter() - began) * 1e6)
    return value


def test_cameras_bytes_are_not_exported(library_path: Path) -> None:
    session = load(replace(TINY, camera_bytes=20_000))
    with pytest.raises(Exception, match="image inputs of fixed size.*camera_bytes=0"):
        session.export()
    session.engine.close()


@pytest.mark.parametrize("kind", [pytest.param("cuda", marks=requires_gpu)])
def test_the_example_on_a_gpu(checkout: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHRT_KERNELS", str(find_fatbin()))  # which that checkout did not build
    status, out, err = embed(checkout, kind, "tiny", "20")
    # As for anybody who follows the document: what PYTHONPATH adds is not there.
    remedy = f"of packages it sees those in {sys.prefix} alone: pip install '.[cuda]' there"
    assert status == 0, f"{err}{remedy}"
    print(out)
    assert json.loads(out.splitlines()[-1])["bit_exact"]


def test_the_document_names_what_there_is() -> None:
    """Every function, code and command of docs/c_interface.md exists."""
    import re

    text = (ROOT / "docs" / "c_interface.md").read_text()
    header = (ROOT / "csrc" / "include" / "flashrt.h").read_text()
    named = set(re.findall(r"\b(flashrt_[a-z_]+|FLASHRT_[A-Z_]+)\b", text))
    outside = {"flashrt_core", "flashrt_ros", "FLASHRT_LIBRARY", "FLASHRT_CORE_ONLY"}
    assert {name for name in named - outside if not re.search(rf"\b{name}\b", header)} == set()
    for path in re.findall(r"\]\(\.\./([^)#]+)\)", text):
        assert (ROOT / path).exists(), path
