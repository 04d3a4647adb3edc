"""Hosts of another version: older and newer headers, and sizes that are none."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from flashrt_core.c_interface import library as binding
from flashrt_core.c_interface import records
from flashrt_core.errors import DeviceError
from test.abi import host as api
from test.abi.conftest import HERE, ROOT, CompileC, build_abi, linked
from test.abi.host import Host
from test.abi.test_header import first_sizes
from test.core import toy

RECORDS: list[tuple[str, type[records.Record], tuple[int, ...]]] = [
    ("info", records.Info, ()),
    ("fingerprint", records.FingerprintRecord, ()),
    ("state", records.State, ()),
    ("stream", records.Stream, (0,)),
    ("shape", records.Shape, (1,)),
    ("graph", records.Graph, (0,)),
    ("buffer", records.Buffer, (0,)),
    ("input", records.Input, (1,)),
    ("output", records.Output, (0,)),
    ("stage", records.Stage, (1,)),
    ("region", records.Region, (0,)),
    ("slot", records.Slot, (0,)),
]


#: Bytes of every record in version 1.
FIRST = first_sizes()


@pytest.mark.parametrize(("name", "kind", "index"), RECORDS)
def test_sizes(host: Host, name: str, kind: type[Any], index: tuple[int, ...]) -> None:
    size, first = ctypes.sizeof(kind), FIRST[f"flashrt_{name}"]
    memory = (ctypes.c_uint8 * (size + 64))(*[0xAA] * (size + 64))
    place = ctypes.cast(memory, ctypes.POINTER(ctypes.c_uint32))
    for said in (0, 4, first - 1):
        place[0] = said
        assert host.call(f"get_{name}", *index, memory) == api.STRUCT_SIZE
        assert bytes(memory[4:]) == b"\xaa" * (size + 60), "it wrote into a record it refused"
    for said in (first, size):  # also one of version 1
        place[0] = said
        assert host.call(f"get_{name}", *index, memory) == api.OK
        assert place[0] == said and bytes(memory[said:]) == b"\xaa" * (size + 64 - said)
    place[0] = size + 64
    assert host.call(f"get_{name}", *index, memory) == api.OK
    assert place[0] == size and bytes(memory[size:]) == b"\xaa" * 64
    assert bytes(memory[4:size]) == bytes(host.get(kind, *index))[4:]


def test_reports_too(host: Host) -> None:
    report = records.Report()
    report.struct_size -= 1
    assert host.call("decide", ctypes.byref(report)) == api.STRUCT_SIZE
    assert host.get(records.State).decisions == 1, "nothing ran"


def test_the_frozen_client(client: ctypes.CDLL, host: Host) -> None:
    assert client.client_run(host.handle) == 0


def tomorrow(folder: Path) -> None:
    """The sources with a field at the end of every record, as the next version."""
    for part in ("abi", "include"):
        shutil.copytree(ROOT / "csrc" / part, folder / part)
    header = folder / "include" / "flashrt.h"
    text = re.sub(r"\} (flashrt_\w+);", r"  uint64_t appended;\n} \1;", header.read_text())
    assert text.count("uint64_t appended") == 13
    header.write_text(text.replace("FLASHRT_ABI_VERSION 2u", "FLASHRT_ABI_VERSION 3u"))


def grown() -> dict[str, Any]:
    """The Python half of the same version: the names of its records module that differ."""
    made: dict[Any, Any] = {}
    for kind in records.ALL:
        fields = [(name, made.get(each, each)) for name, each in kind._fields_]
        if issubclass(kind, records.Record):
            fields.append(("appended", ctypes.c_uint64))
        made[kind] = type(kind.__name__, kind.__bases__, {"_fields_": fields})
        made[ctypes.POINTER(kind)] = ctypes.POINTER(made[kind])
    names = {kind.__name__: made[kind] for kind in records.ALL}
    return names | {"ALL": tuple(names.values()), "ABI_VERSION": 3}


def test_an_older_host_on_a_newer_library(
    compiler: list[str], compile_c: CompileC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tomorrow(tmp_path)
    monkeypatch.setattr(build_abi, "SOURCES", tmp_path / "abi")
    monkeypatch.setattr(build_abi, "HEADERS", tmp_path / "include")
    newer = tmp_path / "libflashrt_tomorrow.so"
    build_abi.build(newer, compiler)
    with pytest.raises(DeviceError, match=r"of version 2 .*got version 3 at .*build it again"):
        binding.load_library(newer)
    for name, value in grown().items():
        monkeypatch.setattr(records, name, value)
    monkeypatch.setenv("FLASHRT_LIBRARY", str(newer))
    main = toy.engine().create_session("main", seed=7, prompt="ab")
    main.decide(toy.see(3))
    client = ctypes.CDLL(str(compile_c(HERE / "client.c", *linked(newer), name="older_client.so")))
    with main.export() as export:
        assert client.client_run(ctypes.c_void_p(export.handle)) == 0


def test_a_newer_host_on_this_library(
    compile_c: CompileC, library_path: Path, host: Host, tmp_path: Path
) -> None:
    """The same client compiled against tomorrow's header, which knows longer records."""
    tomorrow(tmp_path)
    text = (HERE / "client.c").read_text()
    text = text.replace("flashrt_v1.h", str(tmp_path / "include" / "flashrt.h"))
    text = text.replace("flashrt_abi_version() >=", "flashrt_abi_version() + 1 ==")
    text = text.replace("struct_size == sizeof", "struct_size + 8 == sizeof")
    source = tmp_path / "newer.c"
    source.write_text(text)
    client = ctypes.CDLL(str(compile_c(source, *linked(library_path), name="newer_client.so")))
    assert client.client_run(host.handle) == 0
