"""Whole numbers that stages take for counts, places or indices are checked in C as in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.c_interface import records
from flashrt_core.contract import DType
from flashrt_core.errors import InputError, StaleStateError
from flashrt_core.load import LoadOptions, load
from flashrt_core.session import Session
from test.abi import host as api
from test.abi.host import Host
from test.core import toy

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
ALLOWED = {toy.SMALL: range(128), toy.LARGE: range(-3, 200)}


def tokens(third: int = 0) -> Array:
    return np.array([97, 98, third, 0], np.int32)


def bounded(monkeypatch: pytest.MonkeyPatch, dtype: DType = DType.I32) -> Session:
    """The toy with bounds of its tokens, which are others in each shape."""
    plain = toy.contract()
    buffers = [
        replace(each, dtype=dtype) if each.name == "tokens" else each for each in plain.buffers
    ]
    inputs = [
        replace(each, dtype=dtype) if each.name == "tokens" else each for each in plain.inputs
    ]
    bounds = {shape: {"tokens": allowed} for shape, allowed in ALLOWED.items()}
    spec = toy.changed(plain, buffers=tuple(buffers), inputs=tuple(inputs), bounds=bounds)
    monkeypatch.setattr(toy, "contract", lambda: spec)
    return toy.engine().create_session("main", seed=7, prompt="ab")


@pytest.fixture
def main(library_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    session = bounded(monkeypatch)
    session.decide(toy.see(3))
    return session


@pytest.fixture
def host(main: Session) -> Iterator[Host]:
    with main.export() as export:
        yield Host(export)


def refused(host: Host, value: Array, said: str) -> None:
    """A write that changes nothing: what is retained is still of the last one."""
    index = host.find("stage", "context")
    before = host.get(records.Stage, index).validity
    assert host.write("tokens", value) == api.INPUT
    assert host.error() == f"input 'tokens': expected {said}"
    assert host.get(records.Stage, index).validity == before


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (tokens(128), "0..127, got 128 at element 2"),
        (np.array([-1, 98, 300, 0], np.int32), "0..127, got -1 at element 0"),
        (np.array([0, 0, 0, 2**31 - 1], np.int32), "0..127, got 2147483647 at element 3"),
    ],
)
def test_out_of_range(main: Session, value: Array, said: str) -> None:
    with pytest.raises(InputError, match=r"input 'tokens': expected 0\.\.127, got"):
        main.write({"tokens": value})
    with main.export() as export:
        host = Host(export)
        refused(host, value, said)
        assert host.write("noise", toy.noise_of(7, 1)) == host.act() == api.OK


def test_the_ends_are_in_range(host: Host) -> None:
    for value in (np.array([0, 127, 0, 0], np.int32), tokens()):
        assert host.write("tokens", value) == host.decide() == api.OK, host.error()


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I32, DType.I64])
def test_whole_numbers_of_every_size(
    library_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: DType
) -> None:
    session = bounded(monkeypatch, dtype)
    session.select_shape(toy.SMALL)
    kind = np.dtype(dtype.value)
    with session.export() as export:
        host = Host(export)
        for value in (int(np.iinfo(kind).min), int(np.iinfo(kind).max)):
            given = np.array([1, value, 0, 0], kind)
            if value in ALLOWED[toy.SMALL]:
                assert host.write("tokens", given) == api.OK
            else:
                refused(host, given, f"0..127, got {value} at element 1")


def test_what_the_record_says(host: Host) -> None:
    def said(name: str) -> tuple[int, int]:
        spec = host.get(records.Input, host.find("input", name))
        return spec.lowest, spec.highest

    assert said("tokens") == (0, 127)
    assert said("image") == said("noise") == (INT64.min, INT64.max)
    host.do("select_shape", 1)
    assert said("tokens") == (-3, 199)


class TestAnotherShape:
    """What was right in one shape may be wrong in the next: it is written again."""

    def test_in_c(self, host: Host) -> None:
        host.do("select_shape", 1)
        assert host.run("prompt") == api.UNWRITTEN
        assert host.write("tokens", tokens(199)) == host.run("prompt") == api.OK
        assert host.write("tokens", tokens(198)) == api.OK, "which waits"
        host.do("select_shape", 1)
        assert host.run("prompt") == api.OK, "the same shape changes nothing"
        assert host.write("tokens", tokens(198)) == api.OK
        host.do("select_shape", 0)
        assert host.run("prompt") == api.UNWRITTEN and "'tokens'" in host.error()
        refused(host, tokens(199), "0..127, got 199 at element 2")
        assert host.write("tokens", tokens(9)) == host.run("prompt") == api.OK
        assert host.run("context") == api.OK, "an image is right in every shape"

    def test_in_python(self, main: Session) -> None:
        main.select_shape(toy.LARGE)
        main.write({"tokens": tokens(199)})
        main.select_shape(toy.SMALL)
        with pytest.raises(StaleStateError, match="'prompt' reads input 'tokens'"):
            main.run("prompt")
        with pytest.raises(InputError, match=r"expected 0\.\.127, got 199"):
            main.write({"tokens": tokens(199)})
        main.write({"tokens": tokens(9)})
        main.run("context")

    def test_none_in_use(self, library_path: Path, main: Session) -> None:
        fresh = main.engine.create_session("fresh")
        with fresh.export() as export:
            host = Host(export)
            assert host.get(records.Input, 1).highest == INT64.max
            assert host.write("tokens", tokens(199)) == api.OK, "nobody knows yet"
            host.do("select_shape", 0)
            assert host.run("prompt") == api.UNWRITTEN
            assert host.write("tokens", tokens(9)) == host.run("prompt") == api.OK

    def test_a_capsule_brings_its_own(self, host: Host) -> None:
        host.do("snapshot", b"small")
        host.do("select_shape", 1)
        assert host.write("tokens", tokens(199)) == api.OK
        host.do("restore", b"small")
        assert host.run("prompt") == api.UNWRITTEN
        refused(host, tokens(199), "0..127, got 199 at element 2")
        assert host.write("tokens", tokens(9)) == host.run("prompt") == api.OK


def test_of_a_policy(library_path: Path) -> None:
    """Token ids of its network, and lengths of its bucket."""
    options = LoadOptions(state_dim=1, threads=1, prompt="pick up the cup")
    session = load(options)
    bounds = session.contract.bounds
    session.select_shape(min(bounds))
    with session.export() as export:
        host = Host(export)
        for name, allowed in bounds[min(bounds)].items():
            if name not in session.contract.absent:
                continue  # of a buffer that no host writes
            spec = session.contract.input(name)
            for value in (allowed[0] - 1, allowed[-1] + 1):
                given = np.full(spec.shape, value, np.int32)
                assert host.write(name, given) == api.INPUT
                ends = f"{allowed[0]}..{allowed[-1]}"
                assert host.error() == f"input '{name}': expected {ends}, got {value} at element 0"
            for value in (allowed[0], allowed[-1]):
                assert host.write(name, np.full(spec.shape, value, np.int32)) == api.OK
        assert {"prompt_tokens", "prompt_length"} <= bounds[min(bounds)].keys()
    session.engine.close()
